package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/internal/catalog"
)

// answerMax is far beyond what an answer takes; it only ends a broken test.
const answerMax = 30 * time.Second

// shortDeadline is for calls that must not be decided in time.
const shortDeadline = 100 * time.Millisecond

// idleEngine makes an engine without a database, for what happens before one is asked.
func idleEngine(t *testing.T, change func(*Config)) *Engine {
	t.Helper()
	config := Config{
		Database: &pgx.ConnConfig{}, Catalog: catalog.NewStore(nil),
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	}
	change(&config)
	e, err := NewEngine(config)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// newCall is a call as Decide makes it.
func newCall(r Request) *call {
	return &call{request: r, deadline: time.Now().Add(answerMax), done: make(chan struct{}, 1)}
}

// numbered makes calls of a tenant that its entries tell apart, from first on.
func numbered(tenant string, first, n int) (calls []*call) {
	for i := range n {
		r := consume(tenant, "calls", 1)
		r.Dims = map[string]string{"n": fmt.Sprint(first + i)}
		calls = append(calls, newCall(r))
	}
	return calls
}

func submit(t *testing.T, w *worker, calls ...*call) {
	t.Helper()
	for _, c := range calls {
		if err := w.submit(c); err != nil {
			t.Fatalf("submit %v: %v", c.request.Dims, err)
		}
	}
}

// answers waits for the answer of every call.
func answers(t *testing.T, calls []*call) (outcomes []outcome) {
	t.Helper()
	timer := time.NewTimer(answerMax)
	defer timer.Stop()
	for _, c := range calls {
		select {
		case <-c.done:
			outcomes = append(outcomes, c.outcome)
		case <-timer.C:
			t.Fatalf("the call %v was never answered", c.request.Dims)
		}
	}
	return outcomes
}

// names lists calls by tenant and number.
func names(calls []*call) (names []string) {
	for _, c := range calls {
		names = append(names, c.request.Tenant+c.request.Dims["n"])
	}
	return names
}

func TestATenantsCallsGoToOneWorker(t *testing.T) {
	t.Parallel()
	e := idleEngine(t, func(c *Config) { c.Workers = 4 })
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		for i := range 100 {
			_, err := e.Decide(gone, consume(fmt.Sprint("tenant-", i), "calls", 1))
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("Decide for a caller who left: %v", err)
			}
		}
	}
	owner := make(map[string]int)
	for i, w := range e.workers {
		if len(w.queue) == 0 {
			t.Errorf("worker %d has no tenant of a hundred", i)
		}
		for _, c := range w.queue {
			if first, seen := owner[c.request.Tenant]; seen && first != i {
				t.Errorf("%s goes to workers %d and %d", c.request.Tenant, first, i)
			}
			owner[c.request.Tenant] = i
		}
	}
}

// A caller who gave up is answered without the database; a batch whose commit is sent says
// what is in it. Both at once would be a charge that nobody knows of, or two.
func TestACallIsSentOrAbandonedNeverBoth(t *testing.T) {
	t.Parallel()
	for range 10_000 {
		c := newCall(Request{})
		var sent, gaveUp bool
		var group sync.WaitGroup
		group.Go(func() { sent = c.take() && c.send() })
		group.Go(func() { gaveUp = c.abandon() })
		group.Wait()
		if sent == gaveUp {
			t.Fatalf("sent = %t and abandoned = %t", sent, gaveUp)
		}
		if c.take() != sent || c.send() != sent || c.abandon() {
			t.Fatal("it was decided anew")
		}
	}
}

func TestAnAbandonedCallIsNeverDecided(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	calls := numbered("acme", 0, 5)
	e := w.engine(t, func(c *Config) { c.Workers = 1 })
	for _, i := range []int{1, 4} {
		calls[i].abandon()
	}
	submit(t, e.workers[0], calls...)
	answers(t, []*call{calls[0], calls[2], calls[3]})
	wantOrder(t, w, "acme", "0", "2", "3")
	for _, i := range []int{1, 4} {
		select {
		case <-calls[i].done:
			t.Errorf("call %d was answered with %+v", i, calls[i].outcome)
		default:
		}
	}
}

