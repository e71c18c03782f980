package quota

import (
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

func TestWhatALimitSaysOfItself(t *testing.T) {
	t.Parallel()
	window := func(micros int64) catalog.Window { return catalog.Window{DurationMicros: micros} }
	word := func(c catalog.Calendar) catalog.Window { return catalog.Window{Calendar: c} }
	for _, row := range []struct {
		name    string
		limit   catalog.Limit
		units   int64
		blocked bool
		quoted  int64
	}{
		{"log", catalog.Limit{Algorithm: catalog.SlidingLog, Limit: 1000, Window: window(hours)}, 1000, false, hours},
		{"log of 0", catalog.Limit{Algorithm: catalog.SlidingLog, Window: window(hours)}, 0, true, hours},
		{"log without a limit", catalog.Limit{Algorithm: catalog.SlidingLog, Unlimited: true, Window: window(hours)}, 0, false, hours},
		{"counter", catalog.Limit{Algorithm: catalog.SlidingCounter, Limit: 7, Window: window(minute)}, 7, false, minute},
		{"fixed", catalog.Limit{Algorithm: catalog.FixedWindow, Limit: 7, Window: window(minute)}, 7, false, minute},
		{"hour", catalog.Limit{Algorithm: catalog.FixedWindow, Limit: 7, Window: word(catalog.CalendarHour)}, 7, false, hours},
		{"day", catalog.Limit{Algorithm: catalog.FixedWindow, Limit: 7, Window: word(catalog.CalendarDay)}, 7, false, days},
		{"week", catalog.Limit{Algorithm: catalog.FixedWindow, Limit: 7, Window: word(catalog.CalendarWeek)}, 7, false, 7 * days},
		{"month", catalog.Limit{Algorithm: catalog.FixedWindow, Limit: 7, Window: word(catalog.CalendarMonth)}, 7, false, 30 * days},
		{"year", catalog.Limit{Algorithm: catalog.FixedWindow, Limit: 7, Window: word(catalog.CalendarYear)}, 7, false, 365 * days},
		{"bucket", catalog.Limit{Algorithm: catalog.TokenBucket, Capacity: 10, Refill: perSecond(2)}, 10, false, 5 * second},
		{"bucket of 0", catalog.Limit{Algorithm: catalog.TokenBucket, Refill: perSecond(2)}, 0, true, 0},
		{"bucket that never refills", catalog.Limit{Algorithm: catalog.TokenBucket, Capacity: 10, Refill: perSecond(0)}, 10, true, 0},
		{"gcra", catalog.Limit{Algorithm: catalog.GCRA, Burst: 5, Rate: perMinute(7)}, 5, false, 42_857_143},
		{"gcra of rate 0", catalog.Limit{Algorithm: catalog.GCRA, Burst: 5, Rate: perMinute(0)}, 5, true, 0},
		{"leaky", catalog.Limit{Algorithm: catalog.LeakyBucket, Queue: 5, Rate: catalog.Rate{Units: 1, PerMicros: 10 * second}}, 5, false, 50 * second},
		{"leaky of 0", catalog.Limit{Algorithm: catalog.LeakyBucket, Rate: perMinute(1)}, 0, true, 0},
		{"the largest and slowest", catalog.Limit{Algorithm: catalog.LeakyBucket, Queue: catalog.UnitsMax, Rate: catalog.Rate{Units: 1, PerMicros: 10 * years}}, catalog.UnitsMax, false, 0},
	} {
		if got := limitUnits(row.limit); got != row.units {
			t.Errorf("%s: limitUnits = %d, want %d", row.name, got, row.units)
		}
		if got := blocked(row.limit); got != row.blocked {
			t.Errorf("%s: blocked = %v, want %v", row.name, got, row.blocked)
		}
		if got := quotedWindowMicros(row.limit); got != row.quoted {
			t.Errorf("%s: quotedWindowMicros = %d, want %d", row.name, got, row.quoted)
		}
	}
}

func TestOnlyALeakyBucketShapes(t *testing.T) {
	t.Parallel()
	for _, algorithm := range []catalog.Algorithm{
		catalog.SlidingLog, catalog.SlidingCounter, catalog.FixedWindow,
		catalog.TokenBucket, catalog.GCRA, catalog.LeakyBucket,
	} {
		rule := newAlgorithm(catalog.Limit{Algorithm: algorithm, Window: catalog.Window{DurationMicros: second}}, nil)
		if _, shapes := rule.(Shaper); shapes != (algorithm == catalog.LeakyBucket) {
			t.Errorf("%s shapes = %v", algorithm, shapes)
		}
		if keeps := len(rule.Edges(0)) == 0; keeps != algorithm.KeepsLevel() {
			t.Errorf("%s has no edges = %v, keeps a level = %v", algorithm, keeps, algorithm.KeepsLevel())
		}
	}
}
