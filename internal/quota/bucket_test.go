package quota

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// levelRules are the two algorithms that keep a bucket; what holds for one holds for
// the other.
func levelRules(capacity int64, rate catalog.Rate) map[string]Algorithm {
	return map[string]Algorithm{
		"token_bucket": newAlgorithm(catalog.Limit{Algorithm: catalog.TokenBucket, Capacity: capacity, Refill: rate}, nil),
		"gcra":         newAlgorithm(catalog.Limit{Algorithm: catalog.GCRA, Burst: capacity, Rate: rate}, nil),
	}
}

// Capacity 10, refill 2/s: 10 pass at once, the 11th waits 500 ms, at t = 3 s
// exactly 6 pass.
func TestBucketWorkedExample(t *testing.T) {
	t.Parallel()
	for name, rule := range levelRules(10, perSecond(2)) {
		p := tape{rule: rule}
		start := micros("2024-05-10T12:00:00Z")
		for i := range 10 {
			if !p.offer(start, 1, 10) {
				t.Fatalf("%s: call %d of 10 was denied", name, i+1)
			}
		}
		if p.offer(start, 1, 10) {
			t.Fatalf("%s: call 11 was admitted", name)
		}
		if got, ok := p.rule.FreeAt(p.view(start), 9); got != start+second/2 || !ok {
			t.Errorf("%s: FreeAt = %d µs later, %v, want 500000, true", name, got-start, ok)
		}
		passed := 0
		for p.offer(start+3*second, 1, 10) {
			passed++
		}
		if passed != 6 {
			t.Errorf("%s: %d passed at 3 s, want 6", name, passed)
		}
	}
}

func TestBucketKeepsFractionsForEver(t *testing.T) {
	t.Parallel()
	for name, rule := range levelRules(1_000_000, perMinute(7)) {
		p := tape{rule: rule}
		p.take(0, 1_000_000)
		for now := int64(0); now < 10*minute; now += 9767 { // a write at every odd moment loses nothing
			p.state = rule.Take(p.view(now), 0)
		}
		if got := rule.Used(p.view(10*minute - 1)); got != 1_000_000-69 {
			t.Errorf("%s: used just before 10 minutes = %d, want %d", name, got, 1_000_000-69)
		}
		if got := rule.Used(p.view(10 * minute)); got != 1_000_000-70 {
			t.Errorf("%s: used after 10 minutes = %d, want %d", name, got, 1_000_000-70)
		}
	}
}

// A client that polls gets what the rate says, however often it asks.
func TestBucketAdmitsItsRateUnderPolling(t *testing.T) {
	t.Parallel()
	const poll, span = second / 1000, 10 * second
	for _, rate := range []catalog.Rate{
		perSecond(1), perSecond(7), perSecond(333), perSecond(997), perMinute(7), perMinute(59),
		{Units: 1, PerMicros: 1700},
		{Units: 3, PerMicros: 7 * second},
	} {
		for name, rule := range levelRules(5, rate) {
			p := tape{rule: rule}
			var admitted int64
			for now := int64(0); now <= span; now += poll {
				v := View{NowMicros: now, State: p.state}
				if fits(rule.Used(v), 0, 1, 5) {
					p.state = rule.Take(v, 1)
					admitted++
				}
			}
			want := span*rate.Units/rate.PerMicros + 5
			if admitted < want-1 || admitted > want+1 {
				t.Errorf("%s at %d per %d µs: admitted %d in 10 s, want %d ± 1",
					name, rate.Units, rate.PerMicros, admitted, want)
			}
		}
	}
}

func TestBucketStateIsInLowestTerms(t *testing.T) {
	t.Parallel()
	b := newBucket(60_000, perSecond(2000)) // 1 per 500 µs
	empty := b.Take(View{}, 60_000)
	got := b.Take(View{NowMicros: 749, State: empty}, 0)
	if want := (State{Units: 1, Remainder: 249, Denominator: 500, AtMicros: 749}); got != want {
		t.Errorf("state = %+v, want %+v", got, want)
	}
}

