package quota

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/ledger"
)

const callsConfig = `
meters:
  calls:  {unit: call}
  tokens: {unit: token, weights: {input: 1, output: 4}}
plans:
  small:
    limits:
      - {name: ten,  meter: calls,  algorithm: sliding_log, limit: 10, window: 1h}
      - {name: pool, meter: tokens, algorithm: token_bucket, capacity: 100, refill: 1/1s}
tenants:
  acme:   {plan: small}
  globex: {plan: small}
`

// Read-then-write limiters admit all of a burst; here 1,000 callers of a cold tenant on
// six instances get exactly what the limit holds. Batches are small: were one instance to
// use the limit up by itself, it would not need a lock.
func TestExactlyTheLimitIsAdmittedUnderAStorm(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	var engines []*Engine
	for range 6 {
		engines = append(engines, w.engine(t, func(c *Config) { c.BatchMax, c.Deadline = 3, answerMax }))
	}
	var allowed, denied atomic.Int64
	var group errgroup.Group
	for i := range 1000 {
		group.Go(func() error {
			d, err := engines[i%len(engines)].Decide(t.Context(), consume("acme", "calls", 1))
			switch {
			case err != nil:
				return err
			case d.Allowed:
				allowed.Add(1)
			default:
				denied.Add(1)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if allowed.Load() != 10 || denied.Load() != 990 {
		t.Errorf("got %d allowed and %d denied, want 10 and 990", allowed.Load(), denied.Load())
	}
	if got := len(w.entries(t, "acme")); got != 10 {
		t.Errorf("the ledger has %d entries, want 10", got)
	}
	w.verify(t)
}

func TestADenialChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 8))
	d := mustDecide(t, e, consume("acme", "calls", 5))
	if d.Allowed || d.Reason != ReasonQuotaExceeded || d.Limits[0].Used != 8 || *d.Remaining != 2 {
		t.Errorf("cost 5 with 2 left: got %+v", d)
	}
	if d := mustDecide(t, e, consume("acme", "calls", 2)); !d.Allowed || *d.Remaining != 0 {
		t.Errorf("cost 2 with 2 left: got %+v", d)
	}
	if got := len(w.entries(t, "acme")); got != 2 {
		t.Errorf("the ledger has %d entries, want 2", got)
	}
	w.verify(t)
}

func TestChargesAreAdmittedAllOrNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, nil)
	both := Request{Tenant: "acme", Charges: []Charge{
		{Meter: "calls", Cost: 1},
		{Meter: "tokens", Pools: map[string]int64{"input": 20, "output": 10}},
		{Meter: "calls", Cost: 2},
	}}
	d := mustDecide(t, e, both)
	want := []ChargeResult{{Meter: "calls", Cost: 3}, {Meter: "tokens", Cost: 60}}
	if diff := cmp.Diff(want, d.Charges); !d.Allowed || diff != "" {
		t.Fatalf("charges (-want +got):\n%s", diff)
	}
	d = mustDecide(t, e, both)
	if d.Allowed || d.Limits[0].Violated || !d.Limits[1].Violated {
		t.Errorf("second call: got %+v, want a denial by the bucket alone", d)
	}
	if d.Limits[0].Used != 3 {
		t.Errorf("the other limit has %d used after the denial, want 3", d.Limits[0].Used)
	}
	w.verify(t)
}

