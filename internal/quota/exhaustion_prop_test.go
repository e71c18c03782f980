package quota

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/cache"
	"github.com/quotad/quotad/internal/catalog"
)

// exhaustionWorld is an instance that remembers denials, over a ledger that another one
// spends from and reconfigures as well.
type exhaustionWorld struct {
	desk    *desk
	memory  *exhaustion
	era     era
	now     int64               // micros, of the database's clock and of the monotonic one
	denied  map[string]deniedAt // the newest fresh denial of each question
	foreign bool                // another instance has changed the plan since it was last read
}

type deniedAt struct {
	askedAt, toldAt int64
	quiet           bool // nothing has happened since
}

func (w *exhaustionWorld) instant(micros int64) time.Time { return time.UnixMicro(micros) }

// happened notes that the ledger or the plan is another now.
func (w *exhaustionWorld) happened() {
	for q, d := range w.denied {
		d.quiet = false
		w.denied[q] = d
	}
}

// fresh is what the ledger says now, and changes nothing.
func (w *exhaustionWorld) fresh(t *rapid.T, atMicros int64, r Request) Decision {
	d, err := w.desk.decide(atMicros, dry(r))
	if err != nil {
		t.Fatalf("decide(%+v): %v", r, err)
	}
	return d
}

// ask asks the instance: its memory first, then the database, some time on either side
// of the decision.
func (w *exhaustionWorld) ask(t *rapid.T, r Request) {
	if d, ok := w.memory.recall(&r, w.era, w.instant(w.now)); ok {
		w.checkRecalled(t, r, d.decision)
		return
	}
	if w.foreign { // a batch sees the version that there is
		w.era.version++
		w.foreign = false
	}
	askedAt := w.now
	w.now += drawLag(t, "lag before")
	decision, err := w.desk.decide(w.now, r)
	if err != nil {
		t.Fatalf("decide(%+v): %v", r, err)
	}
	w.now += drawLag(t, "lag after")
	if decision.Allowed {
		w.happened()
		return
	}
	w.memory.remember(&r, remembered{
		deniedCall: deniedCall{decision: decision}, era: w.era, toldAt: w.instant(w.now),
	}, w.instant(askedAt))
	w.denied[fmt.Sprint(r)] = deniedAt{askedAt: askedAt, toldAt: w.now, quiet: true}
}

func (w *exhaustionWorld) checkRecalled(t *rapid.T, r Request, got Decision) {
	was, ok := w.denied[fmt.Sprint(r)]
	if got.Allowed || !ok || !repeatable(&r) {
		t.Fatalf("%+v was answered from memory with %+v", r, got)
	}
	if w.now-was.askedAt >= exhaustionMax.Microseconds() {
		t.Fatalf("%+v is still denied after %d µs", r, w.now-was.askedAt)
	}
	fresh := w.fresh(t, w.now, r)
	if fresh.Allowed && !w.foreign {
		t.Fatalf("%+v is denied from memory, and the ledger allows it", r)
	}
	if !was.quiet || w.foreign || got.RetryMS == nil {
		return
	}
	if late := *got.RetryMS - *fresh.RetryMS; late < 0 || late > (was.toldAt-was.askedAt)/1000+2 {
		t.Fatalf("%+v is told to wait %d ms, and the wait is %d ms", r, *got.RetryMS, *fresh.RetryMS)
	}
	if again := w.fresh(t, w.now+*got.RetryMS*1000, r); !again.Allowed {
		t.Fatalf("%+v is denied after its wait of %d ms", r, *got.RetryMS)
	}
	for i, l := range got.Limits {
		if l.ResetMS < fresh.Limits[i].ResetMS {
			t.Fatalf("%+v: reset after %d ms, and it is after %d ms", r, l.ResetMS, fresh.Limits[i].ResetMS)
		}
		if l.Violated && !fresh.Limits[i].Violated {
			t.Fatalf("%+v: limit %s is violated no more", r, l.Name)
		}
	}
}

func drawLag(t *rapid.T, label string) int64 {
	return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 20_000)).Draw(t, label)
}