// A caller that is told something else while a batch waits for its lock must not be charged
// by that batch.
func TestACallThatIsGivenUpWhileItsBatchReadsIsNotDecided(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, func(c *Config) { c.Workers = 1 })
	outsider := w.db.Hold(t, "acme")
	calls := numbered("acme", 0, 2)
	submit(t, e.workers[0], calls...)
	w.awaitWaiter(t, time.Time{})
	if !calls[0].abandon() {
		t.Fatal("it cannot be given up, though no commit was sent")
	}
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers(t, calls[1:])
	wantOrder(t, w, "acme", "1")
}

// wantOrder checks in which order the numbered calls of a tenant stand in the ledger.
func wantOrder(t *testing.T, w *world, tenant string, want ...string) {
	t.Helper()
	var got []string
	for _, e := range w.entries(t, tenant) {
		got = append(got, e.Dims["n"])
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of the entries of %s (-want +got):\n%s", tenant, diff)
	}
}

// What waits is counted wherever it waits, or a tenant that is locked elsewhere could
// fill the memory.
func TestTheQueueIsBoundedWithItsParkedCalls(t *testing.T) {
	t.Parallel()
	e := idleEngine(t, func(c *Config) { c.Workers, c.QueueMax, c.BatchMax = 1, 6, 4 })
	w := e.workers[0]
	full := func(step string) {
		t.Helper()
		if err := w.submit(newCall(consume("late", "calls", 1))); err == nil || err.Code != CodeOverloaded || err.RetryAfter <= 0 {
			t.Errorf("%s: got %v, want overloaded with Retry-After", step, err)
		}
	}
	submit(t, w, numbered("a", 0, 4)...)
	submit(t, w, numbered("b", 0, 1)...)
	submit(t, w, numbered("a", 4, 1)...)
	full("queued")
	batch, _ := w.next()
	if diff := cmp.Diff([]string{"a0", "a1", "a2", "a3"}, names(batch)); diff != "" {
		t.Errorf("the batch (-want +got):\n%s", diff)
	}
	w.park("a", batch)
	full("parked")
	p := <-e.parking.tenants
	taken := p.take(e.config.BatchMax)
	submit(t, w, numbered("a", 5, 4)...)
	full("queued behind the parked")
	p.putBack(taken)
	full("put back")
	if diff := cmp.Diff([]string{"b0"}, names(w.queue)); diff != "" {
		t.Errorf("the queue (-want +got):\n%s", diff)
	}
	want := []string{"a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"}
	if diff := cmp.Diff(want, names(p.calls)); diff != "" {
		t.Errorf("the parked calls (-want +got):\n%s", diff)
	}
	for range 3 {
		p.take(e.config.BatchMax)
	}
	w.next()
	if w.waiting != 0 {
		t.Errorf("with nothing left, %d calls are said to wait", w.waiting)
	}
}

// waiter looks for a transaction that began after since and waits for a lock.
func (w *world) waiter(t *testing.T, since time.Time) (began time.Time, found bool) {
	t.Helper()
	err := w.db.Owner(t).QueryRow(t.Context(), `select xact_start from pg_stat_activity
		where datname = current_database() and wait_event_type = 'Lock' and xact_start > $1`, since).Scan(&began)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatal(err)
	}
	return began, err == nil
}

// awaitWaiter waits until there is one, and returns when it began.
func (w *world) awaitWaiter(t *testing.T, since time.Time) time.Time {
	t.Helper()
	for {
		if began, found := w.waiter(t, since); found {
			return began
		}
	}
}

// A tenant that is locked elsewhere keeps its calls in order, over several batches and
// waits that ended in a timeout.
func TestAParkedTenantsCallsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, func(c *Config) { c.Workers, c.BatchMax, c.Deadline = 1, 2, answerMax })
	outsider := w.db.Hold(t, "acme")
	calls := numbered("acme", 0, 10)
	submit(t, e.workers[0], calls[:5]...)
	first := w.awaitWaiter(t, time.Time{})
	submit(t, e.workers[0], calls[5:8]...)
	w.awaitWaiter(t, first) // the first wait has ended, its calls were put back
	submit(t, e.workers[0], calls[8:]...)
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, out := range answers(t, calls) {
		if out.err != nil || !out.decision.Allowed {
			t.Errorf("call %d: %+v", i, out)
		}
	}
	wantOrder(t, w, "acme", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
	w.verify(t)
}