func TestBucketLevels(t *testing.T) {
	t.Parallel()
	tenth := perSecond(10) // 1 per 100 ms
	now := 1000 * second
	at := func(units, remainder, denominator, atMicros int64) State {
		return State{Units: units, Remainder: remainder, Denominator: denominator, AtMicros: atMicros}
	}
	full := at(10, 0, 100_000, now)
	for _, row := range []struct {
		name  string
		state State
		cost  int64
		want  State
	}{
		{"a fresh one is full", State{}, 0, full},
		{"and stays so when its clock starts at zero", at(10, 0, 100_000, 0), 0, full},
		{"it never passes its capacity", at(9, 99_999, 100_000, now-1_000_000), 0, full},
		{"a full one has no remainder", at(9, 99_999, 100_000, now-1), 0, full},
		{"a microsecond before that it has", at(9, 99_998, 100_000, now-1), 0, at(9, 99_999, 100_000, now)},
		{"a cost goes whole", at(9, 5, 100_000, now), 4, at(5, 5, 100_000, now)},
		{"more than there is makes a debt", at(2, 7, 100_000, now), 5, at(-3, 7, 100_000, now)},
		{"that refills like anything else", at(-3, 7, 100_000, now-400_000), 0, at(1, 7, 100_000, now)},
		{"units given back", at(2, 7, 100_000, now), -3, at(5, 7, 100_000, now)},
		{"are clamped at the capacity", at(2, 7, 100_000, now), -9, full},
		{"another rate's remainder is rounded down", at(1, 2, 3, now), 0, at(1, 66_666, 100_000, now)},
		{"a lowered capacity clamps", at(900, 50_000, 100_000, now), 0, full},
		{"a clock that falls back stands still", at(3, 4, 100_000, now+5*second), 1, at(2, 4, 100_000, now+5*second)},
		{"a debt has a floor", at(-debtMax, 4, 100_000, now), catalog.UnitsMax, at(-debtMax, 4, 100_000, now)},
	} {
		got := newBucket(10, tenth).Take(View{NowMicros: now, State: row.state}, row.cost)
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: level (-want +got):\n%s", row.name, diff)
		}
	}
}

func TestBucketInDebtDeniesUntilItRecovers(t *testing.T) {
	t.Parallel()
	p := tape{rule: newBucket(10, perSecond(2))}
	p.take(0, 25) // a settle far above its hold
	if got := p.rule.Used(p.view(0)); got != 25 {
		t.Errorf("used = %d, want 25", got)
	}
	if got, ok := p.rule.FreeAt(p.view(0), 9); got != 8*second || !ok {
		t.Errorf("FreeAt for cost 1 = %d, %v, want %d, true", got, ok, 8*second)
	}
	if got, ok := p.rule.FreeAt(p.view(0), 0); got != 12_500_000 || !ok {
		t.Errorf("FreeAt full = %d, %v, want 12500000, true", got, ok)
	}
}

func TestBucketThatNeverRefillsNeverFrees(t *testing.T) {
	t.Parallel()
	for _, rate := range []catalog.Rate{{Units: 0, PerMicros: second}, {}} {
		p := tape{rule: newBucket(10, rate)}
		p.take(0, 10)
		if got, ok := p.rule.FreeAt(p.view(9*years), 9); ok {
			t.Errorf("rate %v: FreeAt = %d, want never", rate, got)
		}
	}
}

// What takes longer than calendars last counts as never, and nothing wraps around.
func TestBucketAtTheEndOfItsRange(t *testing.T) {
	t.Parallel()
	slow := catalog.Rate{Units: 1, PerMicros: 10 * years}
	p := tape{rule: newBucket(catalog.UnitsMax, slow)}
	p.take(0, catalog.UnitsMax)
	if got, ok := p.rule.FreeAt(p.view(0), 0); ok {
		t.Errorf("FreeAt of %d units at one per ten years = %d, want never", catalog.UnitsMax, got)
	}
	if got, ok := p.rule.FreeAt(p.view(0), catalog.UnitsMax-1); got != 10*years || !ok {
		t.Errorf("FreeAt of one unit = %d, %v, want %d, true", got, ok, 10*years)
	}
	fast := newBucket(catalog.UnitsMax, catalog.Rate{Units: catalog.UnitsMax, PerMicros: 1000})
	got := fast.Take(View{NowMicros: instantMaxMicros, State: State{
		Units: math.MinInt64, Remainder: math.MaxInt64 - 1, Denominator: math.MaxInt64,
	}}, catalog.UnitsMax)
	if got.Units != 0 || got.Remainder != 0 {
		t.Errorf("level after a take from full = %+v, want 0", got)
	}
}
