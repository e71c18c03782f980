package quota

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/ledger"
)

const historyConfig = `
meters:
  calls:  {unit: call}
  tokens: {unit: token}
plans:
  all:
    limits:
      - {name: log,     meter: calls,  algorithm: sliding_log,     limit: %[1]d, window: 1m}
      - {name: counter, meter: calls,  algorithm: sliding_counter, limit: 40, window: 1m}
      - {name: each,    meter: calls,  algorithm: sliding_log,     limit: 15, window: 1m, scope: subject}
      - {name: day,     meter: calls,  algorithm: fixed_window,    limit: 300, window: day}
      - {name: bucket,  meter: tokens, algorithm: token_bucket,    capacity: %[1]d, refill: 1/1s}
      - {name: mine,    meter: tokens, algorithm: token_bucket,    capacity: 60, refill: 7/9s, scope: subject}
      - {name: smooth,  meter: tokens, algorithm: %[2]s}
      - {name: watched, meter: tokens, algorithm: token_bucket,    capacity: %[6]d, refill: 3/7s, mode: shadow}
      - {name: off,     meter: calls,  algorithm: sliding_log,     limit: 1, window: 1m, mode: off}
  other:
    limits:
      - {name: bucket,  meter: tokens, algorithm: token_bucket,    capacity: 25, refill: 1/3s}
      - {name: hour,    meter: calls,  algorithm: fixed_window,    limit: 100, window: hour}
tenants:
  acme: {plan: %[3]s, timezone: %[4]s, status: %[5]s}
`

// What was said of every limit at an instant is what is said of that instant ever after,
// whatever is used and changed since: plans, algorithms, the tenant's plan, zone, status.
func TestThePastOfLimitsIsWhatWasSaidThen(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	const gcra, leaky = "gcra, rate: 7/5s, burst: 45", "leaky_bucket, rate: 11/9s, queue: 45"
	config := func(limit int, smooth, plan, zone, status string) string {
		return fmt.Sprintf(historyConfig, limit, smooth, plan, zone, status, limit/5)
	}
	changes := map[int]string{
		30:  config(50, gcra, "all", "Asia/Kolkata", "active"),
		50:  config(50, gcra, "other", "Asia/Kolkata", "active"),
		70:  config(20, leaky, "all", "Asia/Kolkata", "active"),
		90:  config(20, leaky, "all", "Europe/Berlin", "suspended"),
		100: config(35, gcra, "all", "Europe/Berlin", "active"),
	}
	start := time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC) // ten minutes before midnight in Kolkata
	w := newWorldAt(t, start, config(30, gcra, "all", "Asia/Kolkata", "active"))
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	subjects := []string{"", "u0", "u1", "never"}
	var said []Decision
	for i := range 130 {
		w.db.AdvanceClock(t, time.Microsecond)
		if change, there := changes[i]; there {
			w.apply(t, change)
		}
		w.db.AdvanceClock(t, time.Duration(random.IntN(3))*time.Duration(random.IntN(15_000))*time.Millisecond)
		for range random.IntN(3) {
			r := Request{Tenant: "acme", Subject: fmt.Sprintf("u%d", random.IntN(2)), Charges: []Charge{{Meter: "calls", Cost: random.Int64N(8)}}}
			if random.IntN(2) == 0 {
				r.Charges = append(r.Charges, Charge{Meter: "tokens", Cost: random.Int64N(20)})
			}
			mustDecide(t, e, r)
		}
		limits, err := e.Limits(t.Context(), "acme", subjects[random.IntN(len(subjects))])
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, limits)
	}
	used := 0
	for i := range said {
		want := &said[i]
		got, err := x.LimitsAt(t.Context(), "acme", want.Subject, want.DecidedAt)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &got); diff != "" {
			t.Errorf("step %d, at %v of %q (-said +got):\n%s", i, want.DecidedAt, want.Subject, diff)
		}
		for _, l := range got.Limits {
			used += int(min(l.Used, 1))
		}
	}
	if used < len(said) {
		t.Errorf("%d limits of %d instants had something used: the traffic tests too little", used, len(said))
	}
}

