package quota

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
)

const defaultConfig = `
meters: {calls: {unit: call}}
plans:
  free: {limits: [{name: hourly, meter: calls, algorithm: sliding_log, limit: 50, window: 1h}]}
tenants: {acme: {plan: free}}
default_plan: free
`

// The first calls of a tenant that nobody knows, all at once and on several instances,
// are decided under the default plan: as many pass as it lets through.
func TestFirstCallsOfAnUnknownTenantPassAsTheDefaultPlanSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig)
	engines := []*Engine{w.engine(t, nil), w.engine(t, nil)}
	const callers, tenants, limit = 1000, 2, 50
	var allowed [tenants]atomic.Int32
	var group errgroup.Group
	for i := range callers * tenants {
		group.Go(func() error {
			d, err := engines[i/tenants%2].Decide(t.Context(), consume(fmt.Sprint("new-", i%tenants), "calls", 1))
			if d.Allowed {
				allowed[i%tenants].Add(1)
			} else if err == nil && d.Reason != ReasonQuotaExceeded {
				return fmt.Errorf("denied for %s", d.Reason)
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for i := range allowed {
		if n := allowed[i].Load(); n != limit {
			t.Errorf("%d calls of new-%d passed, want %d", n, i, limit)
		}
	}
	w.verify(t)
	if n := len(w.entries(t, "new-0")); n != limit {
		t.Errorf("%d entries, want %d", n, limit)
	}
}

// Only what spends makes a tenant, in the order of its calls.
func TestLooksAndDryRunsMakeNoTenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig)
	e := w.engine(t, nil)
	_, err := e.Limits(t.Context(), "new", "")
	wantCode(t, err, CodeTenantNotFound)
	dry := consume("new", "calls", 1)
	dry.DryRun = true
	_, err = e.Decide(t.Context(), dry)
	wantCode(t, err, CodeTenantNotFound)
	if _, err := w.catalog.Tenant(t.Context(), "new"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Tenant = %v, want ErrNotFound", err)
	}
	results := e.DecideAll(t.Context(), []Request{dry, consume("new", "calls", 3), dry})
	wantCode(t, results[0].Err, CodeTenantNotFound)
	if r := results[1]; r.Err != nil || !r.Decision.Allowed {
		t.Errorf("the consume got %+v, want it allowed", r)
	}
	if r := results[2]; r.Err != nil || r.Decision.Limits[0].Used != 3 {
		t.Errorf("the dry run after it got %+v, want 3 used", r)
	}
}

// A flood of unknown tenants beyond the rate is refused, says for how long, and leaves
// known tenants alone; the next minute has room again.
func TestAFloodOfUnknownTenantsIsRefusedAndHoldsUpNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig+"default_plan_rate: 3\n")
	w.db.SetClock(t, time.Date(2026, 3, 1, 12, 0, 20, 0, time.UTC))
	e := w.engine(t, func(c *Config) { c.Deadline = answerMax }) // six hundred wait in one line
	var made, limited, full atomic.Int32
	var group errgroup.Group
	for i := range 600 {
		group.Go(func() error {
			_, err := e.Decide(t.Context(), consume(fmt.Sprint("flood-", i), "calls", 1))
			var refusal *Error
			switch errors.As(err, &refusal); {
			case err == nil:
				made.Add(1)
			case refusal != nil && refusal.Code == CodeTenantCreationLimited && refusal.RetryAfter == 40*time.Second:
				limited.Add(1)
			case refusal != nil && refusal.Code == CodeOverloaded:
				full.Add(1)
			default:
				return err
			}
			return nil
		})
		if i%50 == 0 {
			group.Go(func() error {
				_, err := e.Decide(t.Context(), consume("acme", "calls", 1))
				return err
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if made.Load() != 3 || limited.Load() == 0 || made.Load()+limited.Load()+full.Load() != 600 {
		t.Errorf("%d made, %d limited, %d found the queue full; want 3 made", made.Load(), limited.Load(), full.Load())
	}
	if n := e.tenants.Len(); n > 4 {
		t.Errorf("%d tenants are remembered, want acme and three", n)
	}
	w.db.AdvanceClock(t, 40*time.Second)
	mustDecide(t, e, consume("late", "calls", 1))
}

// parkUnknown parks calls as a batch does whose tenant has no account; in an idle engine
// no creator ever gets to them.
func parkUnknown(w *worker, calls []*call) *parkedTenant {
	calls[0].unknown = true
	w.park(calls[0].request.Tenant, calls)
	return w.parked[calls[0].request.Tenant]
}

// What waits for a creation leaves room in the worker, and in the engine, to others.
func TestCallsThatAwaitACreationAreBounded(t *testing.T) {
	t.Parallel()
	e := idleEngine(t, func(c *Config) { c.Workers, c.QueueMax = 1, 2*creationsQueuedMax+8 })
	w := e.workers[0]
	parkUnknown(w, numbered("new", 0, 1))
	var err *Error
	admitted := 1
	for err = w.submit(newCall(consume("new", "calls", 1))); err == nil && admitted < 10_000; admitted++ {
		err = w.submit(newCall(consume("new", "calls", 1)))
	}
	if err == nil || err.Code != CodeOverloaded || admitted != w.unknownMax() {
		t.Errorf("%d calls of an unknown tenant were admitted, then %v; want %d", admitted, err, w.unknownMax())
	}
	submit(t, w, newCall(consume("acme", "calls", 1)))

	p := w.parked["new"]
	p.created(nil)
	if w.unknown != 0 || w.waiting != admitted+1 || p.unknown {
		t.Errorf("%d unknown of %d waiting once it is created, want 0 of %d", w.unknown, w.waiting, admitted+1)
	}
	<-e.creator.tenants
	for i := range creationsQueuedMax {
		parkUnknown(w, numbered(fmt.Sprint("t", i), 0, 1))
	}
	late := numbered("late", 0, 2)
	parkUnknown(w, late)
	for _, out := range answers(t, late) {
		wantCode(t, out.err, CodeOverloaded)
	}
	if w.unknown != creationsQueuedMax || w.parked["late"] != nil {
		t.Errorf("%d calls await a creation, want %d", w.unknown, creationsQueuedMax)
	}
}

// Every call that awaits a creation gets an answer, whatever becomes of it: refused with
// what the creation came to, or past its deadline.
func TestCallsThatAwaitACreationAreAnswered(t *testing.T) {
	t.Parallel()
	e := idleEngine(t, func(c *Config) { c.Workers = 1 })
	w := e.workers[0]
	calls := numbered("new", 0, 3)
	calls[0].deadline = time.Now().Add(-time.Second)
	parkUnknown(w, calls)
	p := w.parked["new"]
	if left := p.expire(time.Now()); len(left) != 2 {
		t.Errorf("%d are left, want the 2 within their deadline", len(left))
	}
	wantCode(t, answers(t, calls[:1])[0].err, CodeUnavailable)
	p.created(errNoTenant())
	p.leave()
	for _, out := range answers(t, calls[1:]) {
		wantCode(t, out.err, CodeTenantNotFound)
	}
	if w.unknown != 0 || w.waiting != 0 || len(w.parked) != 0 {
		t.Errorf("%d unknown, %d waiting, %d parked; want none", w.unknown, w.waiting, len(w.parked))
	}
}

// What the default plan cannot decide makes no tenant, and takes nothing of what may be
// made in a minute; a denial is a decision. Calls are answered in their order.
func TestOnlyWhatTheDefaultPlanCanDecideMakesATenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
meters:
  calls:  {unit: call}
  tokens: {unit: token, weights: {input: 1}}
plans:
  free:
    limits:
      - {name: hourly, meter: calls, algorithm: sliding_log, limit: 5, window: 1h}
      - {name: each, meter: tokens, algorithm: token_bucket, capacity: 5, refill: 1/1s, scope: subject}
      - {name: month, meter: tokens, algorithm: fixed_window, limit: 9, window: month}
default_plan: free
default_plan_rate: 2
`)
	w.db.SetClock(t, time.Date(2026, 3, 1, 12, 0, 20, 0, time.UTC))
	e := w.engine(t, nil)
	unknown := func(tenant string) {
		t.Helper()
		if _, err := w.catalog.Tenant(t.Context(), tenant); !errors.Is(err, catalog.ErrNotFound) {
			t.Errorf("Tenant(%s) = %v, want ErrNotFound", tenant, err)
		}
	}
	wrong := []struct {
		request Request
		want    Code
	}{
		{consume("", "nope", 1), CodeMeterNotFound},
		{consume("", "tokens", 1), CodeInvalidRequest}, // no subject
		{Request{Charges: []Charge{{Meter: "tokens", Pools: map[string]int64{"nope": 1}}}, Subject: "u"}, CodeInvalidRequest},
		{Request{Charges: []Charge{{Meter: "calls", Cost: catalog.UnitsMax}, {Meter: "calls", Cost: 1}}}, CodeInvalidRequest},
	}
	for i, c := range wrong {
		c.request.Tenant = fmt.Sprint("wrong-", i)
		_, err := e.Decide(t.Context(), c.request)
		wantCode(t, err, c.want)
		unknown(c.request.Tenant)
	}
	dry := consume("new", "calls", 1)
	dry.DryRun = true
	results := e.DecideAll(t.Context(), []Request{
		consume("new", "nope", 1), dry, consume("new", "tokens", 1), consume("new", "calls", 2), consume("new", "nope", 1), dry,
	})
	for i, want := range []Code{CodeMeterNotFound, CodeTenantNotFound, CodeInvalidRequest, "", CodeMeterNotFound, ""} {
		if want != "" {
			wantCode(t, results[i].Err, want)
		} else if d := results[i].Decision; results[i].Err != nil || !d.Allowed || d.Limits[0].Used != 2 {
			t.Errorf("call %d got %+v, %v; want it allowed with 2 used", i, d, results[i].Err)
		}
	}
	if d := mustDecide(t, e, consume("denied", "calls", 6)); d.Allowed || d.Reason != ReasonCostExceedsLimit {
		t.Errorf("the consume got %+v, want it denied", d)
	}
	if _, err := w.catalog.Tenant(t.Context(), "denied"); err != nil {
		t.Errorf("Tenant(denied) = %v, want it: a denial is a decision", err)
	}
	_, err := e.Decide(t.Context(), consume("late", "calls", 1))
	wantCode(t, err, CodeTenantCreationLimited) // two were made, and only now
	_, err = e.Decide(t.Context(), consume("late", "nope", 1))
	wantCode(t, err, CodeMeterNotFound)
	unknown("late")
}

// Who waits for a creation while the configuration changes, or the tenant is made elsewhere,
// is refused by nothing that does not hold any more.
func TestFirstCallsAreRefusedByWhatHoldsNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig)
	e := w.engine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 1)) // the engine knows the configuration as it was
	w.apply(t, strings.ReplaceAll(defaultConfig, "calls", "mails"))
	mails, wrong := newCall(consume("new", "mails", 1)), newCall(consume("new", "nope", 1))
	refusals, err := e.refusals(t.Context(), []*call{wrong, mails, wrong})
	if err != nil || len(refusals) != 1 {
		t.Fatalf("refusals = %v, %v; want one", refusals, err)
	}
	wantCode(t, refusals[0], CodeMeterNotFound)
	w.apply(t, "tenants: {new: {plan: free}}")
	if refusals, err := e.refusals(t.Context(), []*call{wrong}); err != nil || len(refusals) != 0 {
		t.Errorf("refusals of a tenant that was made elsewhere = %v, %v; want none", refusals, err)
	}
	if _, err := w.catalog.PutSettings(t.Context(), "test", catalog.SettingsSpec{}); err != nil {
		t.Fatal(err)
	}
	if refusals, err := e.refusals(t.Context(), []*call{mails}); !errors.Is(err, catalog.ErrNoDefaultPlan) {
		t.Errorf("refusals without a default plan = %v, %v; want ErrNoDefaultPlan", refusals, err)
	}
}

// What comes while a tenant is being looked at has its turn after it: nobody is told that
// the tenant is unknown who would have made it.
func TestWhoComesWhileOthersAreRefusedIsNextInTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig)
	e := w.engine(t, nil)
	for i := range 50 {
		tenant := fmt.Sprint("new-", i)
		var group errgroup.Group
		for range 4 {
			group.Go(func() error {
				if _, err := e.Decide(t.Context(), consume(tenant, "nope", 1)); err == nil || err.(*Error).Code != CodeMeterNotFound {
					return fmt.Errorf("a consume of no meter got %v", err)
				}
				return nil
			})
			group.Go(func() error {
				_, err := e.Decide(t.Context(), consume(tenant, "calls", 1))
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	idle := idleEngine(t, func(c *Config) { c.Workers = 1 })
	p := parkUnknown(idle.workers[0], numbered("new", 0, 1))
	<-idle.creator.tenants
	p.refuse([]error{errNoTenant()})
	late := numbered("new", 1, 1)
	submit(t, idle.workers[0], late...)
	p.leave()
	select {
	case again := <-idle.creator.tenants:
		if again != p || len(p.calls) != 1 || !p.unknown {
			t.Errorf("%+v is queued for the creator, want the tenant again with its one call", again)
		}
	default:
		t.Fatal("nothing is queued for the creator")
	}
	for i := range creationsQueuedMax {
		parkUnknown(idle.workers[0], numbered(fmt.Sprint("t", i), 0, 1))
	}
	p.leave()
	wantCode(t, answers(t, late)[0].err, CodeOverloaded)
	if w := idle.workers[0]; w.parked["new"] != nil || w.unknown != creationsQueuedMax || w.waiting != w.unknown {
		t.Errorf("%d unknown of %d waiting, want the %d others", w.unknown, w.waiting, creationsQueuedMax)
	}
}

// waitUntil waits for what other goroutines bring about under a lock.
func waitUntil(t *testing.T, mu *sync.Mutex, come func() bool) {
	t.Helper()
	for until := time.Now().Add(answerMax); time.Now().Before(until); runtime.Gosched() {
		mu.Lock()
		there := come()
		mu.Unlock()
		if there {
			return
		}
	}
	t.Fatal("it never came")
}

// holdConfiguration keeps whoever changes the configuration waiting, until the
// transaction or the test ends.
func (w *world) holdConfiguration(t *testing.T) pgx.Tx {
	t.Helper()
	tx, err := w.db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) })
	if _, err := tx.Exec(t.Context(), "select version from quotad.catalog_version for update"); err != nil {
		t.Fatal(err)
	}
	return tx
}

// No tenant is made for callers who have all left, whether a batch has had their calls
// before or not.
func TestNoTenantIsMadeForWhoHasLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig)
	tx := w.holdConfiguration(t)
	e := w.engine(t, func(c *Config) { c.Workers = 1 })
	var group errgroup.Group
	group.Go(func() error { // keeps the creator busy until the lock is given back
		_, err := e.Decide(t.Context(), consume("first", "calls", 1))
		return err
	})
	worker := e.workers[0]
	waitUntil(t, &worker.mu, func() bool { return worker.unknown == 1 && len(e.creator.tenants) == 0 })
	ctx, cancel := context.WithCancel(t.Context())
	for range 3 {
		group.Go(func() error {
			if _, err := e.Decide(ctx, consume("left", "calls", 1)); !errors.Is(err, context.Canceled) {
				return fmt.Errorf("a call whose caller left got %w", err)
			}
			return nil
		})
	}
	waitUntil(t, &worker.mu, func() bool { return worker.unknown == 4 })
	cancel()
	waitUntil(t, &worker.mu, func() bool {
		return !slices.ContainsFunc(worker.parked["left"].calls, func(c *call) bool { return !c.left() })
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	mustDecide(t, e, consume("last", "calls", 1)) // the creator has been at it
	if _, err := w.catalog.Tenant(t.Context(), "left"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Tenant(left) = %v, want ErrNotFound", err)
	}
}

// An engine that stops answers who waits for a creation, though the change that holds
// the configuration's lock outlives it.
func TestAStoppingEngineAnswersWhoAwaitsACreation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig)
	w.holdConfiguration(t)
	e, stop := w.stoppableEngine(t, func(c *Config) { c.Deadline, c.readTimeout = shortDeadline, time.Second })
	_, err := e.Decide(t.Context(), consume("new", "calls", 1))
	wantCode(t, err, CodeUnavailable)
	mustDecide(t, e, consume("acme", "calls", 1)) // no decision waits for that lock
	stop()
}