func TestARetryIsChargedOnceAndGetsTheSameAnswer(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	engines := []*Engine{w.engine(t, nil), w.engine(t, nil)}
	r := consume("acme", "calls", 1)
	r.Key = "order-1"
	var mu sync.Mutex
	answers := make(map[string]int)
	fresh := 0
	var group errgroup.Group
	for i := range 200 {
		group.Go(func() error {
			d, err := engines[i%2].Decide(t.Context(), r)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			answers[string(d.Encoded)]++
			if !d.Replayed {
				fresh++
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(answers) != 1 || fresh != 1 {
		t.Errorf("got %d different answers, %d of them fresh; want 1 and 1", len(answers), fresh)
	}
	r.Charges[0].Cost = 2
	_, err := engines[0].Decide(t.Context(), r)
	wantCode(t, err, CodeKeyReused)
	if got := len(w.entries(t, "acme")); got != 1 {
		t.Errorf("the ledger has %d entries, want 1", got)
	}
	r.Tenant = "globex"
	if d := mustDecide(t, engines[0], r); d.Replayed || !d.Allowed {
		t.Errorf("the same key of another tenant: got %+v, want a decision of its own", d)
	}
	w.verify(t)
}

func TestADeniedKeyMayBeTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w.db.SetClock(t, start)
	e := w.engine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 10))
	r := consume("acme", "calls", 1)
	r.Key = "k"
	d := mustDecide(t, e, r)
	if d.Allowed || *d.RetryMS != time.Hour.Milliseconds() {
		t.Fatalf("got %+v, want a denial for an hour", d)
	}
	w.db.AdvanceClock(t, time.Hour-time.Millisecond)
	if d := mustDecide(t, e, r); d.Allowed {
		t.Error("one millisecond early: allowed")
	}
	w.db.AdvanceClock(t, time.Millisecond)
	if d := mustDecide(t, e, r); !d.Allowed || d.Replayed {
		t.Errorf("after Retry-After: got %+v, want allowed", d)
	}
	w.verify(t)
}

// The wait of a sliding log is when enough of the oldest units leave, found among
// entries of several batches.
func TestWaitsAreExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.db.SetClock(t, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	e := w.engine(t, nil)
	for range 10 {
		mustDecide(t, e, consume("acme", "calls", 1))
		w.db.AdvanceClock(t, 7*time.Second+time.Microsecond)
	}
	for cost := int64(1); cost <= 10; cost++ {
		d := mustDecide(t, e, consume("acme", "calls", cost))
		// The cost-th oldest entry leaves an hour after its instant.
		age := time.Duration(11-cost) * (7*time.Second + time.Microsecond)
		want := (time.Hour - age + time.Millisecond - 1).Milliseconds()
		if d.Allowed || d.RetryMS == nil || *d.RetryMS != want {
			t.Errorf("cost %d: got %+v, want a wait of %d ms", cost, d, want)
		}
	}
	if d := mustDecide(t, e, consume("acme", "calls", 11)); d.Reason != ReasonCostExceedsLimit || d.RetryMS != nil {
		t.Errorf("cost 11 on a limit of 10: got %+v", d)
	}
}

func TestANewPlanVersionHoldsForTheNextCallOnEveryInstance(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	engines := []*Engine{w.engine(t, nil), w.engine(t, nil)}
	for _, e := range engines {
		mustDecide(t, e, consume("acme", "calls", 4))
	}
	w.apply(t, `
plans:
  small:
    limits:
      - {name: ten, meter: calls, algorithm: sliding_log, limit: 5, window: 1h}
`)
	for i, e := range engines {
		d := mustDecide(t, e, consume("acme", "calls", 1))
		if d.Allowed || d.Limits[0].Limit != 5 || d.Limits[0].Used != 8 || *d.Remaining != 0 {
			t.Errorf("instance %d: got %+v, want denied by the lowered limit with 0 left", i, d)
		}
	}
	_, err := engines[0].Decide(t.Context(), consume("acme", "unheard", 1))
	wantCode(t, err, CodeMeterNotFound)
	if d := mustDecide(t, engines[0], consume("acme", "tokens", 1)); d.Reason != ReasonMeterNotInPlan {
		t.Errorf("a meter that left the plan: got %+v", d)
	}
	w.verify(t)
}

func TestUnknownTenantsAndSubjectsAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, nil)
	_, err := e.Decide(t.Context(), consume("nobody", "calls", 1))
	if got := wantCode(t, err, CodeTenantNotFound); got.Faults[0].Field != "tenant" {
		t.Errorf("the fault names %q, want tenant", got.Faults[0].Field)
	}
}

