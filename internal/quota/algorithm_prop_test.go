package quota

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
)

// A model is an algorithm as its definition says it: no totals, no lazy refill, no
// integers of a fixed size.
type model interface {
	// admits reports whether cost may pass at now.
	admits(nowMicros, cost int64) bool
	// used returns what Used must say.
	used(nowMicros int64) int64
	take(nowMicros, cost int64)
}

// Every algorithm must decide what its model decides and say the same usage, over
// any history of costs and pauses; and what it denies must pass at FreeAt and not one
// microsecond earlier.

func TestSlidingLogEqualsItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window, limit := drawDuration(t, "window"), drawUnits(t, "limit")
		rule := slidingLog{windowMicros: window}
		p := runHistory(t, rule, &logModel{windowMicros: window, limit: limit}, limit, window)
		checkTrailingWindows(t, p, window, limit)
	})
}

func TestSlidingCounterEqualsItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window, limit := drawDuration(t, "window"), drawUnits(t, "limit")
		rule := slidingCounter{windowMicros: window}
		runHistory(t, rule, &counterModel{windowMicros: window, limit: limit}, limit, window)
	})
}

func TestFixedWindowEqualsItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		window, limit := drawDuration(t, "window"), drawUnits(t, "limit")
		rule := fixedWindow{lengthMicros: window}
		runHistory(t, rule, &fixedModel{windowMicros: window, limit: limit}, limit, window)
	})
}

func TestTokenBucketEqualsItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := catalog.Limit{Algorithm: catalog.TokenBucket, Capacity: drawUnits(t, "capacity"), Refill: drawRate(t, "refill")}
		p := runHistory(t, newAlgorithm(l, nil), newBucketModel(l.Capacity, l.Refill), l.Capacity, l.Refill.PerMicros)
		checkLongRun(t, p, l.Capacity, l.Refill)
	})
}

func TestGCRAEqualsItsFormula(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := catalog.Limit{Algorithm: catalog.GCRA, Burst: drawUnits(t, "burst"), Rate: drawRate(t, "rate")}
		p := runHistory(t, newAlgorithm(l, nil), newGCRAModel(l.Burst, l.Rate), l.Burst, l.Rate.PerMicros)
		checkLongRun(t, p, l.Burst, l.Rate)
	})
}

func TestLeakyBucketEqualsItsModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := catalog.Limit{Algorithm: catalog.LeakyBucket, Queue: drawUnits(t, "queue"), Rate: drawRate(t, "rate")}
		m := newLeakyModel(l.Queue, l.Rate)
		p := runHistory(t, newAlgorithm(l, nil), m, l.Queue, l.Rate.PerMicros)
		checkLongRun(t, p, l.Queue, l.Rate)
	})
}

// runHistory offers a random history to the rule and to its model.
func runHistory(t *rapid.T, rule Algorithm, m model, limit, spanMicros int64) *tape {
	p := &tape{rule: rule}
	now := rapid.OneOf(
		rapid.Int64Range(0, 10*spanMicros), rapid.Int64Range(0, instantMaxMicros-60*10*years),
	).Draw(t, "start")
	var free []int64 // instants at which something comes back, worth a visit
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		now = drawNext(t, now, spanMicros, free)
		cost := drawCost(t, limit)
		if p.total+cost > catalog.UnitsMax {
			break // the engine refuses to count further
		}
		v := p.view(now)
		if got, want := rule.Used(v), m.used(now); got != want {
			t.Fatalf("used at %d = %d, want %d", now, got, want)
		}
		admitted := fits(rule.Used(v), 0, cost, limit)
		if want := m.admits(now, cost); admitted != want {
			t.Fatalf("cost %d at %d: admitted %v, want %v (used %d)", cost, now, admitted, want, rule.Used(v))
		}
		free = append(free, checkFree(t, p, now, limit-cost)...)
		free = append(free, checkFree(t, p, now, 0)...)
		if admitted {
			p.take(now, cost)
			m.take(now, cost)
			checkShape(t, rule, m, p.state, now)
		}
	}
	return p
}

// checkFree checks that usage comes down to target at FreeAt and not a microsecond
// earlier; it returns that instant.
func checkFree(t *rapid.T, p *tape, now, target int64) []int64 {
	if target < 0 {
		return nil // could never fit
	}
	at, ok := p.rule.FreeAt(p.view(now), target)
	if !ok {
		checkNever(t, p, now, target)
		return nil
	}
	if at < now {
		t.Fatalf("FreeAt(target %d) at %d = %d, before now", target, now, at)
	}
	if got := p.rule.Used(p.view(at)); got > target {
		t.Fatalf("used at FreeAt(target %d) = %d: %d", target, at, got)
	}
	if at > now {
		if got := p.rule.Used(p.view(at - 1)); got <= target {
			t.Fatalf("used one microsecond before FreeAt(target %d) = %d: already %d", target, at, got)
		}
	}
	return []int64{at}
}

