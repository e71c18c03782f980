package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

const idleConfig = `
meters:
  calls:  {unit: call}
  logins: {unit: login}
plans:
  each:
    limits:
      - {name: fast,   meter: calls,  algorithm: token_bucket, capacity: 5, refill: 1/1m, scope: subject}
      - {name: smooth, meter: calls,  algorithm: gcra, burst: 5, rate: 1/1m, scope: subject}
      - {name: shape,  meter: calls,  algorithm: leaky_bucket, queue: 5, rate: 1/1m, scope: subject}
      - {name: all,    meter: calls,  algorithm: token_bucket, capacity: 1000000, refill: 1000000/1s}
      - {name: slow,   meter: logins, algorithm: token_bucket, capacity: 3, refill: 1/240h, scope: subject}
tenants:
  acme:   {plan: each}
  globex: {plan: each}
`

// idleWorld is a world whose clock stands, and an engine on it.
func idleWorld(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorldAt(t, time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC), idleConfig)
	return w, w.engine(t, nil)
}

// removeAllIdle looks through all levels once, and returns in how many steps.
func removeAllIdle(t *testing.T, e *Engine) (steps int) {
	t.Helper()
	r := newRunner(e)
	defer r.close()
	if err := r.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	var round idleRound
	for now := time.Now(); round.next.IsZero(); steps++ {
		r.removeIdle(t.Context(), &round, now)
	}
	if round.after != (totalRef{}) {
		t.Fatal("a step failed: see the log")
	}
	return steps
}

// levels counts the kept levels by limit.
func (w *world) levels(t *testing.T) map[string]int {
	t.Helper()
	rows, err := w.db.Owner(t).Query(t.Context(), "select l.key, count(*) from quotad.meter_total t cross join lateral json_each(t.levels) l group by l.key")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			t.Fatal(err)
		}
		counts[name] = n
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return counts
}

// A flood of subjects that come once must not fill the disk with levels that say nothing,
// and removing them must not open a limit: once a clean-up that took all buckets turned a
// limiter off for months.
func TestIdleLevelsAreRemovedAndLimitsHoldAfterwards(t *testing.T) {
	t.Parallel()
	w, e := idleWorld(t)
	const flood = 2 * idleStep
	var requests []Request
	for i := range flood {
		requests = append(requests, by(fmt.Sprint("once-", i), consume("acme", "calls", 1)))
	}
	for i, r := range e.DecideAll(t.Context(), requests) {
		if r.Err != nil || !r.Decision.Allowed {
			t.Fatalf("request %d: %+v", i, r)
		}
	}
	exhausted := by("mallory", consume("acme", "logins", 1))
	for range 3 {
		mustDecide(t, e, exhausted)
	}
	if n := w.levels(t); n["fast"] != flood || n["slow"] != 1 {
		t.Fatalf("levels before: %v", n)
	}
	w.db.AdvanceClock(t, idleMin-time.Minute)
	removeAllIdle(t, e)
	if n := w.levels(t); n["fast"] != flood {
		t.Errorf("levels that were full for less than %v were removed: %v are left", idleMin, n)
	}
	w.db.AdvanceClock(t, time.Hour)
	if steps := removeAllIdle(t, e); steps <= flood/idleStep {
		t.Errorf("%d steps: each is to be small", steps)
	}
	if n := w.levels(t); n["fast"] != 0 || n["smooth"] != 0 || n["shape"] != 0 || n["slow"] != 1 || n["all"] != 1 {
		t.Errorf("levels after: %v; want only the tenant's own, and the one that still denies", n)
	}
	if d := mustDecide(t, e, exhausted); d.Allowed || d.Limits[0].Used != 3 {
		t.Errorf("the exhausted subject got %+v", d)
	}
	for i := range 6 {
		if d := mustDecide(t, e, by("once-7", consume("acme", "calls", 1))); d.Allowed != (i < 5) {
			t.Errorf("call %d of a subject whose level was removed: %+v", i, d)
		}
	}
	var totals int
	err := w.db.Owner(t).QueryRow(t.Context(), "select count(*) from quotad.meter_total where subject_id <> 0").Scan(&totals)
	if err != nil || totals != flood+1 {
		t.Errorf("%d totals of subjects are kept (%v), want all %d", totals, err, flood+1)
	}
	w.verify(t)
}

