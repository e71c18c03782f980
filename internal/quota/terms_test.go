package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

var termsStart = time.Date(2026, 5, 31, 12, 0, 0, 0, time.UTC)

// bucketConfig has one bucket, and one limit by a window beside it.
func bucketConfig(capacity int64, refill string) string {
	return fmt.Sprintf(`
meters: {tokens: {unit: token}}
plans:
  pro:
    limits:
      - {name: pool, meter: tokens, algorithm: token_bucket, capacity: %d, refill: %s}
`, capacity, refill)
}

func tokens(cost int64) Request { return consume("acme", "tokens", cost) }

func (w *world) tenant(t testing.TB, fields string) {
	t.Helper()
	w.apply(t, "tenants: {acme: {"+fields+"}}")
}

// pool is how the one limit of acme stands.
func pool(t testing.TB, e *Engine) LimitResult {
	t.Helper()
	limits, err := e.Limits(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	return limits.Limits[0]
}

// wantRemaining checks what is left of the one limit, on an instance that has decided for
// the tenant before and on one that has not.
func wantRemaining(t testing.TB, w *world, e *Engine, when string, want int64) {
	t.Helper()
	if got := pool(t, e).Remaining; got != want {
		t.Errorf("%s: %d remain, want %d", when, got, want)
	}
	if got := pool(t, w.engine(t, nil)).Remaining; got != want {
		t.Errorf("%s, a new instance: %d remain, want %d", when, got, want)
	}
}

// Time counts at the rate that was in force in it, whenever the level is next used.
func TestALevelRefillsAtTheRateOfItsTime(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, termsStart, bucketConfig(100, "1/1s"))
	w.tenant(t, "plan: pro")
	e := w.engine(t, nil)
	mustDecide(t, e, tokens(100))
	w.db.AdvanceClock(t, 10*time.Second)
	w.apply(t, bucketConfig(100, "1/10s"))
	w.db.AdvanceClock(t, time.Second)
	wantRemaining(t, w, e, "a second after the rate was lowered", 10)
	// 10.1 are there: what is missing to 11 takes nine seconds at the new rate.
	if d := mustDecide(t, e, tokens(11)); d.Allowed || *d.RetryMS != 9_000 {
		t.Errorf("11 tokens: allowed %v, wait %v, want 9000 ms", d.Allowed, orNone(d.RetryMS))
	}
	w.db.AdvanceClock(t, 9*time.Second-time.Microsecond)
	if d := mustDecide(t, e, tokens(11)); d.Allowed || *d.RetryMS != 1 {
		t.Errorf("11 tokens a microsecond early: allowed %v, wait %v", d.Allowed, orNone(d.RetryMS))
	}
	w.db.AdvanceClock(t, time.Microsecond)
	if d := mustDecide(t, e, tokens(11)); !d.Allowed {
		t.Error("11 tokens are denied after their wait")
	}
	w.verify(t)
}

// What was lost to a lower capacity does not come back with a higher one, used or not.
func TestALevelIsClampedByEachCapacityThatWasInForce(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, termsStart, bucketConfig(100, "1/1s"))
	w.tenant(t, "plan: pro")
	e := w.engine(t, nil)
	mustDecide(t, e, tokens(50))
	w.apply(t, bucketConfig(7, "1/1s"))
	w.db.AdvanceClock(t, time.Minute)
	w.apply(t, bucketConfig(100, "1/1s"))
	w.db.AdvanceClock(t, 3*time.Second)
	wantRemaining(t, w, e, "three seconds after the capacity is back", 10)
	mustDecide(t, e, tokens(10))
	w.verify(t)
}

// A tenant that had another plan meanwhile, and used nothing of it, had its rate.
func TestALevelRefillsAtTheRateOfThePlanBetween(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, termsStart, bucketConfig(1000, "1/1s")+`
  slow: {limits: [{name: pool, meter: tokens, algorithm: token_bucket, capacity: 1000, refill: 1/10s}]}
  none: {limits: []}
`)
	w.tenant(t, "plan: pro")
	e := w.engine(t, nil)
	mustDecide(t, e, tokens(1000))
	w.db.AdvanceClock(t, 10*time.Second) // 10
	w.tenant(t, "plan: slow")
	w.db.AdvanceClock(t, 100*time.Second) // 10
	w.tenant(t, "plan: none")
	w.db.AdvanceClock(t, time.Hour) // there is no rate
	w.tenant(t, "plan: pro")
	w.db.AdvanceClock(t, 5*time.Second) // 5
	wantRemaining(t, w, e, "back on the first plan", 25)
	mustDecide(t, e, tokens(25))
	w.verify(t)
}