// checkNever checks that usage really stays over target as long as calendars last.
func checkNever(t *rapid.T, p *tape, now, target int64) {
	last := int64(instantMaxMicros)
	if got := p.rule.Used(p.view(max(now, last))); got <= target {
		t.Fatalf("FreeAt(target %d) at %d = never, but used at %d = %d", target, now, last, got)
	}
}

// checkShape checks the departure a leaky bucket promises.
func checkShape(t *rapid.T, rule Algorithm, m model, after State, now int64) {
	shaper, ok := rule.(leakyBucket)
	if !ok {
		return
	}
	exact := new(big.Rat).Sub(m.(*leakyModel).last(), rat(now))
	if exact.Cmp(rat(instantMaxMicros-now)) >= 0 {
		exact = rat(instantMaxMicros - now)
	}
	if got, want := shaper.DelayMicros(after, now), ceilRat(exact); got != want.Int64() {
		t.Fatalf("delay at %d = %d µs, want %v", now, got, want)
	}
	millis := ceilRat(exact.Quo(exact, rat(1000)))
	if got := shaper.DelayMillis(after, now); got != millis.Int64() {
		t.Fatalf("delay at %d = %d ms, want %v", now, got, millis)
	}
}

// checkTrailingWindows checks that no window (t−W, t] that ends with an entry held
// more than the limit; others hold no more than those.
func checkTrailingWindows(t *rapid.T, p *tape, window, limit int64) {
	for _, last := range p.entries {
		var sum int64
		for _, e := range p.entries {
			if last.atMicros-window < e.atMicros && e.atMicros <= last.atMicros {
				sum += e.units
			}
		}
		if sum > limit {
			t.Fatalf("%d units in the window that ends at %d, limit %d", sum, last.atMicros, limit)
		}
	}
}

// checkLongRun checks that between any two entries no more passed than rate·T + burst.
func checkLongRun(t *rapid.T, p *tape, burst int64, rate catalog.Rate) {
	for i, first := range p.entries {
		var sum int64
		for _, e := range p.entries[i:] {
			sum += e.units
			most := mulRat(rat(e.atMicros-first.atMicros), perMicro(rate))
			if most.Add(most, rat(burst)).Cmp(rat(sum)) < 0 {
				t.Fatalf("%d units from %d to %d, rate %v, burst %d", sum, first.atMicros, e.atMicros, rate, burst)
			}
		}
	}
}

func drawUnits(t *rapid.T, label string) int64 {
	return rapid.OneOf(
		rapid.Int64Range(1, 12), rapid.Int64Range(1, 100_000), rapid.Int64Range(1, catalog.UnitsMax),
	).Draw(t, label)
}

func drawDuration(t *rapid.T, label string) int64 {
	return rapid.OneOf(
		rapid.Int64Range(1000, 2000), rapid.SampledFrom([]int64{second, minute, hours, days, 10 * years}),
		rapid.Int64Range(1000, 10*years),
	).Draw(t, label)
}

func drawRate(t *rapid.T, label string) catalog.Rate {
	return catalog.Rate{Units: drawUnits(t, label+" units"), PerMicros: drawDuration(t, label+" per")}
}

func drawCost(t *rapid.T, limit int64) int64 {
	return rapid.OneOf(
		rapid.Just(int64(1)), rapid.Int64Range(0, min(limit, 5)), rapid.Int64Range(0, limit),
		rapid.Just(limit), rapid.Int64Range(0, catalog.UnitsMax),
	).Draw(t, "cost")
}

// drawNext draws the next instant, at or after now: the same one, one close by, one
// about a span away, an edge of an aligned cell, or one at which something comes back.
func drawNext(t *rapid.T, now, span int64, free []int64) int64 {
	pauses := []*rapid.Generator[int64]{
		rapid.Just(now),
		rapid.Just(now + 1),
		rapid.Int64Range(now, now+span),
		rapid.Int64Range(now+span-2, now+span+2),
		rapid.Just(now - now%span + span),
		rapid.Int64Range(now, now+3*span),
	}
	var soon []int64
	for _, at := range free {
		if at > now && at < now+5*span {
			soon = append(soon, at-1, at)
		}
	}
	if len(soon) > 0 {
		pauses = append(pauses, rapid.SampledFrom(soon), rapid.SampledFrom(soon))
	}
	return max(now, rapid.OneOf(pauses...).Draw(t, "now"))
}