// Whoever works on a tenant has its account; the clean-up neither waits nor goes on without.
func TestIdleLevelsOfALockedTenantAreLeftForLater(t *testing.T) {
	t.Parallel()
	w, e := idleWorld(t)
	for _, tenant := range []string{"acme", "globex"} {
		mustDecide(t, e, by("ann", consume(tenant, "calls", 1)))
	}
	w.db.AdvanceClock(t, idleMin+time.Hour)
	outsider := w.db.Hold(t, "acme")
	removeAllIdle(t, e)
	if n := w.levels(t); n["fast"] != 1 {
		t.Errorf("levels while one of two tenants is locked: %v, want its own", n)
	}
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	removeAllIdle(t, e)
	if n := w.levels(t); n["fast"] != 0 {
		t.Errorf("levels afterwards: %v", n)
	}
	w.verify(t)
}

// Full for a day, not idle for a day: a clock that falls back finds what it left.
func TestALevelThatWasFilledWithinTheDayIsKept(t *testing.T) {
	t.Parallel()
	w, e := idleWorld(t)
	w.apply(t, strings.Replace(idleConfig, "refill: 1/1m", "refill: 1/4h", 1))
	mustDecide(t, e, by("ann", consume("acme", "calls", 5)))
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{idleMin + time.Hour, 1}, {19*time.Hour - time.Second, 1}, {time.Second, 0}} {
		w.db.AdvanceClock(t, c.after)
		removeAllIdle(t, e)
		if n := w.levels(t); n["fast"] != c.want {
			t.Errorf("%v later: levels %v, want %d of fast", c.after, n, c.want)
		}
	}
	w.verify(t)
}

// Under the plan in force, not under the one that wrote it.
func TestALevelThatTheNewPlanLeavesUsedIsKept(t *testing.T) {
	t.Parallel()
	w, e := idleWorld(t)
	mustDecide(t, e, by("ann", consume("acme", "calls", 5)))
	w.apply(t, strings.Replace(idleConfig, "refill: 1/1m", "refill: 1/100h", 1))
	w.db.AdvanceClock(t, idleMin+time.Hour)
	removeAllIdle(t, e)
	if n := w.levels(t); n["fast"] != 1 || n["smooth"] != 0 {
		t.Errorf("levels: %v; want fast kept, which fills in 500 h now", n)
	}
	w.verify(t)
}

// What is missing is right if it says nothing, also after the plan has changed, and also
// once the subject comes back; otherwise it is found.
func TestVerifyTellsARemovedLevelFromALostOne(t *testing.T) {
	t.Parallel()
	w, e := idleWorld(t)
	mustDecide(t, e, by("ann", consume("acme", "calls", 1)))
	mustDecide(t, e, by("ann", consume("acme", "logins", 1)))
	w.db.AdvanceClock(t, idleMin+time.Hour)
	mustDecide(t, e, by("bob", consume("acme", "calls", 1)))
	removeAllIdle(t, e)
	w.verify(t)
	w.apply(t, strings.Replace(idleConfig, "capacity: 5, refill: 1/1m", "capacity: 50, refill: 1/100h", 1))
	w.verify(t)
	d := mustDecide(t, e, by("ann", consume("acme", "calls", 1)))
	if !d.Allowed || d.Limits[0].Used != 1 {
		t.Errorf("after a raise the removed level is %+v, want it to be new", d.Limits[0])
	}
	why, err := NewReader(w.db.Service(t), w.catalog).ExplainEntry(t.Context(), "acme", d.Receipt.Seq)
	if err != nil || !why.Consistent {
		t.Errorf("a decision on a removed level is explained by %+v, %v", why, err)
	}
	w.verify(t)
	for name, lost := range map[string]string{
		"of another subject, not full": "subject_id = 2 and levels::jsonb ? 'fast'",
		"that still denies":            "levels::jsonb ? 'slow'",
		"of the tenant, full as it is": "levels::jsonb ? 'all'",
	} {
		w.db.Exec(t, "create table public.lost as select * from quotad.meter_total where "+lost)
		w.db.Exec(t, "update quotad.meter_total set levels = (levels::jsonb - '{fast,slow,all}'::text[])::json where "+lost)
		if found := w.findings(t); len(found) != 1 || !strings.Contains(found[0].Detail, "is missing") {
			t.Errorf("a lost level %s: findings %v", name, found)
		}
		w.db.Exec(t, `update quotad.meter_total t set levels = l.levels from public.lost l
			where t.tenant_id = l.tenant_id and t.meter_id = l.meter_id and t.subject_id = l.subject_id`)
		w.db.Exec(t, "drop table public.lost")
	}
	w.verify(t)
}

