package quota

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
)

// levelOf returns a level as the rational it stands for.
func levelOf(s State) *big.Rat {
	return new(big.Rat).Add(rat(s.Units), new(big.Rat).SetFrac64(s.Remainder, s.Denominator))
}

// Whatever is taken without asking (settles above their hold, units given back,
// changes of rate and capacity, a clock that falls back): the level is never above the
// exact one nor above its capacity, and behind by less than one of its denominator for
// each change.
func TestBucketFollowsTheExactLevelThroughChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &bucketModel{capacity: drawUnits(t, "capacity"), rate: drawRate(t, "refill")}
		b := newBucket(m.capacity, m.rate)
		m.level, m.at = rat(m.capacity), rapid.Int64Range(0, instantMaxMicros).Draw(t, "start")
		state := b.Take(View{NowMicros: m.at}, 0)
		behindMax := new(big.Rat)
		now := m.at
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.IntRange(0, 4).Draw(t, "change") == 0 {
				m.capacity, m.rate = drawUnits(t, "capacity"), drawRate(t, "refill")
				b = newBucket(m.capacity, m.rate)
				behindMax.Add(behindMax, new(big.Rat).SetFrac64(1, b.refillMicros))
			}
			now = min(instantMaxMicros, max(0, now+rapid.OneOf(
				rapid.Int64Range(-second, 1000), rapid.Int64Range(0, m.rate.PerMicros),
			).Draw(t, "pause")))
			cost := rapid.OneOf(rapid.Int64Range(-10, 10), rapid.Int64Range(-m.capacity, m.capacity)).Draw(t, "cost")
			if m.refill(now).Cmp(rat(cost-debtMax)) < 0 {
				continue // the floor has a row in TestBucketLevels
			}
			state = b.Take(View{NowMicros: now, State: state}, cost)
			m.take(now, cost)
			checkLevel(t, b, state, m.refill(now), behindMax)
		}
	})
}

func checkLevel(t *rapid.T, b bucket, s State, exact, behindMax *big.Rat) {
	if s.Denominator != b.refillMicros || s.Remainder < 0 || s.Remainder >= s.Denominator {
		t.Fatalf("state %+v: want a remainder in [0, %d)", s, b.refillMicros)
	}
	got := levelOf(s)
	if got.Cmp(rat(b.capacity)) > 0 {
		t.Fatalf("level %v passes the capacity %d", got, b.capacity)
	}
	behind := new(big.Rat).Sub(exact, got)
	if behind.Sign() < 0 || behind.Cmp(behindMax) > 0 {
		t.Fatalf("level %v, exact %v: behind by %v, want 0 to %v", got, exact, behind, behindMax)
	}
}

// However often the rate changes, departures stay in order, apart by at least the
// time their units take, and no earlier than their exact instants.
func TestLeakyBucketDeparturesStayInOrderThroughChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var state State
		last := new(big.Rat)
		now := rapid.Int64Range(0, 1000*years).Draw(t, "start")
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			rate := drawRate(t, "rate")
			rule := leaky(drawUnits(t, "queue"), rate)
			now += rapid.Int64Range(0, second).Draw(t, "pause")
			cost := rapid.Int64Range(1, 10).Draw(t, "cost")
			used := rule.Used(View{NowMicros: now, State: state})
			if used < 0 || used > catalog.UnitsMax {
				t.Fatalf("used = %d", used)
			}
			state = rule.Take(View{NowMicros: now, State: state}, cost)
			if state.AtMicros >= instantMaxMicros {
				return
			}
			if state.Remainder < 0 || state.Remainder >= state.Denominator || state.Units != 0 {
				t.Fatalf("state %+v", state)
			}
			departure := new(big.Rat).Add(rat(state.AtMicros), new(big.Rat).SetFrac64(state.Remainder, state.Denominator))
			if last.Cmp(rat(now)) < 0 {
				last = rat(now)
			}
			exact := new(big.Rat).Add(last, mulRat(rat(cost), new(big.Rat).Inv(perMicro(rate))))
			rounding := new(big.Rat).SetFrac64(1, state.Denominator)
			if departure.Cmp(exact) < 0 || departure.Cmp(rounding.Add(rounding, exact)) > 0 {
				t.Fatalf("departure %v, exact %v", departure, exact)
			}
			last = departure
		}
	})
}