// A remembered denial is one that the ledger would give as well, unless another instance
// has given something back; then it is gone within a second. What this instance changes
// itself ends it at once. Nothing is ever allowed from memory.
func TestRememberedDenialsAreWhatTheLedgerSaysWithinASecond(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plan := drawTightPlan(t)
		w := &exhaustionWorld{
			desk: newDesk(), memory: newExhaustion(), now: noon, denied: map[string]deniedAt{},
		}
		w.raise(plan, 0)
		draw := rapid.Custom(func(t *rapid.T) Request {
			r := by(rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "subject"),
				spending("calls", rapid.Int64Range(1, 3).Draw(t, "cost")))
			r.DryRun = rapid.IntRange(0, 9).Draw(t, "dry run") == 0
			if rapid.IntRange(0, 9).Draw(t, "keyed") == 0 {
				r.Key = "key"
			}
			return r
		})
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) { w.ask(t, draw.Draw(t, "request")) },
			"another spends": func(t *rapid.T) {
				if _, err := w.desk.decide(w.now, draw.Draw(t, "request")); err != nil {
					t.Fatal(err)
				}
				w.happened()
			},
			"another raises": func(t *rapid.T) {
				w.raise(plan, rapid.Int64Range(0, 20).Draw(t, "more"))
				w.foreign = true
				w.happened()
			},
			"this one raises": func(t *rapid.T) {
				w.raise(plan, rapid.Int64Range(0, 20).Draw(t, "more"))
				w.era.changes++
				w.happened()
			},
			"this one gives back": func(t *rapid.T) {
				w.desk.levels = map[keptLevel]level{}
				for i := range w.desk.entries {
					w.desk.entries[i].units = 0
				}
				w.memory.forget("acme")
				w.happened()
			},
			"time passes": func(t *rapid.T) {
				w.now += rapid.OneOf(rapid.Int64Range(0, 3000), rapid.Int64Range(0, 1_200_000)).Draw(t, "by")
			},
		})
	})
}

// drawTightPlan draws a plan of one or two enforced limits that are soon full, and let
// through again within seconds.
func drawTightPlan(t *rapid.T) *catalog.Plan {
	plan := &catalog.Plan{Name: "p", Version: 1, VersionID: 1}
	for i := range rapid.IntRange(1, 2).Draw(t, "limits") {
		span := rapid.Int64Range(second/20, 4*second).Draw(t, "span")
		rate := catalog.Rate{Units: 1, PerMicros: span}
		plan.Limits = append(plan.Limits, catalog.Limit{
			Name: fmt.Sprint("l", i), Meter: "calls",
			Algorithm: rapid.SampledFrom([]catalog.Algorithm{
				catalog.SlidingLog, catalog.SlidingCounter, catalog.FixedWindow,
				catalog.TokenBucket, catalog.GCRA, catalog.LeakyBucket,
			}).Draw(t, "algorithm"),
			Scope:  rapid.SampledFrom([]catalog.Scope{catalog.ScopeTenant, catalog.ScopeSubject}).Draw(t, "scope"),
			Window: catalog.Window{DurationMicros: span}, Rate: rate, Refill: rate,
		})
	}
	return plan
}

// raise gives the tenant a version of plan with its limits at three, and more.
func (w *exhaustionWorld) raise(plan *catalog.Plan, more int64) {
	changed := *plan
	changed.Version = int32(len(w.desk.versions))
	changed.VersionID = 1 + int64(changed.Version)
	changed.Limits = slices.Clone(plan.Limits)
	for i := range changed.Limits {
		l := &changed.Limits[i]
		l.Limit, l.Capacity, l.Burst, l.Queue = 3+more, 3+more, 3+more, 3+more
	}
	w.desk.plan(&changed)
}

// A wait is rounded up to milliseconds: what it stands for may be over just before.
func TestADenialStandsForLessThanItsShortestWait(t *testing.T) {
	t.Parallel()
	ms := func(n int64) *int64 { return &n }
	deny := func(reason Reason, limits ...LimitResult) *Decision { return &Decision{Reason: reason, Limits: limits} }
	for name, c := range map[string]struct {
		denial *Decision
		want   time.Duration // 0: it is not remembered
	}{
		"short":        {deny(ReasonQuotaExceeded, LimitResult{Violated: true, RetryMS: ms(500)}), 499 * time.Millisecond},
		"long":         {deny(ReasonQuotaExceeded, LimitResult{Violated: true, RetryMS: ms(3_600_000)}), time.Second},
		"no wait":      {deny(ReasonQuotaExceeded, LimitResult{Violated: true}), time.Second},
		"the shortest": {deny(ReasonQuotaExceeded, LimitResult{Violated: true, RetryMS: ms(700)}, LimitResult{Violated: true, RetryMS: ms(300)}), 299 * time.Millisecond},
		"held":         {deny(ReasonQuotaExceeded, LimitResult{Violated: true, RetryMS: ms(700)}, LimitResult{Held: 1}), 0},
		"over":         {deny(ReasonQuotaExceeded, LimitResult{Violated: true, RetryMS: ms(1)}), 0},
		"blocked":      {deny(ReasonBlocked, LimitResult{Violated: true}), 0},
		"suspended":    {deny(ReasonTenantSuspended), 0},
		"not in plan":  {deny(ReasonMeterNotInPlan), 0},
		"too large":    {deny(ReasonCostExceedsLimit, LimitResult{Violated: true}), 0},
	} {
		got, ok := standsFor(c.denial)
		if !ok {
			got = 0
		}
		if got != c.want {
			t.Errorf("%s: stands for %v, want %v", name, got, c.want)
		}
	}
}