// What is removed answers as what was kept, at any later instant.
func TestALevelThatMayBeForgottenAnswersAsAFreshOne(t *testing.T) {
	t.Parallel()
	forgotten := 0
	rapid.Check(t, func(t *rapid.T) {
		units, per := rapid.Int64Range(0, 20).Draw(t, "units"), rapid.Int64Range(1, 100*second).Draw(t, "per")
		rate := catalog.Rate{Units: rapid.Int64Range(0, 9).Draw(t, "rate"), PerMicros: per}
		plan := &catalog.Plan{Name: "p", VersionID: 1, Limits: []catalog.Limit{{
			Name: "l", Meter: "m", Scope: catalog.ScopeSubject, Mode: catalog.ModeEnforce, Since: 1,
			Capacity: units, Burst: units, Queue: units, Rate: rate, Refill: rate,
			Algorithm: rapid.SampledFrom([]catalog.Algorithm{catalog.TokenBucket, catalog.GCRA, catalog.LeakyBucket}).Draw(t, "algorithm"),
		}}}
		l := compilePlan(plan, nil).limitNamed("m", "l")
		now, v := noon, level{}
		for range rapid.IntRange(1, 10).Draw(t, "spends") {
			now += rapid.Int64Range(0, 50*second).Draw(t, "pause")
			v.spend(l, plan, ledger.KindConsume, now, 0, rapid.Int64Range(1, 20).Draw(t, "cost"))
		}
		now += rapid.Int64Range(0, 3000*second).Draw(t, "idle")
		if !l.forgettable(&v, now) {
			return
		}
		forgotten++
		now += rapid.Int64Range(0, 100*second).Draw(t, "then")
		cost := rapid.Int64Range(1, 20).Draw(t, "next cost")
		kept, fresh := View{NowMicros: now, State: v.State}, View{NowMicros: now}
		if a, b := l.rule.Used(kept), l.rule.Used(fresh); a != b {
			t.Fatalf("%+v: used %d, and %d of a fresh one", v, a, b)
		}
		if a, b := l.rule.Take(kept, cost), l.rule.Take(fresh, cost); a != b {
			t.Fatalf("%+v: comes to %+v, and a fresh one to %+v", v, a, b)
		}
	})
	if forgotten == 0 {
		t.Error("no level was ever full")
	}
}

// What was written within the day stays, whatever says so: here a reversal, after the total
// has not counted for long and under a plan that has changed since.
func TestALevelThatWasGivenBackToWithinTheDayIsKept(t *testing.T) {
	t.Parallel()
	w, e := idleWorld(t)
	d := mustDecide(t, e, by("ann", consume("acme", "calls", 5)))
	w.db.AdvanceClock(t, idleMin+time.Hour)
	mustDecide(t, e, Request{Tenant: "acme", Kind: ledger.KindReverse, Seq: d.Receipt.Seq, Key: "back"})
	w.apply(t, strings.Replace(idleConfig, "capacity: 5, refill: 1/1m", "capacity: 4, refill: 1/1m", 1))
	w.db.AdvanceClock(t, time.Minute)
	removeAllIdle(t, e)
	if n := w.levels(t); n["fast"] != 1 {
		t.Errorf("levels a minute after they were written: %v", n)
	}
	w.verify(t)
	w.db.AdvanceClock(t, idleMin)
	removeAllIdle(t, e)
	if n := w.levels(t); n["fast"] != 0 {
		t.Errorf("levels a day after they were written: %v", n)
	}
	w.verify(t)
}