// A batch that runs in halves must not decide the second half of a tenant's calls when
// the first half was left to wait for the tenant's lock.
func TestHalvesOfABatchKeepTheOrderOfATenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, nil)
	mustDecide(t, e, consume("globex", "calls", 1)) // this instance knows the configuration
	outsider := w.db.Hold(t, "acme")
	calls := numbered("acme", 0, 4)
	for _, c := range calls {
		c.take()
	}
	r := newRunner(e)
	defer r.close()
	left := make(chan map[string][]*call, 1)
	go func() {
		left <- r.runInParts(context.WithoutCancel(t.Context()), calls, func(int) []*call { return nil }, errors.New("a row was refused"))
	}()
	first := w.awaitWaiter(t, time.Time{})
	var got map[string][]*call
	for got == nil {
		select {
		case got = <-left:
		default:
			if _, second := w.waiter(t, first); second { // it waits for the second half now: let it have the lock
				if err := outsider.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				got = <-left
			}
		}
	}
	if diff := cmp.Diff(map[string][]string{"acme": {"acme0", "acme1", "acme2", "acme3"}}, tenantNames(got)); diff != "" {
		t.Errorf("calls that were left (-want +got):\n%s", diff)
	}
	wantOrder(t, w, "acme")
}

func tenantNames(calls map[string][]*call) map[string][]string {
	all := make(map[string][]string)
	for tenant, of := range calls {
		all[tenant] = names(of)
	}
	return all
}

// An engine that is told to stop refuses what comes and answers what is there, whether
// it is queued or parked.
func TestAStoppingEngineAnswersWhatItHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e, stop := w.stoppableEngine(t, func(c *Config) { c.Workers, c.BatchMax, c.Deadline = 1, 2, answerMax })
	outsider := w.db.Hold(t, "acme")
	parked, queued := numbered("acme", 0, 5), numbered("globex", 0, 5)
	submit(t, e.workers[0], parked...)
	w.awaitWaiter(t, time.Time{})
	submit(t, e.workers[0], queued...)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		stop()
	}()
	answers(t, queued)
	for {
		err := e.workers[0].submit(newCall(consume("globex", "calls", 1)))
		if err == nil {
			continue // it is not closed yet
		}
		if err.Code != CodeShuttingDown {
			t.Errorf("a call that comes late: %v, want %s", err, CodeShuttingDown)
		}
		break
	}
	select {
	case <-stopped:
		t.Error("the engine ended before its parked calls were answered")
	default:
	}
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, out := range answers(t, parked) {
		if out.err != nil || !out.decision.Allowed {
			t.Errorf("parked call %d: %+v", i, out)
		}
	}
	timer := time.NewTimer(drainTimeout / 2)
	defer timer.Stop()
	select {
	case <-stopped:
	case <-timer.C:
		t.Error("the engine goes on although everything is answered")
	}
	w.verify(t)
}

// A lock that nobody gives back must not keep an engine from ending: calls are answered
// when their time is up.
func TestAStoppingEngineDoesNotWaitForALockForEver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e, stop := w.stoppableEngine(t, func(c *Config) { c.Workers = 1 })
	w.db.Hold(t, "acme")
	calls := numbered("acme", 0, 3)
	for _, c := range calls {
		c.deadline = time.Now().Add(shortDeadline)
	}
	submit(t, e.workers[0], calls...)
	stop()
	for i, out := range answers(t, calls) {
		if refusal := wantCode(t, out.err, CodeUnavailable); refusal.RetryAfter <= 0 {
			t.Errorf("call %d: %+v, want a refusal with Retry-After", i, out)
		}
	}
	if got := w.entries(t, "acme"); len(got) != 0 {
		t.Errorf("%d entries of refused calls", len(got))
	}
}

// When the time to drain is up, waiters may just be handing tenants back.
func TestWaitersEndWhileTenantsAreHandedBack(t *testing.T) {
	t.Parallel()
	const tenants = 8
	for range 300 {
		e := idleEngine(t, func(c *Config) { c.Workers, c.BatchMax = 1, 1 })
		w := e.workers[0]
		for i := range tenants {
			calls := numbered(fmt.Sprint("tenant-", i), 0, 50)
			for _, c := range calls {
				c.abandon() // dropped without a database
			}
			w.park(calls[0].request.Tenant, calls)
		}
		w.close()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		var waiters sync.WaitGroup
		for range 2 {
			waiters.Go(func() { e.parking.run(ended, e) })
		}
		for len(e.parking.tenants) == tenants {
			runtime.Gosched()
		}
		w.run(ended)
		e.parking.close()
		waiters.Wait()
	}
}