// A tenant whose account an outsider holds must not delay another tenant, and its own
// calls go on in order once the lock is free.
func TestALockHeldElsewhereDelaysOnlyItsTenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, func(c *Config) { c.Workers = 1 })
	mustDecide(t, e, consume("acme", "calls", 1))
	outsider, err := w.db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer outsider.Rollback(context.WithoutCancel(t.Context()))
	if _, err := outsider.Exec(t.Context(), "select from quotad.account where tenant = 'acme' for update"); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	for i := range 5 {
		r := consume("acme", "calls", 1)
		r.Dims = map[string]string{"n": fmt.Sprint(i)}
		group.Go(func() error {
			_, err := e.Decide(t.Context(), r)
			return err
		})
	}
	for range 5 {
		if d := mustDecide(t, e, consume("globex", "calls", 1)); !d.Allowed {
			t.Errorf("the other tenant was denied: %+v", d)
		}
	}
	if got := len(w.entries(t, "acme")); got != 1 {
		t.Errorf("the locked tenant has %d entries, want 1", got)
	}
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := len(w.entries(t, "acme")); got != 6 {
		t.Errorf("after the lock was free the tenant has %d entries, want 6", got)
	}
	w.verify(t)
}

// Who looks into the log finds what a call waited for in vain.
func TestACallThatIsLateSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, func(c *Config) { c.Deadline = 4 * time.Second }) // a wait for a lock ends after one
	outsider, err := w.db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer outsider.Rollback(context.WithoutCancel(t.Context()))
	if _, err := outsider.Exec(t.Context(), "select from quotad.account for update"); err != nil {
		t.Fatal(err)
	}
	_, err = e.Decide(t.Context(), consume("acme", "calls", 1))
	if err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("Decide of a tenant that is locked = %v, want that it waited for the lock", err)
	}
}

func TestTimeNeverRunsBackwardsForATenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w.db.SetClock(t, start)
	e := w.engine(t, nil)
	first := mustDecide(t, e, consume("acme", "tokens", 60))
	w.db.AdvanceClock(t, -time.Hour)
	second := mustDecide(t, e, consume("acme", "tokens", 30))
	if !second.Allowed || second.DecidedAt.Before(first.DecidedAt) {
		t.Errorf("an hour back: got %+v after %v", second, first.DecidedAt)
	}
	w.db.AdvanceClock(t, time.Hour+10*time.Second)
	if d := mustDecide(t, e, consume("acme", "tokens", 20)); !d.Allowed || *d.Remaining != 0 {
		t.Errorf("10 s later: got %+v, want exactly 20 to be there", d)
	}
	w.verify(t)
}

// A clock far ahead of every partition makes the partition, not an error.
func TestAMissingPartitionIsMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.db.SetClock(t, time.Date(2031, 5, 17, 0, 0, 0, 0, time.UTC))
	e := w.engine(t, nil)
	r := consume("acme", "calls", 1)
	r.Key = "far"
	if d := mustDecide(t, e, r); !d.Allowed {
		t.Errorf("got %+v", d)
	}
	w.verify(t)
}

