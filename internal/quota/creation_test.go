package quota

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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
	e := w.engine(t, nil)
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
func parkUnknown(w *worker, calls []*call) {
	calls[0].unknown = true
	w.park(calls[0].request.Tenant, calls)
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
	if left := p.expire(time.Now()); left != 2 {
		t.Errorf("%d are left, want the 2 within their deadline", left)
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

// An engine that stops answers who waits for a creation, though the change that holds
// the configuration's lock outlives it.
func TestAStoppingEngineAnswersWhoAwaitsACreation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, defaultConfig)
	tx, err := w.db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // it wrote nothing
	if _, err := tx.Exec(t.Context(), "select version from quotad.catalog_version for update"); err != nil {
		t.Fatal(err)
	}
	e, stop := w.stoppableEngine(t, func(c *Config) { c.Deadline, c.readTimeout = shortDeadline, time.Second })
	_, err = e.Decide(t.Context(), consume("new", "calls", 1))
	wantCode(t, err, CodeUnavailable)
	mustDecide(t, e, consume("acme", "calls", 1)) // no decision waits for that lock
	stop()
}
