package quota

import (
	"fmt"
	"time"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
)

// newAlgorithm returns the rule of a limit whose numbers are validated. Only a
// fixed window of a calendar word looks at cal, which may be nil for the others.
func newAlgorithm(l catalog.Limit, cal *calendar.Calendar) Algorithm {
	switch l.Algorithm {
	case catalog.SlidingLog:
		return slidingLog{windowMicros: l.Window.DurationMicros}
	case catalog.SlidingCounter:
		return slidingCounter{windowMicros: l.Window.DurationMicros}
	case catalog.FixedWindow:
		return fixedWindow{lengthMicros: l.Window.DurationMicros, word: l.Window.Calendar, calendar: cal}
	case catalog.TokenBucket:
		return newTokenBucket(l)
	case catalog.GCRA:
		return newGCRA(l)
	case catalog.LeakyBucket:
		return newLeakyBucket(l)
	case catalog.Concurrency:
		return concurrencyLimit{}
	}
	panic(fmt.Sprintf("quota: limit %q has the unknown algorithm %q", l.Name, l.Algorithm))
}

// limitUnits returns the number that used + held + cost must not pass: the limit,
// capacity, burst or queue.
func limitUnits(l catalog.Limit) int64 {
	switch l.Algorithm {
	case catalog.TokenBucket:
		return l.Capacity
	case catalog.GCRA:
		return l.Burst
	case catalog.LeakyBucket:
		return l.Queue
	default:
		return l.Limit
	}
}

// levelRate returns the rate at which a level comes back; zero without a level.
func levelRate(l catalog.Limit) catalog.Rate {
	switch l.Algorithm {
	case catalog.TokenBucket:
		return l.Refill
	case catalog.GCRA, catalog.LeakyBucket:
		return l.Rate
	default:
		return catalog.Rate{}
	}
}

// blocked reports whether the limit lets nothing through, ever: its limit, capacity,
// burst, queue or rate is 0.
func blocked(l catalog.Limit) bool {
	if l.Unlimited {
		return false
	}
	return limitUnits(l) == 0 || (l.Algorithm.KeepsLevel() && levelRate(l).Units == 0)
}

// quotedWindowMicros returns the span the limit is quoted over: the window, the
// nominal length of a calendar word, or the time an empty level takes to come back,
// rounded up. 0 when it never does.
func quotedWindowMicros(l catalog.Limit) int64 {
	if !l.Algorithm.KeepsLevel() {
		if l.Window.Calendar != "" {
			return nominalMicros(l.Window.Calendar)
		}
		return l.Window.DurationMicros
	}
	units, micros := lowestTerms(levelRate(l))
	if units == 0 {
		return 0
	}
	whole, ok := product(uint64(limitUnits(l)), uint64(micros)).ceilDiv(uint64(units))
	if !ok || whole > instantMaxMicros {
		return 0
	}
	return int64(whole)
}

// nominalMicros is a calendar word's ordinary length. A real window can be shorter
// or longer: its end is in reset_after_ms.
func nominalMicros(word catalog.Calendar) int64 {
	const day = 24 * time.Hour
	switch word {
	case catalog.CalendarHour:
		return time.Hour.Microseconds()
	case catalog.CalendarDay:
		return day.Microseconds()
	case catalog.CalendarWeek:
		return (7 * day).Microseconds()
	case catalog.CalendarMonth:
		return (30 * day).Microseconds()
	case catalog.CalendarYear:
		return (365 * day).Microseconds()
	}
	panic(fmt.Sprintf("quota: unknown calendar word %q", word))
}