// One request that the database refuses must not take its batch down with it.
func TestAStrangersBadRequestNeverFailsYours(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.db.Exec(t, "alter table quotad.entry add constraint no_thirteen check (units <> 13)")
	e := w.engine(t, func(c *Config) { c.Workers = 1 })
	var bad, good atomic.Int64
	var group errgroup.Group
	for i := range 60 {
		group.Go(func() error {
			cost := int64(1)
			if i%10 == 5 {
				cost = 13
			}
			tenant := []string{"acme", "globex"}[i%2]
			_, err := e.Decide(t.Context(), consume(tenant, "tokens", cost))
			var refusal *Error
			switch {
			case err == nil:
				good.Add(1)
			case cost == 13 && errors.As(err, &refusal) && refusal.Code == CodeInternal:
				bad.Add(1)
			default:
				return fmt.Errorf("cost %d: %w", cost, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if good.Load() != 54 || bad.Load() != 6 {
		t.Errorf("got %d decided and %d refused, want 54 and 6", good.Load(), bad.Load())
	}
	w.verify(t)
}

func TestAFullQueueRefusesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, func(c *Config) { c.Workers, c.QueueMax, c.Deadline = 1, 3, 500*time.Millisecond })
	outsider, err := w.db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer outsider.Rollback(context.WithoutCancel(t.Context()))
	if _, err := outsider.Exec(t.Context(), "select from quotad.account for update"); err != nil {
		t.Fatal(err)
	}
	var overloaded, late atomic.Int64
	var group errgroup.Group
	for range 20 {
		group.Go(func() error {
			_, err := e.Decide(t.Context(), consume("acme", "calls", 1))
			var refusal *Error
			switch {
			case errors.As(err, &refusal) && refusal.Code == CodeOverloaded && refusal.RetryAfter > 0:
				overloaded.Add(1)
			case errors.As(err, &refusal) && refusal.Code == CodeUnavailable:
				late.Add(1)
			default:
				return fmt.Errorf("got %v", err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if overloaded.Load() == 0 || late.Load() == 0 {
		t.Errorf("got %d overloaded and %d late, want some of both", overloaded.Load(), late.Load())
	}
	if got := len(w.entries(t, "acme")); got != 0 {
		t.Errorf("the ledger has %d entries of refused calls", got)
	}
}

func TestAStoppedEngineRefusesMore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e, stop := w.stoppableEngine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 1))
	stop()
	_, err := e.Decide(t.Context(), consume("acme", "calls", 1))
	wantCode(t, err, CodeShuttingDown)
	if e.Health().Ready {
		t.Error("a stopped engine says it is ready")
	}
}

func TestStandShowsEveryLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.db.SetClock(t, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	e := w.engine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 3))
	mustDecide(t, e, consume("acme", "tokens", 30))
	d, err := e.Limits(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][3]int64)
	for _, l := range d.Limits {
		got[l.Name] = [3]int64{l.Used, l.Remaining, l.ResetMS}
	}
	want := map[string][3]int64{"ten": {3, 7, 3_600_000}, "pool": {30, 70, 30_000}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	if _, err := e.Limits(t.Context(), "nobody", ""); err == nil {
		t.Error("the limits of an unknown tenant: no error")
	}
	if n := len(w.entries(t, "acme")); n != 2 {
		t.Errorf("looking changed the ledger: %d entries", n)
	}
}

func TestADryRunChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, nil)
	r := consume("acme", "calls", 10)
	r.DryRun, r.Key = true, "dry"
	for range 3 {
		if d := mustDecide(t, e, r); !d.Allowed || d.Receipt != nil || *d.Remaining != 10 {
			t.Errorf("got %+v", d)
		}
	}
	if got := len(w.entries(t, "acme")); got != 0 {
		t.Errorf("the ledger has %d entries", got)
	}
}

func TestReceiptsNameTheEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, nil)
	d := mustDecide(t, e, Request{
		Tenant: "acme", Subject: "user-1", Dims: map[string]string{"region": "eu"},
		Charges: []Charge{{Meter: "calls", Cost: 1}, {Meter: "tokens", Cost: 5}},
	})
	entries := w.entries(t, "acme")
	if len(entries) != 2 || d.Receipt.FirstSeq != 1 || d.Receipt.Seq != 2 {
		t.Fatalf("got receipt %+v and %d entries", d.Receipt, len(entries))
	}
	last := entries[1]
	if Hash(last.Hash) != d.Receipt.Hash || last.RequestID != d.RequestID || last.Subject != "user-1" ||
		last.SubjectTotal != 5 || last.Dims["region"] != "eu" || last.Kind != ledger.KindConsume {
		t.Errorf("the entry is %+v", last)
	}
	w.verify(t)
}