// An entry that a shadow level would have denied took nothing from it, so it is no place
// to begin from, full as the level was: a larger level later is not full.
func TestAShadowLevelOfThePastIsFollowedFromWhatItTook(t *testing.T) {
	t.Parallel()
	config := func(capacity int) string {
		return fmt.Sprintf(`
meters: {tokens: {unit: token}}
plans: {all: {limits: [{name: watched, meter: tokens, algorithm: token_bucket, capacity: %d, refill: 1/10s, mode: shadow}]}}
tenants: {acme: {plan: all}, fresh: {plan: all}}
`, capacity)
	}
	w := newWorldAt(t, time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC), config(10))
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	mustDecide(t, e, consume("acme", "tokens", 8))
	w.db.AdvanceClock(t, 80*time.Second)
	for _, tenant := range []string{"acme", "fresh"} {
		if d := mustDecide(t, e, consume(tenant, "tokens", 15)); !d.Limits[0].WouldDeny || d.Limits[0].Used != 0 {
			t.Fatalf("15 of a full 10: %+v", d)
		}
	}
	w.db.AdvanceClock(t, time.Second)
	w.apply(t, config(100))
	for _, tenant := range []string{"acme", "fresh"} {
		want, err := e.Limits(t.Context(), tenant, "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.LimitsAt(t.Context(), tenant, "", want.DecidedAt)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s, %v (-said +got):\n%s", tenant, err, diff)
		}
	}
}

// The end of a hold does not say what its limits had used, and is still where a level begins.
func TestALevelOfThePastMayBeginWithTheChargeOfAHold(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC), `
meters: {tokens: {unit: token, on_expiry: charge}}
plans: {all: {limits: [{name: pool, meter: tokens, algorithm: gcra, burst: 10, rate: 1/1h}]}}
tenants: {acme: {plan: all}}
`)
	e := w.engine(t, nil)
	held := consume("acme", "tokens", 6)
	held.Kind, held.TTL = ledger.KindHold, time.Second
	mustDecide(t, e, held)
	w.db.AdvanceClock(t, time.Second)
	want := mustDecide(t, e, consume("acme", "tokens", 3))
	got, err := NewReader(w.db.Service(t), w.catalog).LimitsAt(t.Context(), "acme", "", want.DecidedAt)
	if err != nil || got.Limits[0].Used != 9 || want.Limits[0].Used != 9 {
		t.Errorf("used = %d, then %d of the same instant (%v), want 9", want.Limits[0].Used, got.Limits[0].Used, err)
	}
	w.verify(t)
}

// A level that was not full for longer than is looked back is known to a unit.
func TestALongBusyLevelOfThePastIsKnownToAUnit(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC), `
meters: {tokens: {unit: token}}
plans:
  busy:
    limits:
      - {name: bucket, meter: tokens, algorithm: token_bucket, capacity: 10000, refill: 1/7s}
      - {name: queue,  meter: tokens, algorithm: leaky_bucket, rate: 1/3s, queue: 10000}
      - {name: quick,  meter: tokens, algorithm: token_bucket, capacity: 10, refill: 10/1s}
tenants: {acme: {plan: busy}}
`)
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	for range (replayEntries + 10) / 5 {
		w.db.AdvanceClock(t, 1300*time.Millisecond)
		requests := make([]Request, 5)
		for i := range requests {
			requests[i] = consume("acme", "tokens", 2)
		}
		for _, result := range e.DecideAll(t.Context(), requests) {
			if result.Err != nil || !result.Decision.Allowed {
				t.Fatal(result)
			}
		}
	}
	want, err := e.Limits(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	got, err := x.LimitsAt(t.Context(), "acme", "", want.DecidedAt)
	if err != nil {
		t.Fatal(err)
	}
	for i, approximate := range []bool{true, true, false} {
		g, s := &got.Limits[i], &want.Limits[i]
		if off := g.Used - s.Used; g.Approximate != approximate || off < 0 || off > 1 || (!approximate && off != 0) {
			t.Errorf("limit %s has %d used, approximate %t; said was %d", g.Name, g.Used, g.Approximate, s.Used)
		}
	}
}

// An instant that is to come, or before there was anything to say, is a fault of the
// request.
func TestLimitsHaveNoFutureAndNoPrehistory(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC)
	w := newWorldAt(t, start, callsConfig)
	x := NewReader(w.db.Service(t), w.catalog)
	if _, err := x.LimitsAt(t.Context(), "acme", "", start); err != nil {
		t.Error(err)
	}
	for _, at := range []time.Time{start.Add(time.Microsecond), start.Add(-time.Microsecond)} {
		_, err := x.LimitsAt(t.Context(), "acme", "", at)
		if e := wantCode(t, err, CodeInvalidRequest); e.Faults[0].Field != "at" {
			t.Errorf("at %v: %v", at, e)
		}
	}
}