// Waits that are told again run from when the clock was surely read, and by whole
// milliseconds: who waits them is never early.
func TestARememberedWaitIsNeverTooShort(t *testing.T) {
	t.Parallel()
	wait, reset := int64(800), int64(2)
	clockAt := time.UnixMicro(noon)
	x, r, started := newExhaustion(), spending("calls", 1), time.UnixMicro(noon)
	told := started.Add(20 * time.Millisecond)
	x.remember(&r, remembered{toldAt: told, deniedCall: deniedCall{decision: Decision{
		Reason: ReasonQuotaExceeded, RetryMS: &wait, ClockAt: clockAt,
		Limits: []LimitResult{{Violated: true, RetryMS: &wait, ResetMS: reset}},
	}}}, started)
	for passed, want := range map[time.Duration][2]int64{
		-10 * time.Millisecond:    {800, 2},
		0:                         {800, 2},
		999 * time.Microsecond:    {800, 2},
		1999 * time.Microsecond:   {799, 1},
		500 * time.Millisecond:    {300, 0},
		778999 * time.Microsecond: {22, 0},
	} {
		d, ok := x.recall(&r, era{}, told.Add(passed))
		if !ok {
			t.Errorf("after %v: forgotten", passed)
			continue
		}
		got := d.decision
		if *got.RetryMS != want[0] || *got.Limits[0].RetryMS != want[0] || got.Limits[0].ResetMS != want[1] {
			t.Errorf("after %v: told to wait %d and %d ms, reset after %d ms, want %d and %d",
				passed, *got.RetryMS, *got.Limits[0].RetryMS, got.Limits[0].ResetMS, want[0], want[1])
		}
		if ends := got.ClockAt.Add(time.Duration(*got.RetryMS) * time.Millisecond); !ends.Equal(clockAt.Add(800 * time.Millisecond)) {
			t.Errorf("after %v: the wait ends at %v", passed, ends)
		}
	}
	if _, ok := x.recall(&r, era{}, told.Add(779*time.Millisecond)); ok {
		t.Error("still denied when its wait may be over")
	}
}

// Questions that differ anywhere a decision looks must not share an answer.
func TestQuestionsThatDifferHaveDifferentDigests(t *testing.T) {
	t.Parallel()
	charge := func(meter string, cost int64) Charge { return Charge{Meter: meter, Cost: cost} }
	pools := func(meter string, pools map[string]int64) Charge { return Charge{Meter: meter, Pools: pools} }
	requests := []Request{
		{Tenant: "aa", Subject: "b", Charges: []Charge{charge("m", 1)}},
		{Tenant: "a", Subject: "ab", Charges: []Charge{charge("m", 1)}},
		{Tenant: "aab", Charges: []Charge{charge("m", 1)}},
		{Tenant: "aa", Subject: "b", Charges: []Charge{charge("m", 2)}},
		{Tenant: "aa", Subject: "b", Charges: []Charge{charge("m", 1), charge("m", 1)}},
		{Tenant: "aa", Subject: "b", Charges: []Charge{charge("m", 1), charge("n", 1)}},
		{Tenant: "aa", Subject: "b", Charges: []Charge{charge("n", 1), charge("m", 1)}},
		{Tenant: "aa", Subject: "b", Charges: []Charge{pools("m", map[string]int64{"a": 1})}},
		{Tenant: "aa", Subject: "b", Charges: []Charge{pools("m", map[string]int64{"b": 1})}},
		{Tenant: "aa", Subject: "b", Charges: []Charge{pools("m", map[string]int64{"a": 1, "b": 1})}},
	}
	seen := map[cache.Question]int{}
	for i := range requests {
		q := questionOf(&requests[i])
		if other, ok := seen[q]; ok {
			t.Errorf("%+v and %+v have one digest", requests[other], requests[i])
		}
		seen[q] = i
		if again := questionOf(&requests[i]); again != q {
			t.Errorf("%+v has two digests", requests[i])
		}
	}
}
