package quota

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
)

// 15 at once on a queue of 10 at 2 a second: 10 queue, 5 are denied, the last leaves
// after 5 s.
func TestALeakyBucketTellsEachRequestItsTurn(t *testing.T) {
	t.Parallel()
	d := newDesk(leakyLimit("turns", "calls", 10, perSecond(2)))
	var delays, waits []int64
	for range 15 {
		probe := d.must(t, noon, dry(spending("calls", 1)))
		got := d.must(t, noon, spending("calls", 1))
		if got.Allowed {
			delays = append(delays, *got.DelayMS)
		} else {
			waits = append(waits, *got.RetryMS)
		}
		if diff := cmp.Diff(got.DelayMS, probe.DelayMS); diff != "" {
			t.Errorf("a dry run's delay (-real +dry):\n%s", diff)
		}
	}
	if diff := cmp.Diff([]int64{500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000}, delays); diff != "" {
		t.Errorf("delays (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]int64{500, 500, 500, 500, 500}, waits); diff != "" {
		t.Errorf("waits of the denied (-want +got):\n%s", diff)
	}
}

// A departure is promised in the tenant's time, and the wait for it is told from the clock
// that its caller has, as every other wait is.
func TestADelayIsToldFromAClockThatFellBack(t *testing.T) {
	t.Parallel()
	d := newDesk(leakyLimit("turns", "calls", 10, perSecond(2)))
	d.must(t, noon, spending("calls", 1))
	got := d.must(t, noon-second, spending("calls", 1))
	if *got.DelayMS != 2000 || got.Limits[0].ResetMS != 2000 {
		t.Errorf("a second before noon, delay = %d, reset = %d, want 2000 for what goes at noon and a second",
			*got.DelayMS, got.Limits[0].ResetMS)
	}
}

// A request goes when its last bucket lets it go; a shadow bucket holds nobody up.
func TestTheDelayIsTheLongestOfTheEnforcingBuckets(t *testing.T) {
	t.Parallel()
	d := newDesk(
		leakyLimit("fast", "calls", 10, perSecond(10)), leakyLimit("slow", "calls", 10, perSecond(1)),
		inMode(catalog.ModeShadow, leakyLimit("shadow", "calls", 10, catalog.Rate{Units: 1, PerMicros: minute})),
		slidingLimit("log", "calls", 10, hours),
	)
	got := d.must(t, noon, spending("calls", 2))
	var delays []int64
	for _, l := range got.Limits {
		if l.DelayMS == nil {
			delays = append(delays, -1)
			continue
		}
		delays = append(delays, *l.DelayMS)
	}
	if diff := cmp.Diff([]int64{200, 2000, -1, -1}, delays); diff != "" || *got.DelayMS != 2000 {
		t.Errorf("delay = %d, want 2000; of the limits (-want +got):\n%s", *got.DelayMS, diff)
	}
}

func TestALevelGoesOnUnlessItsLimitIsANewOne(t *testing.T) {
	t.Parallel()
	gcra := catalog.Limit{Name: "pool", Meter: "calls", Algorithm: catalog.GCRA, Burst: 10, Rate: catalog.Rate{Units: 1, PerMicros: years}}
	slow := catalog.Rate{Units: 1, PerMicros: years}
	version := func(plan string, version, since int32, l catalog.Limit) *catalog.Plan {
		l.Since = since
		return &catalog.Plan{Name: plan, Version: version, VersionID: int64(version), Limits: []catalog.Limit{l}}
	}
	for _, c := range []struct {
		name string
		to   *catalog.Plan
		used int64
	}{
		{"the same version", version("pro", 1, 1, bucketLimit("pool", "calls", 10, slow)), 6},
		{"another number", version("pro", 2, 1, bucketLimit("pool", "calls", 20, slow)), 16},
		{"a lowered number", version("pro", 2, 1, bucketLimit("pool", "calls", 3, slow)), 0}, // level 4 is clamped to 3
		{"another algorithm", version("pro", 2, 2, gcra), 0},
		{"another algorithm and back", version("pro", 3, 3, bucketLimit("pool", "calls", 10, slow)), 0},
		{"another name", version("pro", 2, 2, bucketLimit("pool-2", "calls", 10, slow)), 0},
		{"another plan with a limit of that name", version("max", 7, 5, bucketLimit("pool", "calls", 10, slow)), 6},
		{"another plan and algorithm", version("max", 7, 5, gcra), 0},
	} {
		d := newDesk(bucketLimit("pool", "calls", 10, slow))
		d.must(t, noon, spending("calls", 6))
		d.plan(c.to)
		if got := d.must(t, noon, spending("calls", 0)); got.Limits[0].Used != c.used {
			t.Errorf("%s: %d used, want %d", c.name, got.Limits[0].Used, c.used)
		}
		// Once only: what is taken now goes on under the same version, and under later
		// ones of the same plan.
		if got := d.must(t, noon, spending("calls", 1)); got.Limits[0].Used != c.used+1 {
			t.Errorf("%s: %d used after one more, want %d", c.name, got.Limits[0].Used, c.used+1)
		}
		d.plan(c.to)
		if got := d.must(t, noon, spending("calls", 1)); got.Limits[0].Used != c.used+2 {
			t.Errorf("%s: %d used after two more, want %d", c.name, got.Limits[0].Used, c.used+2)
		}
	}
}

// waits is the wait of each limit, and of the decision last; -1 for none.
func waits(d Decision) (waits []int64) {
	for _, l := range d.Limits {
		waits = append(waits, orNone(l.RetryMS))
	}
	return append(waits, orNone(d.RetryMS))
}

func orNone(ms *int64) int64 {
	if ms == nil {
		return -1
	}
	return *ms
}

func TestTheWaitIsTheLongestOfTheViolatedLimits(t *testing.T) {
	t.Parallel()
	never := catalog.Rate{Units: 1, PerMicros: 1000 * years}
	log := slidingLimit("log", "calls", 10, hours)
	pool := bucketLimit("pool", "calls", 10, catalog.Rate{Units: 1, PerMicros: minute})
	fixed := catalog.Limit{
		Name: "day", Meter: "calls", Algorithm: catalog.FixedWindow, Limit: 10, Window: catalog.Window{Calendar: catalog.CalendarDay},
	}
	for _, c := range []struct {
		name   string
		limits []catalog.Limit
		cost   int64
		want   []int64
	}{
		{"one", []catalog.Limit{log}, 1, []int64{3_600_000, 3_600_000}},
		{"each its own", []catalog.Limit{log, pool, fixed}, 2, []int64{3_600_000, 120_000, 43_200_000, 43_200_000}},
		{"in another order", []catalog.Limit{fixed, log, pool}, 2, []int64{43_200_000, 3_600_000, 120_000, 43_200_000}},
		{"shadow has none", []catalog.Limit{inMode(catalog.ModeShadow, fixed), log}, 1, []int64{-1, 3_600_000, 3_600_000}},
		{"could never fit", []catalog.Limit{log, slidingLimit("large", "calls", 11, days)}, 11, []int64{-1, -1, -1}},
		{"never comes back", []catalog.Limit{bucketLimit("stuck", "calls", 100, never), log}, 91, []int64{-1, -1, -1}},
		{"one never comes back", []catalog.Limit{bucketLimit("stuck", "calls", 10, never), log}, 10, []int64{-1, 3_600_000, -1}},
		{"the last never comes back", []catalog.Limit{log, bucketLimit("stuck", "calls", 10, never)}, 10, []int64{3_600_000, -1, -1}},
	} {
		d := newDesk(c.limits...)
		d.must(t, noon, spending("calls", 10))
		got := d.must(t, noon, spending("calls", c.cost))
		if diff := cmp.Diff(c.want, waits(got)); got.Allowed || diff != "" {
			t.Errorf("%s: got %+v; waits of each limit and of all (-want +got):\n%s", c.name, got, diff)
		}
	}
}

// The tenant's time stands still while the database's clock catches up; the caller's
// goes on, so the wait is told from the real clock.
func TestWaitsAreToldFromTheRealClock(t *testing.T) {
	t.Parallel()
	d := newDesk(slidingLimit("ten", "calls", 10, hours), bucketLimit("pool", "calls", 10, perSecond(1)))
	d.must(t, noon, spending("calls", 10))
	got := d.must(t, noon-minute, spending("calls", 1))
	if diff := cmp.Diff([]int64{3_660_000, 61_000, 3_660_000}, waits(got)); diff != "" {
		t.Errorf("waits a minute back (-want +got):\n%s", diff)
	}
	if got.Limits[0].ResetMS != 3_660_000 || got.Limits[1].ResetMS != 70_000 {
		t.Errorf("resets = %d and %d, want 3660000 and 70000", got.Limits[0].ResetMS, got.Limits[1].ResetMS)
	}
}

// Entries of this very batch are as old as the decision, and the ledger is not asked
// for them.
func TestWaitsCountWhatTheSameBatchTook(t *testing.T) {
	t.Parallel()
	d := newDesk(slidingLimit("ten", "calls", 10, hours))
	d.entries = []deskEntry{{noon - minute, "calls", "", 4}}
	first := spending("calls", 6)
	b := d.book(noon, &first)
	if v, err := decide(b, &first, uuid.Nil); err != nil || !v.decision.Allowed {
		t.Fatalf("got %+v, %v", v.decision, err)
	}
	d.entries = append(d.entries, deskEntry{noon, "calls", "", 6}) // the ledger is asked behind it
	for cost, want := range map[int64]int64{1: (hours - minute) / 1000, 4: (hours - minute) / 1000, 5: hours / 1000, 10: hours / 1000} {
		r := spending("calls", cost)
		v, err := decide(b, &r, uuid.Nil)
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		v.crossings(func(*wait) { asked++ })
		v.settleWaits(b, func(w *wait) int64 {
			asked--
			return d.crossing(w)
		})
		if got := orNone(v.decision.RetryMS); got != want || asked != 0 {
			t.Errorf("cost %d: waits %d ms, want %d; %d questions without an answer", cost, got, want, asked)
		}
	}
}

func TestStandShowsWhatTheNextRequestFinds(t *testing.T) {
	t.Parallel()
	d := newDesk(
		slidingLimit("ten", "calls", 10, hours), perSubject(slidingLimit("each", "calls", 5, hours)),
		bucketLimit("pool", "tokens", 100, perSecond(1)), inMode(catalog.ModeOff, slidingLimit("off", "calls", 1, hours)),
	)
	d.must(t, noon, by("ann", spending("calls", 3)))
	all := charging(Charge{Meter: "calls"}, Charge{Meter: "tokens"})
	for _, c := range []struct {
		subject   string
		remaining map[string]int64
		tightest  int64
	}{
		{"", map[string]int64{"ten": 7, "pool": 100}, 7},
		{"ann", map[string]int64{"ten": 7, "each": 2, "pool": 100}, 2},
		{"bob", map[string]int64{"ten": 7, "each": 5, "pool": 100}, 5},
	} {
		r := by(c.subject, all)
		got := d.book(noon, &r).stand("acme", c.subject).decision
		remaining := make(map[string]int64)
		for _, l := range got.Limits {
			remaining[l.Name] = l.Remaining
		}
		if diff := cmp.Diff(c.remaining, remaining); diff != "" || *got.Remaining != c.tightest {
			t.Errorf("%q: %d remaining, want %d; of the limits (-want +got):\n%s", c.subject, *got.Remaining, c.tightest, diff)
		}
	}
}