// A change of a plan is dated before it is committed, and until then decisions go on
// under the version before: at an instant behind which one still did, that is what held.
func TestAPlanHoldsFromTheFirstDecisionUnderIt(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC)
	config := "meters: {calls: {unit: call}}\nplans: {all: {limits: [{name: log, meter: calls, algorithm: sliding_log, limit: %d, window: 1h}]}}\ntenants: {acme: {plan: all}}\n"
	w := newWorldAt(t, start, fmt.Sprintf(config, 10))
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	mustDecide(t, e, consume("acme", "calls", 1))
	w.db.AdvanceClock(t, 2*time.Second)
	mustDecide(t, e, consume("acme", "calls", 1))
	w.db.AdvanceClock(t, 2*time.Second)
	w.apply(t, fmt.Sprintf(config, 20))
	w.db.Exec(t, "set session_replication_role = replica; update quotad.plan_version set created_at = created_at - interval '3 seconds' where version = 2")
	mustDecide(t, e, consume("acme", "calls", 1))
	for seconds, want := range map[int]int64{0: 10, 1: 10, 2: 10, 3: 20, 4: 20} {
		got, err := x.LimitsAt(t.Context(), "acme", "", start.Add(time.Duration(seconds)*time.Second))
		if err != nil || got.Limits[0].Limit != want {
			t.Errorf("after %d s: %+v, %v; want the limit %d", seconds, got.Limits, err, want)
		}
	}
}

// A clock that falls back between a plan and its tenant makes no error of the past.
func TestATenantMayBeDatedBeforeItsPlan(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC)
	const plan = "meters: {calls: {unit: call}}\nplans: {all: {limits: [{name: log, meter: calls, algorithm: sliding_log, limit: 7, window: 1h}]}}\n"
	w := newWorldAt(t, start, plan)
	w.db.AdvanceClock(t, -time.Minute)
	w.apply(t, plan+"tenants: {acme: {plan: all}}\n")
	got, err := NewReader(w.db.Service(t), w.catalog).LimitsAt(t.Context(), "acme", "", start.Add(-time.Minute))
	if err != nil || got.Limits[0].Limit != 7 {
		t.Errorf("limits at the tenant's first instant = %+v, %v; want those of the plan", got, err)
	}
}

// While decisions pour in, what is said of an instant is what is said of it afterwards,
// and usage up to now is whole: series that begin where others ended miss nothing.
func TestWhatIsReadUpToNowIsFinal(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "meters: {calls: {unit: call}}\nplans: {all: {limits: [{name: log, meter: calls, algorithm: sliding_log, limit: 1000000, window: 1h}]}}\ntenants: {acme: {plan: all}}\n")
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	ctx, cancel := context.WithCancel(t.Context())
	var writers errgroup.Group
	for range 4 {
		writers.Go(func() error {
			for ctx.Err() == nil {
				for _, result := range e.DecideAll(t.Context(), []Request{consume("acme", "calls", 1), consume("acme", "calls", 2)}) {
					if result.Err != nil {
						return result.Err
					}
				}
			}
			return nil
		})
	}
	q := UsageQuery{Tenant: "acme", Meter: "calls"}
	var parts int64
	for range 100 {
		part, err := x.Usage(ctx, q)
		if err != nil {
			t.Fatal(err)
		}
		parts += part.Total
		q.From = part.To
		said, err := e.Limits(ctx, "acme", "")
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.LimitsAt(ctx, "acme", "", said.DecidedAt)
		if diff := cmp.Diff(said.Limits, got.Limits); err != nil || diff != "" {
			t.Fatalf("at %v, %v (-said +got):\n%s", said.DecidedAt, err, diff)
		}
	}
	cancel()
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
	last, err := x.Usage(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	parts += last.Total
	var want int64
	err = w.db.Owner(t).QueryRow(t.Context(), "select sum(units) from quotad.entry").Scan(&want)
	if err != nil || parts != want {
		t.Errorf("the parts sum to %d, the entries to %d, %v", parts, want, err)
	}
}
