package quota

import (
	"math/big"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

// within folds any int64 into [low, high].
func within(n, low, high int64) int64 {
	span := new(big.Int).SetInt64(high - low + 1)
	rest := new(big.Int).Mod(big.NewInt(n), span)
	return low + rest.Int64()
}

func fuzzRate(units, per int64) catalog.Rate {
	return catalog.Rate{Units: within(units, 0, catalog.UnitsMax), PerMicros: within(per, 1000, 10*years)}
}

// checkFreeAt checks that FreeAt is the first instant at which used is at most target.
// usedAt reads the exact definition at a later instant of an untouched limit.
func checkFreeAt(t *testing.T, rule Algorithm, v View, target int64, usedAt func(atMicros int64) int64) {
	t.Helper()
	at, ok := rule.FreeAt(v, target)
	if !ok {
		if last := max(v.NowMicros, instantMaxMicros); usedAt(last) <= target {
			t.Fatalf("FreeAt(%d) = never, used at %d = %d", target, last, usedAt(last))
		}
		return
	}
	if at < v.NowMicros || usedAt(at) > target {
		t.Fatalf("FreeAt(%d) at %d = %d: used %d", target, v.NowMicros, at, usedAt(at))
	}
	if at > v.NowMicros && usedAt(at-1) <= target {
		t.Fatalf("FreeAt(%d) at %d = %d: used is %d a microsecond before", target, v.NowMicros, at, usedAt(at-1))
	}
}

func FuzzBucket(f *testing.F) {
	f.Add(int64(10), int64(2), second, int64(3), int64(1), int64(7), int64(0), 5*second, int64(1), int64(4))
	f.Add(int64(catalog.UnitsMax), int64(1), 10*years, int64(-catalog.UnitsMax), int64(5), int64(9), int64(0), years, int64(catalog.UnitsMax), int64(0))
	f.Add(int64(1), int64(catalog.UnitsMax), int64(1000), int64(0), int64(0), int64(1), int64(instantMaxMicros), int64(0), int64(1), int64(0))
	f.Fuzz(func(t *testing.T, capacity, units, per, stateUnits, remainder, denominator, at, now, cost, target int64) {
		capacity, now, at = within(capacity, 0, catalog.UnitsMax), within(now, 0, instantMaxMicros), within(at, 0, instantMaxMicros)
		rate := fuzzRate(units, per)
		denominator = within(denominator, 1, 10*years)
		s := State{
			Units: within(stateUnits, -debtMax, catalog.UnitsMax), Remainder: within(remainder, 0, denominator-1),
			Denominator: denominator, AtMicros: at,
		}
		b := newBucket(capacity, rate)

		// The definition: a floored remainder, then exact refill, clamped.
		exact := func(atMicros int64) *big.Rat {
			kept := floorRat(mulRat(new(big.Rat).SetFrac64(s.Remainder, s.Denominator), rat(b.refillMicros)))
			level := new(big.Rat).Add(rat(s.Units), new(big.Rat).SetFrac(kept, big.NewInt(b.refillMicros)))
			level.Add(level, mulRat(rat(max(0, atMicros-s.AtMicros)), perMicro(rate)))
			if level.Cmp(rat(capacity)) > 0 {
				return rat(capacity)
			}
			return level
		}
		used := func(atMicros int64) int64 {
			return min(catalog.UnitsMax, capacity-floorRat(exact(atMicros)).Int64())
		}
		v := View{NowMicros: now, State: s}
		if got, want := b.Used(v), used(now); got != want || got < 0 {
			t.Fatalf("used = %d, want %d", got, want)
		}
		checkFreeAt(t, b, v, within(target, 0, catalog.UnitsMax), used)

		cost = within(cost, 0, catalog.UnitsMax)
		want := exact(now)
		if want.Sub(want, rat(cost)); want.Cmp(rat(-debtMax)) < 0 {
			return
		}
		if got := levelOf(b.Take(v, cost)); got.Cmp(want) != 0 {
			t.Fatalf("level after a take of %d = %v, want %v", cost, got, want)
		}
	})
}

func FuzzLeakyBucket(f *testing.F) {
	f.Add(int64(10), int64(2), second, int64(1), int64(3), 5*second, 2*second, int64(1), int64(4))
	f.Add(int64(catalog.UnitsMax), int64(1), 10*years, int64(0), int64(1), int64(instantMaxMicros-1), int64(0), int64(catalog.UnitsMax), int64(0))
	f.Add(int64(catalog.UnitsMax), int64(catalog.UnitsMax), int64(1000), int64(0), int64(1), int64(instantMaxMicros-1), int64(0), int64(7), int64(3))
	f.Add(int64(1), int64(1), second, int64(0), int64(1), int64(42), int64(instantMaxMicros), int64(1), int64(0))
	f.Fuzz(func(t *testing.T, queue, units, per, remainder, denominator, at, now, cost, target int64) {
		rate := fuzzRate(units, per)
		if rate.Units == 0 {
			return // see TestLeakyBucketThatNeverLeaks
		}
		now, at = within(now, 0, instantMaxMicros), within(at, 0, instantMaxMicros-2)
		denominator = within(denominator, 1, catalog.UnitsMax)
		s := State{Remainder: within(remainder, 0, denominator-1), Denominator: denominator, AtMicros: at}
		b := leaky(within(queue, 0, catalog.UnitsMax), rate)

		// The definition: the last departure with its fraction rounded up, or now.
		kept := ceilRat(mulRat(new(big.Rat).SetFrac64(s.Remainder, s.Denominator), rat(b.rateUnits)))
		last := new(big.Rat).Add(rat(s.AtMicros), new(big.Rat).SetFrac(kept, big.NewInt(b.rateUnits)))
		used := func(atMicros int64) int64 {
			left := new(big.Rat).Sub(last, rat(atMicros))
			if atMicros > s.AtMicros || left.Sign() < 0 {
				return 0
			}
			if backlog := ceilRat(mulRat(left, perMicro(rate))); backlog.Cmp(big.NewInt(catalog.UnitsMax)) < 0 {
				return backlog.Int64()
			}
			return catalog.UnitsMax
		}
		v := View{NowMicros: now, State: s}
		if got, want := b.Used(v), used(now); got != want || got < 0 {
			t.Fatalf("used = %d, want %d", got, want)
		}
		checkFreeAt(t, b, v, within(target, 0, catalog.UnitsMax), used)

		cost = within(cost, 0, catalog.UnitsMax)
		want := rat(now)
		if s.AtMicros >= now {
			want = last
		}
		want = new(big.Rat).Add(want, mulRat(rat(cost), new(big.Rat).Inv(perMicro(rate))))
		after := b.Take(v, cost)
		if want.Cmp(rat(instantMaxMicros)) >= 0 {
			want = rat(instantMaxMicros)
		}
		if got := new(big.Rat).Add(rat(after.AtMicros), new(big.Rat).SetFrac64(after.Remainder, after.Denominator)); got.Cmp(want) != 0 {
			t.Fatalf("departure after %d = %v, want %v", cost, got, want)
		}
	})
}

func FuzzSlidingCounter(f *testing.F) {
	f.Add(minute, int64(84), int64(36), 75*second, int64(99))
	f.Add(10*years, int64(catalog.UnitsMax), int64(0), 11*years, int64(1))
	f.Fuzz(func(t *testing.T, window, prev, cur, now, target int64) {
		window, now = within(window, 1000, 10*years), within(now, 0, instantMaxMicros)
		prev = within(prev, 0, catalog.UnitsMax)
		cur = within(cur, 0, catalog.UnitsMax-prev)
		rule := slidingCounter{windowMicros: window}
		start := now - now%window
		used := func(atMicros int64) int64 {
			before, inside := prev, cur
			switch cells := (atMicros - start) / window; {
			case cells == 1:
				before, inside = cur, 0
			case cells > 1:
				return 0
			}
			left := window - atMicros%window
			share := mulRat(rat(before), new(big.Rat).SetFrac64(left, window))
			return inside + ceilRat(share).Int64()
		}
		v := View{NowMicros: now, Total: prev + cur, Before: []int64{0, prev}}
		if got, want := rule.Used(v), used(now); got != want || got < 0 {
			t.Fatalf("used = %d, want %d", got, want)
		}
		checkFreeAt(t, rule, v, within(target, 0, catalog.UnitsMax), used)
	})
}

// FuzzWindows drives the two windows that count whole entries with three of them.
func FuzzWindows(f *testing.F) {
	f.Add(hours, int64(0), 10*second, minute, int64(3), int64(4), int64(5), minute, int64(7), false)
	f.Add(10*years, int64(0), int64(0), years, int64(catalog.UnitsMax), int64(1), int64(0), int64(0), int64(1), true)
	f.Fuzz(func(t *testing.T, length, at, pause1, pause2, units1, units2, units3, pause3, target int64, fixed bool) {
		length = within(length, 1000, 10*years)
		var rule Algorithm = slidingLog{windowMicros: length}
		if fixed {
			rule = fixedWindow{lengthMicros: length}
		}
		p := tape{rule: rule}
		now := within(at, 0, instantMaxMicros-40*years)
		for _, e := range []posting{{0, units1}, {pause1, units2}, {pause2, units3}} {
			now += within(e.atMicros, 0, 10*years)
			p.take(now, within(e.units, 0, catalog.UnitsMax/3))
		}
		now += within(pause3, 0, 10*years)
		used := func(atMicros int64) int64 {
			first := atMicros - length + 1
			if fixed {
				first = atMicros - atMicros%length
			}
			return list(p.entries).sum(first, atMicros+1).Num().Int64()
		}
		if got, want := rule.Used(p.view(now)), used(now); got != want {
			t.Fatalf("used = %d, want %d", got, want)
		}
		checkFreeAt(t, rule, p.view(now), within(target, 0, catalog.UnitsMax), used)
	})
}
