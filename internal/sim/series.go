package sim

import (
	"math/big"
	"sort"
	"time"
)

// A moment is an instant, and how many of the tenant's entries had been made.
type moment struct {
	at      int64
	entries int
}

// A series is the units of one meter, of a tenant or of one subject, as they came.
type series struct {
	indices  []int      // of each entry that used units, among those of the tenant
	ats      []int64    // of each, in microseconds
	sums     []*big.Int // units up to and including each
	returned []returned
	held     []held
}

// returned is units that were given back: they count no more from when they were used.
type returned struct {
	index int
	from  int64
	units int64
}

// held is what is set aside after an entry.
type held struct {
	index int
	units int64
	holds int64
}

// sum is all units so far, whatever was given back.
func (s *series) sum() *big.Int {
	if len(s.sums) == 0 {
		return new(big.Int)
	}
	return s.sums[len(s.sums)-1]
}

func (s *series) add(index int, at, units int64) {
	s.indices, s.ats = append(s.indices, index), append(s.ats, at)
	s.sums = append(s.sums, new(big.Int).Add(s.sum(), big.NewInt(units)))
}

// hold sets units aside, or frees them.
func (s *series) hold(index int, units, holds int64) {
	last := s.heldAt(moment{entries: index})
	s.held = append(s.held, held{index, last.units + units, last.holds + holds})
}

// heldAt is what is set aside at a moment.
func (s *series) heldAt(m moment) held {
	n := sort.Search(len(s.held), func(i int) bool { return s.held[i].index >= m.entries })
	if n == 0 {
		return held{}
	}
	return s.held[n-1]
}

// before is the units of all entries before an instant, of those that a moment knows.
func (s *series) before(at int64, m moment) *big.Int {
	n := sort.Search(len(s.ats), func(i int) bool { return s.ats[i] >= at })
	n = min(n, sort.SearchInts(s.indices, m.entries))
	if n == 0 {
		return new(big.Int)
	}
	return s.sums[n-1]
}

// within is the units of entries from one instant up to another, both included, less what
// was given back of them.
func (s *series) within(from, to int64, m moment) *big.Int {
	units := new(big.Int).Sub(s.before(to+1, m), s.before(from, m))
	for _, r := range s.returned {
		if r.index < m.entries && from <= r.from && r.from <= to {
			units.Sub(units, big.NewInt(r.units))
		}
	}
	return units
}

// usage is what a limit had used at an instant, and whether a cost would have fitted.
type usage struct {
	used *big.Int
	fits func(cost *big.Int) bool
}

// below is the comparison of every limit that counts whole units.
func below(used, size *big.Int) usage {
	return usage{used, func(cost *big.Int) bool {
		return new(big.Int).Add(used, cost).Cmp(size) <= 0
	}}
}

// windowUsage counts what a windowed limit had used at a moment.
func (t *tenant) windowUsage(l *limit, s *series, m moment) usage {
	now := m.at
	switch {
	case l.countsPlaces():
		return below(big.NewInt(s.heldAt(m).holds), l.size)
	case l.Algorithm == "sliding_log":
		return below(s.within(now-l.window+1, now, m), l.size)
	case l.Algorithm == "sliding_counter":
		return slidingCounterUsage(l, s, m)
	case l.window == 0:
		return below(s.within(calendarStart(l.Window, now, t.zone, t.anchor), now, m), l.size)
	default:
		return below(s.within(cell(now, l.window), now, m), l.size)
	}
}

// slidingCounterUsage is prev·(W−e) + (cur+cost)·W ≤ limit·W.
func slidingCounterUsage(l *limit, s *series, m moment) usage {
	now := m.at
	start := cell(now, l.window)
	width := big.NewInt(l.window)
	previous := s.within(start-l.window, start-1, m)
	current := s.within(start, now, m)
	covered := big.NewInt(l.window - (now - start))
	weighed := new(big.Int).Mul(previous, covered)
	used := new(big.Int).Add(current, ceil(new(big.Rat).SetFrac(weighed, width)))
	return usage{used, func(cost *big.Int) bool {
		left := new(big.Int).Add(current, cost)
		left.Mul(left, width).Add(left, weighed)
		return left.Cmp(new(big.Int).Mul(l.size, width)) <= 0
	}}
}

// cell is the start of the window of a length, aligned to the Unix epoch, that holds an
// instant.
func cell(at, length int64) int64 {
	quotient := new(big.Int).Div(big.NewInt(at), big.NewInt(length)) // rounds down for a length above 0
	return quotient.Int64() * length
}

// calendarStart is the start of the calendar window that holds an instant, where the
// tenant always had the same calendar and no clock was set back at the boundary.
func calendarStart(word string, at int64, zone *time.Location, anchor int) int64 {
	now := time.UnixMicro(at).In(zone)
	year, month, day := now.Date()
	switch word {
	case "hour":
		return now.Add(-time.Duration(now.Minute())*time.Minute - time.Duration(now.Second())*time.Second -
			time.Duration(now.Nanosecond())).UnixMicro()
	case "week":
		day -= (int(now.Weekday()) + 6) % 7 // Monday is the first
	case "month":
		start := anchored(year, month, anchor, zone)
		if start.After(now) {
			start = anchored(year, month-1, anchor, zone)
		}
		return start.UnixMicro()
	case "year":
		start := anchored(year, time.January, anchor, zone)
		if start.After(now) {
			start = anchored(year-1, time.January, anchor, zone)
		}
		return start.UnixMicro()
	}
	return time.Date(year, month, day, 0, 0, 0, 0, zone).UnixMicro()
}

// anchored is the anchor day of a month, or the last one of a month without it.
func anchored(year int, month time.Month, anchor int, zone *time.Location) time.Time {
	last := time.Date(year, month+1, 0, 0, 0, 0, 0, zone).Day()
	return time.Date(year, month, min(anchor, last), 0, 0, 0, 0, zone)
}

// floor and ceil round a fraction to a whole number.
func floor(r *big.Rat) *big.Int { return new(big.Int).Div(r.Num(), r.Denom()) }

func ceil(r *big.Rat) *big.Int {
	return new(big.Int).Neg(floor(new(big.Rat).Neg(r)))
}