// The instants of a switch and of an override cut the time of a level where they are, and
// nobody has to be there.
func TestALevelIsCarriedOverDatedChanges(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, termsStart, bucketConfig(10_000, "1/1s")+`
  fast: {limits: [{name: pool, meter: tokens, algorithm: token_bucket, capacity: 10000, refill: 10/1s}]}
`)
	w.tenant(t, "plan: pro, overrides: [{name: pool, refill: 2/1s, from: 2026-05-31T12:00:10Z, until: 2026-05-31T12:00:20Z, reason: r}]")
	w.tenant(t, "plan: fast, plan_from: next_period") // at midnight
	e := w.engine(t, nil)
	mustDecide(t, e, tokens(10_000))
	w.db.AdvanceClock(t, 30*time.Second)
	wantRemaining(t, w, e, "behind the override", 10+20+10)
	w.db.SetClock(t, time.Date(2026, 6, 1, 0, 0, 0, 0, time.UTC).Add(-time.Microsecond))
	mustDecide(t, e, tokens(10_000))
	w.db.AdvanceClock(t, 7*time.Second+time.Microsecond)
	wantRemaining(t, w, e, "seven seconds into the next period", 70)
	if limits, err := e.Limits(t.Context(), "acme", ""); err != nil || limits.Standing.Plan != "fast" {
		t.Errorf("the limits are those of plan %s, %v", limits.Standing.Plan, err)
	}
	mustDecide(t, e, tokens(70))
	w.verify(t)
}

// A bucket whose limit was something else meanwhile starts full, once, whether or not it was
// used as that.
func TestALimitThatIsMadeAnewStartsFullOnce(t *testing.T) {
	t.Parallel()
	for _, between := range []string{
		"algorithm: gcra, burst: 50, rate: 1/1h", "algorithm: token_bucket, capacity: 50, refill: 1/1h, scope: subject",
		"algorithm: sliding_log, limit: 50, window: 1h", // which keeps no level: the limit is a new one all the same
	} {
		w := newWorldAt(t, termsStart, bucketConfig(100, "1/1h"))
		w.tenant(t, "plan: pro")
		e := w.engine(t, nil)
		mustDecide(t, e, tokens(100))
		w.apply(t, "plans: {pro: {limits: [{name: pool, meter: tokens, "+between+"}]}}")
		w.db.AdvanceClock(t, time.Second)
		w.apply(t, bucketConfig(100, "1/1h"))
		wantRemaining(t, w, e, between, 100)
		mustDecide(t, e, tokens(30))
		w.apply(t, bucketConfig(101, "1/1h"))
		wantRemaining(t, w, e, between+", then another number", 70)
		w.verify(t)
	}
}

// A tenant's plan may lack a limit for a while, or count it by another meter. The level goes
// on from where it stood, although others were written beside it; that of the other meter
// starts full, and so does the first one after it, whatever each left behind.
func TestALevelStandsWhileItsLimitIsGoneAndNotOnAnotherMeter(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"tenant", "subject"} {
		config := "meters: {tokens: {unit: token}, calls: {unit: call}}\nplans:\n"
		for _, plan := range []string{"none", "tokens", "calls"} {
			config += "  " + plan + ":\n    limits:\n"
			limit := func(name, meter string, capacity int) {
				config += fmt.Sprintf("      - {name: %s, meter: %s, algorithm: token_bucket, capacity: %d, refill: 1/1h, scope: %s}\n", name, meter, capacity, scope)
			}
			limit("beside", "tokens", 1000)
			limit("other", "calls", 1000)
			if plan != "none" {
				limit("pool", plan, 100)
			}
		}
		w := newWorldAt(t, termsStart, config)
		w.tenant(t, "plan: tokens")
		e := w.engine(t, nil)
		spend := func(meter string, cost, remaining int64) {
			t.Helper()
			w.db.AdvanceClock(t, time.Second)
			d := mustDecide(t, e, by("ann", consume("acme", meter, cost)))
			if l := d.Limits[len(d.Limits)-1]; l.Name == "pool" && l.Remaining != remaining || l.Name != "pool" && remaining >= 0 {
				t.Errorf("scope %s: after %d of %s the pool is %+v, want %d to remain", scope, cost, meter, l, remaining)
			}
			w.verify(t)
		}
		const noPool = -1
		spend("tokens", 60, 40)
		w.tenant(t, "plan: none")
		spend("tokens", 1, noPool)
		w.tenant(t, "plan: tokens")
		spend("tokens", 10, 30)
		w.tenant(t, "plan: calls")
		spend("calls", 5, 95)
		spend("tokens", 1, noPool)
		w.tenant(t, "plan: tokens")
		w.verify(t)
		spend("tokens", 20, 80)
		w.tenant(t, "plan: calls")
		spend("calls", 1, 99)
		w.tenant(t, "plan: tokens")
		spend("tokens", 1, 99)
	}
}

