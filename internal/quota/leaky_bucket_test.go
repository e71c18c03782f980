package quota

import (
	"slices"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

func leaky(queue int64, rate catalog.Rate) leakyBucket {
	return newLeakyBucket(catalog.Limit{Algorithm: catalog.LeakyBucket, Queue: queue, Rate: rate})
}

// Queue 10 at 2/s, 15 at once: 10 queue, 5 are denied, the last leaves after 5 s.
func TestLeakyBucketWorkedExample(t *testing.T) {
	t.Parallel()
	rule := leaky(10, perSecond(2))
	p := tape{rule: rule}
	now := micros("2024-05-10T12:00:00Z")
	var delays []int64
	denied := 0
	for range 15 {
		if p.offer(now, 1, 10) {
			delays = append(delays, rule.DelayMillis(p.state, now))
		} else {
			denied++
		}
	}
	want := []int64{500, 1000, 1500, 2000, 2500, 3000, 3500, 4000, 4500, 5000}
	if !slices.Equal(delays, want) || denied != 5 {
		t.Errorf("delays = %v, denied %d, want %v, 5", delays, denied, want)
	}
	if got, ok := rule.FreeAt(p.view(now), 9); got != now+second/2 || !ok {
		t.Errorf("FreeAt for one more = %d µs later, %v, want 500000, true", got-now, ok)
	}
	if got, ok := rule.FreeAt(p.view(now), 0); got != now+5*second || !ok {
		t.Errorf("FreeAt empty = %d µs later, %v, want 5000000, true", got-now, ok)
	}
}

func TestLeakyBucketDelayIsRoundedUpOnce(t *testing.T) {
	t.Parallel()
	rule := leaky(100, catalog.Rate{Units: 3, PerMicros: 1000}) // a departure each 333 1/3 µs
	p := tape{rule: rule}
	for i, want := range []struct{ micros, millis int64 }{{334, 1}, {667, 1}, {1000, 1}, {1334, 2}} {
		p.take(0, 1)
		if micros, millis := rule.DelayMicros(p.state, 0), rule.DelayMillis(p.state, 0); micros != want.micros || millis != want.millis {
			t.Errorf("call %d: delay = %d µs, %d ms, want %d, %d", i+1, micros, millis, want.micros, want.millis)
		}
	}
	if got, ok := rule.FreeAt(p.view(0), 3); got != 334 || !ok {
		t.Errorf("FreeAt(3) = %d, %v, want 334, true", got, ok)
	}
	if got, ok := rule.FreeAt(p.view(0), 0); got != 1334 || !ok {
		t.Errorf("FreeAt(0) = %d, %v, want 1334, true", got, ok)
	}
}

func TestLeakyBucketCountsABegunUnit(t *testing.T) {
	t.Parallel()
	p := tape{rule: leaky(10, perSecond(2))}
	p.take(0, 3)
	for _, row := range []struct{ now, want int64 }{
		{0, 3}, {1, 3}, {499_999, 3}, {500_000, 2}, {1_499_999, 1}, {1_500_000, 0}, {years, 0},
	} {
		if got := p.rule.Used(p.view(row.now)); got != row.want {
			t.Errorf("used at %d µs = %d, want %d", row.now, got, row.want)
		}
	}
}

// Promises outlive the rate they were made under: no departure moves, and no later
// one comes before or at the same moment.
func TestLeakyBucketKeepsPromisesWhenItsRateChanges(t *testing.T) {
	t.Parallel()
	before := leaky(10, catalog.Rate{Units: 3, PerMicros: 1000})
	after := leaky(10, catalog.Rate{Units: 7, PerMicros: 1000})
	promised := before.Take(View{}, 1) // 333 1/3 µs
	got := after.Take(View{State: promised}, 1)
	// 1/3 is rounded up to 3/7, and 142 6/7 follow.
	if want := (State{Remainder: 2, Denominator: 7, AtMicros: 476}); got != want {
		t.Errorf("next departure = %+v, want %+v", got, want)
	}
	if got := after.DelayMicros(promised, 0); got != 334 {
		t.Errorf("the promise = %d µs, want 334", got)
	}
}

func TestLeakyBucketThatNeverLeaks(t *testing.T) {
	t.Parallel()
	rule := leaky(10, catalog.Rate{Units: 0, PerMicros: second})
	state := rule.Take(View{NowMicros: 5}, 3)
	if want := (State{Denominator: 1, AtMicros: 5}); state != want {
		t.Errorf("state = %+v, want %+v", state, want)
	}
	if got := rule.Used(View{NowMicros: 5, State: State{Remainder: 1, Denominator: 2, AtMicros: 9}}); got != 0 {
		t.Errorf("used = %d, want 0", got)
	}
}

// A departure after the year 9999 is clamped; a clamped departure must not make room.
func TestLeakyBucketAtTheEndOfItsRange(t *testing.T) {
	t.Parallel()
	rule := leaky(catalog.UnitsMax, catalog.Rate{Units: 1, PerMicros: 10 * years})
	p := tape{rule: rule}
	if !p.offer(0, 5000, catalog.UnitsMax) {
		t.Fatal("the first call was denied")
	}
	if p.offer(0, 1, catalog.UnitsMax) {
		t.Error("a call behind one that never departs was admitted")
	}
	if got, ok := rule.FreeAt(p.view(0), catalog.UnitsMax-1); ok {
		t.Errorf("FreeAt = %d, want never", got)
	}
	if got := rule.DelayMicros(p.state, 0); got != instantMaxMicros {
		t.Errorf("delay = %d, want %d", got, int64(instantMaxMicros))
	}
}

func TestLeakyBucketGivesNothingBack(t *testing.T) {
	t.Parallel()
	rule := leaky(10, perSecond(2))
	queued := rule.Take(View{}, 4)
	if got := rule.Take(View{State: queued}, -4); got != queued {
		t.Errorf("state = %+v, want %+v", got, queued)
	}
}
