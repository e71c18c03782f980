package quota

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
)

// grants is what copies of one limit granted, for a model that forgets nothing.
type grants []struct{ atMicros, units int64 }

// within is what was granted from an instant on.
func (g grants) within(fromMicros int64) (units int64) {
	for _, one := range g {
		if one.atMicros >= fromMicros {
			units += one.units
		}
	}
	return units
}

// localCase is a limit and the most that may be granted of its share in any span.
type localCase struct {
	limit catalog.Limit
	most  func(span time.Duration) int64
}

const localWindow = time.Minute

func drawLocal(t *rapid.T) localCase {
	share := rapid.Int64Range(1, 100).Draw(t, "share")
	units := rapid.Int64Range(0, 500).Draw(t, "units")
	window := localWindow.Microseconds()
	part := units * share / 100
	flat := func(times int64) func(time.Duration) int64 { return func(time.Duration) int64 { return times * part } }
	var c localCase
	switch algorithm := rapid.SampledFrom([]catalog.Algorithm{
		catalog.SlidingLog, catalog.FixedWindow, catalog.SlidingCounter, catalog.TokenBucket, catalog.GCRA,
	}).Draw(t, "algorithm"); algorithm {
	case catalog.SlidingLog:
		c = localCase{slidingLimit("l", "calls", units, window), flat(1)}
	case catalog.FixedWindow, catalog.SlidingCounter: // around a boundary
		c = localCase{slidingLimit("l", "calls", units, window), flat(2)}
		c.limit.Algorithm = algorithm
	default: // a full bucket, and what comes back in the span, rounded up
		rate := catalog.Rate{Units: rapid.Int64Range(0, 500).Draw(t, "rate"), PerMicros: window}
		c = localCase{bucketLimit("l", "calls", units, rate), func(span time.Duration) int64 {
			return part + (rate.Units*share*span.Microseconds()+100*window-1)/(100*window)
		}}
		if algorithm == catalog.GCRA {
			c.limit = catalog.Limit{Name: "l", Meter: "calls", Algorithm: algorithm, Burst: units, Rate: rate}
		}
	}
	c.limit.Mode, c.limit.OnError, c.limit.LocalShare = catalog.ModeEnforce, catalog.OnErrorLocal, share
	return c
}

// However an outage begins and ends, an instance never grants more of a limit than its
// share holds in any trailing window, and what the share has room for it grants.
func TestLocalGrantsNeverPassTheirShareInAnyWindow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawLocal(t)
		g := &degrader{copies: newLocalCopies()}
		now := noon
		g.clock = func() int64 { return now }
		var granted grants
		plan := &catalog.Plan{Name: "p", Version: 1, VersionID: 1, Limits: []catalog.Limit{c.limit}}
		for i := range rapid.IntRange(1, 60).Draw(t, "calls") {
			now += rapid.Int64Range(0, localWindow.Microseconds()/4).Draw(t, "wait")
			if rapid.IntRange(0, 9).Draw(t, "flap") == 0 { // a database that came back with the plan anew
				plan = &catalog.Plan{Name: "p", Version: plan.Version + 1, VersionID: plan.VersionID + 1, Limits: plan.Limits}
			}
			shared := compilePlan(sharedPlan(plan), &calendar.Calendar{})
			cost := rapid.Int64Range(0, 200).Draw(t, "cost")
			d := Decision{Allowed: true}
			r := consume("acme", "calls", cost)
			if err := g.ask(&r, []voter{{shared.byMeter["calls"][0], cost}}, &d); err != nil || !d.Allowed {
				continue
			}
			granted = append(granted, struct{ atMicros, units int64 }{now, cost})
			for _, span := range []time.Duration{localWindow, localWindow / 3} {
				if got := granted.within(now - span.Microseconds() + 1); got > c.most(span) {
					t.Fatalf("call %d: %d granted within %s, want at most %d of %+v", i, got, span, c.most(span), c.limit)
				}
			}
		}
	})
}

// What an idle share holds is granted to the last unit, at once.
func TestAnIdleShareIsGrantedWhole(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawLocal(t)
		g := &degrader{copies: newLocalCopies(), clock: func() int64 { return noon }}
		shared := compilePlan(sharedPlan(&catalog.Plan{Limits: []catalog.Limit{c.limit}}), &calendar.Calendar{}).byMeter["calls"][0]
		r := consume("acme", "calls", 0)
		if shared.blocked {
			if err := g.ask(&r, []voter{{shared, 0}}, &Decision{Allowed: true}); err == nil {
				t.Fatal("a share with nothing in it grants")
			}
			return
		}
		for i := range shared.units + 1 {
			d := Decision{Allowed: true}
			if err := g.ask(&r, []voter{{shared, 1}}, &d); err != nil || d.Allowed != (i < shared.units) {
				t.Fatalf("unit %d of %d: %+v, %v", i+1, shared.units, d, err)
			}
		}
	})
}

// A flood of subjects fills what an instance may remember; then nothing more is granted,
// until the windows of the old ones are over. The memory does not grow.
func TestLocalCopiesAreBoundedAndForgetIdleOnes(t *testing.T) {
	t.Parallel()
	now := noon
	g := &degrader{copies: newLocalCopies(), clock: func() int64 { return now }}
	g.copies.entriesMax = 100 * (localCopyEntries + 1)
	limit := perSubject(slidingLimit("l", "calls", 10, localWindow.Microseconds()))
	limit.Mode, limit.OnError, limit.LocalShare = catalog.ModeEnforce, catalog.OnErrorLocal, 100
	shared := compilePlan(sharedPlan(&catalog.Plan{Limits: []catalog.Limit{limit}}), &calendar.Calendar{}).byMeter["calls"][0]
	flood := func(name string) (granted int) {
		for i := range 1000 {
			r := by(fmt.Sprint(name, i), consume("acme", "calls", 1))
			d := Decision{Allowed: true}
			if err := g.ask(&r, []voter{{shared, 1}}, &d); err == nil && d.Allowed {
				granted++
			}
		}
		return granted
	}
	first := flood("first")
	if first == 0 || first > 100 || g.copies.entries > g.copies.entriesMax {
		t.Fatalf("%d subjects were granted with %d entries, want up to 100 and %d", first, g.copies.entries, g.copies.entriesMax)
	}
	now += localWindow.Microseconds() / 2
	if n := flood("second"); n != 0 {
		t.Errorf("%d more were granted while the first are in their windows", n)
	}
	now += localWindow.Microseconds()
	if n := flood("third"); n != first {
		t.Errorf("%d were granted once the first are idle, want %d", n, first)
	}
	var entries int
	for _, have := range g.copies.byKey {
		entries += localCopyEntries + len(have.grants.entries)
	}
	if entries != g.copies.entries {
		t.Errorf("%d entries are counted and %d are there", g.copies.entries, entries)
	}
}