// A level is only carried to the plan in force when it is spent from: a row that is written
// for a hold keeps it as its entry left it.
func TestAHoldLeavesTheLevelBesideItAsItWasWritten(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, termsStart, bucketConfig(100, "1/1s"))
	w.tenant(t, "plan: pro")
	e := w.engine(t, nil)
	mustDecide(t, e, tokens(70))
	w.db.AdvanceClock(t, 10*time.Second)
	w.apply(t, bucketConfig(80, "1/2s"))
	held := tokens(5)
	held.Kind, held.TTL = ledger.KindHold, time.Hour
	mustDecide(t, e, held)
	w.verify(t)
	w.db.AdvanceClock(t, 10*time.Second)
	wantRemaining(t, w, e, "after ten seconds of each rate", 30+10+5-5)
}

// A leaky bucket's promises stand, whatever its rate becomes: the next departure is behind
// them, at the new rate.
func TestPromisedDeparturesNeverMove(t *testing.T) {
	t.Parallel()
	config := func(rate string) string {
		return "meters: {tokens: {unit: token}}\nplans: {pro: {limits: [{name: pool, meter: tokens, algorithm: leaky_bucket, rate: " + rate + ", queue: 1000}]}}"
	}
	w := newWorldAt(t, termsStart, config("1/10s"))
	w.tenant(t, "plan: pro")
	e := w.engine(t, nil)
	if d := mustDecide(t, e, tokens(6)); *d.DelayMS != 60_000 {
		t.Fatalf("the sixth leaves after %d ms", *d.DelayMS)
	}
	w.db.AdvanceClock(t, 20*time.Second)
	w.apply(t, config("1/1s"))
	if d := mustDecide(t, e, tokens(1)); *d.DelayMS != 41_000 {
		t.Errorf("behind a promise of 40 s, the next leaves after %d ms, want 41000", *d.DelayMS)
	}
	w.db.AdvanceClock(t, time.Minute)
	w.apply(t, config("1/2s"))
	if d := mustDecide(t, e, tokens(1)); *d.DelayMS != 2_000 {
		t.Errorf("when all have left, the next leaves after %d ms, want 2000", *d.DelayMS)
	}
	w.verify(t)
}

// An override holds from its first instant until just before its end, decides the very next
// call, and is named in answers, entries and explanations.
func TestAnOverrideHoldsExactlyAsLongAsItSays(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, termsStart, `
meters: {tokens: {unit: token}}
plans: {pro: {limits: [{name: pool, meter: tokens, algorithm: sliding_log, limit: 10, window: 1h}]}}
`)
	w.tenant(t, "plan: pro, overrides: [{name: pool, limit: 50, from: 2026-05-31T12:10:00Z, until: 2026-05-31T12:20:00Z, reason: launch week}]")
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	from, until := termsStart.Add(10*time.Minute), termsStart.Add(20*time.Minute)
	override := &OverrideResult{Until: until, Reason: "launch week"}
	for _, c := range []struct {
		at      time.Time
		cost    int64
		limit   int64
		allowed bool
	}{
		{termsStart, 10, 10, true},
		{from.Add(-time.Microsecond), 1, 10, false},
		{from, 30, 50, true},
		{until.Add(-time.Microsecond), 10, 50, true},
		{until.Add(-time.Microsecond), 1, 50, false},
		{until, 1, 10, false},
	} {
		w.db.SetClock(t, c.at)
		d := mustDecide(t, e, tokens(c.cost))
		l := d.Limits[0]
		want := override
		if c.limit == 10 {
			want = nil
		}
		if d.Allowed != c.allowed || l.Limit != c.limit || !cmp.Equal(l.Override, want) {
			t.Errorf("%d at %s: allowed %v of %d by %+v, want %v of %d by %+v", c.cost, c.at, d.Allowed, l.Limit, l.Override, c.allowed, c.limit, want)
		}
		if err := e.FlushDenials(t.Context()); err != nil {
			t.Fatal(err)
		}
		explained, err := x.ExplainRequest(t.Context(), "acme", d.RequestID)
		if c.allowed { // found by its entry: the clock of its id is not that of the test
			explained, err = x.ExplainEntry(t.Context(), "acme", d.Receipt.Seq)
		}
		if err != nil || !explained.Consistent || *explained.Limits[0].Limit != c.limit {
			t.Errorf("explained: %+v, %v, want a limit of %d", explained, err, c.limit)
		}
	}
	set := w.entries(t, "acme")[0].OverrideSetID
	w.tenant(t, "plan: pro, overrides: []")
	for _, e := range w.entries(t, "acme") {
		if set == 0 || e.OverrideSetID != set {
			t.Errorf("entry %d names override set %d, want %d", e.Seq, e.OverrideSetID, set)
		}
	}
	for at, limit := range map[time.Time]int64{from.Add(-time.Microsecond): 10, from: 50, until.Add(-time.Microsecond): 50, until: 10} {
		if then, err := x.LimitsAt(t.Context(), "acme", "", at); err != nil || then.Limits[0].Limit != limit {
			t.Errorf("limits at %s: %+v, %v, want a limit of %d", at, then.Limits, err, limit)
		}
	}
	w.verify(t)
}

// What the overrides said is part of what the chain covers.
func TestAnEditedOverrideIsFound(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ tamper, says string }{
		{"update quotad.override_set set overrides = replace(overrides::text, '50', '51')::jsonb", "does not match its hash"},
		{"delete from quotad.override_set", "names override set 1, which does not exist"},
		{"update quotad.override_set set overrides = '[7]'", "override set 1"},
	} {
		w := newWorldAt(t, termsStart, bucketConfig(10, "1/1s"))
		w.tenant(t, "plan: pro, overrides: [{name: pool, capacity: 50, until: 2027-01-01T00:00:00Z, reason: r}]")
		e, stop := w.stoppableEngine(t, nil)
		mustDecide(t, e, tokens(30))
		stop()
		w.verify(t)
		w.db.Exec(t, "alter table quotad.override_set disable trigger all")
		w.db.Exec(t, c.tamper)
		if findings := w.findings(t); len(findings) == 0 || findings[0].Seq != 1 || !strings.Contains(findings[0].Detail, c.says) {
			t.Errorf("%s: found %v, want entry 1 and %q", c.tamper, findings, c.says)
		}
	}
}

// A simulation follows a tenant's overrides as the service does.
func TestASimulationFollowsOverrides(t *testing.T) {
	t.Parallel()
	config, err := catalog.ParseFile([]byte(bucketConfig(10, "1/1s")+`
tenants:
  acme:
    plan: pro
    overrides: [{name: pool, capacity: 100, refill: 20/1s, from: 2026-05-31T12:00:10Z, until: 2026-05-31T12:00:13Z, reason: r}]
`), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	snapshot, tenants, err := config.Compile()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSimulator(snapshot, snapshot.Plan("pro"), tenants)
	for _, c := range []struct {
		after   time.Duration
		cost    int64
		allowed bool
	}{
		{0, 11, false},
		{5 * time.Second, 10, true},
		{12 * time.Second, 45, true}, // 5 at one a second, 40 at twenty
		{12 * time.Second, 1, false},
		{13 * time.Second, 1, true}, // of 20, which the plan's capacity cuts to 10
		{13 * time.Second, 10, false},
		{13 * time.Second, 9, true},
	} {
		r := tokens(c.cost)
		if d, err := s.Decide(termsStart.Add(c.after).UnixMicro(), &r); err != nil || d.Allowed != c.allowed {
			t.Errorf("%d after %s: %+v, %v, want allowed %v", c.cost, c.after, d.Limits, err, c.allowed)
		}
	}
}
