package quota_test

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// limit is one limit of a plan in the model's own words.
type limit struct {
	name, meter string
	algorithm   catalog.Algorithm
	size        int64 // units: its limit, capacity, burst or queue
	unlimited   bool
	window      int64 // µs; 0 with a calendar
	calendar    catalog.Calendar
	units, per  int64 // of the rate; per in µs
	bySubject   bool
	mode        catalog.Mode

	version int // of the plan that says so
	born    int // the version that introduced it: a level of another one is not its level
}

func (l *limit) hasLevel() bool {
	return l.algorithm == catalog.TokenBucket || l.algorithm == catalog.GCRA || l.algorithm == catalog.LeakyBucket
}

func (l *limit) blocks() bool {
	return !l.unlimited && l.size == 0 || l.hasLevel() && l.units == 0
}

// rate is in units per microsecond.
func (l *limit) rate() *big.Rat { return big.NewRat(l.units, l.per) }

// spec is the limit as the catalog takes it.
func (l *limit) spec() catalog.LimitSpec {
	s := catalog.LimitSpec{Name: l.name, Meter: l.meter, Algorithm: l.algorithm, Mode: l.mode, Scope: catalog.ScopeTenant}
	if l.bySubject {
		s.Scope = catalog.ScopeSubject
	}
	rate := fmt.Sprintf("%d/%dus", l.units, l.per)
	switch l.algorithm {
	case catalog.TokenBucket:
		s.Capacity, s.Refill = &l.size, rate
	case catalog.GCRA:
		s.Burst, s.Rate = &l.size, rate
	case catalog.LeakyBucket:
		s.Queue, s.Rate = &l.size, rate
	case catalog.Concurrency:
		s.Limit = &l.size
	default:
		s.Limit, s.Window = &l.size, cmp.Or(string(l.calendar), fmt.Sprintf("%dus", l.window))
	}
	if l.unlimited {
		s.Limit, s.Unlimited = nil, true
	}
	return s
}

func (l *limit) String() string {
	s := l.spec()
	text := fmt.Sprintf("%s on %s: %s size %d", l.name, l.meter, l.algorithm, l.size)
	for _, part := range []string{s.Window, s.Refill, s.Rate} {
		if part != "" {
			text += " " + part
		}
	}
	if l.unlimited {
		text += " unlimited"
	}
	return text + fmt.Sprintf(" %s %s", s.Scope, s.Mode)
}

// counts reports whether what subject did on meter is the limit's business when it is
// looked at for the subject of.
func (l *limit) counts(meter, subject, of string) bool {
	return l.meter == meter && (!l.bySubject || subject == of)
}

// standing is how a limit stands at an instant: what is used, exactly, and set aside.
type standing struct {
	used *big.Rat
	held int64
}

// stand measures a limit at an instant, now or later, as it is without further traffic.
func (tn *tenant) stand(l *limit, subject string, at int64) standing {
	s := standing{used: new(big.Rat)}
	open := 0
	for _, h := range tn.holds {
		if !h.openAt(at) {
			continue
		}
		on := false
		for _, p := range h.parts {
			if l.counts(p.meter, h.subject, subject) {
				s.held += p.units
				on = true
			}
		}
		if on {
			open++
		}
	}
	switch l.algorithm {
	case catalog.SlidingLog:
		s.used = tn.sum(l, subject, at-l.window+1, at+1, at)
	case catalog.FixedWindow:
		start, end := tn.cell(l, at)
		s.used = tn.sum(l, subject, start, end, at)
	case catalog.SlidingCounter:
		start := at / l.window * l.window
		share := big.NewRat(start+l.window-at, l.window)
		s.used.Mul(tn.sum(l, subject, start-l.window, start, at), share)
		s.used.Add(s.used, tn.sum(l, subject, start, start+l.window, at))
	case catalog.TokenBucket, catalog.GCRA:
		s.used.Sub(whole(l.size), tn.level(l, subject, at))
	case catalog.LeakyBucket:
		s.held = 0
		if left := new(big.Rat).Sub(tn.lastDeparture(l, subject, at), whole(at)); left.Sign() > 0 {
			s.used.Mul(left, l.rate())
		}
	case catalog.Concurrency:
		s.held, s.used = 0, whole(int64(open))
	}
	return s
}

// sum adds up what counts in [from, to) of what has happened up to an instant.
func (tn *tenant) sum(l *limit, subject string, from, to, at int64) *big.Rat {
	total := int64(0)
	for _, f := range tn.factsAt(at) {
		if l.counts(f.meter, f.subject, subject) && from <= f.effective && f.effective < to {
			total += f.units
		}
	}
	return whole(total)
}

// fits reports whether cost fits a limit at an instant.
func (tn *tenant) fits(l *limit, subject string, at, cost int64) bool {
	switch {
	case l.blocks():
		return false
	case l.unlimited || cost == 0:
		return true
	}
	s := tn.stand(l, subject, at)
	need := new(big.Rat).Add(s.used, whole(s.held+cost))
	return need.Cmp(whole(l.size)) <= 0
}

// An op is what was taken from a level, or given back, and the numbers that the limit
// had then.
type op struct {
	key   levelKey
	at    int64
	units int64
	terms limit
}

type levelKey struct {
	name    string
	born    int
	subject string
}

func keyOf(l *limit, subject string) levelKey {
	if !l.bySubject {
		subject = ""
	}
	return levelKey{l.name, l.born, subject}
}

// opsAt is everything taken from a level up to an instant, the charges of holds that have
// expired by then included.
func (tn *tenant) opsAt(l *limit, subject string, at int64) []op {
	key := keyOf(l, subject)
	var ops []op
	for _, o := range tn.ops {
		if o.key == key {
			ops = append(ops, o)
		}
	}
	if l.algorithm == catalog.LeakyBucket {
		return ops
	}
	for _, f := range tn.expiries(at) {
		if l.counts(f.meter, f.subject, subject) && f.units > 0 {
			ops = append(ops, op{key, f.at, f.units, *l})
		}
	}
	return ops
}

// level is what is there of a bucket. Between two touches, the time of each version of the
// plan counts at the rate and up to the size that the limit had then; a version that the
// next one replaced at once had no time.
func (tn *tenant) level(l *limit, subject string, at int64) *big.Rat {
	ops := tn.opsAt(l, subject, at)
	if len(ops) == 0 {
		return whole(l.size)
	}
	is, last := &ops[0].terms, ops[0].at
	level := whole(is.size)
	refill := func(to int64) {
		level.Add(level, new(big.Rat).Mul(whole(to-last), is.rate()))
		level, last = least(level, whole(is.size)), to
	}
	elapse := func(version int, to int64) {
		for v := is.version + 1; v <= version; v++ {
			from := max(last, tn.plans.at(v))
			if v < version && tn.plans.at(v+1) <= from {
				continue
			}
			refill(min(to, from))
			is = tn.plans.limit(v, l)
			level = least(level, whole(is.size))
		}
		refill(to)
	}
	for _, o := range ops {
		elapse(o.terms.version, o.at)
		level.Sub(level, whole(o.units))
		level = least(level, whole(o.terms.size))
	}
	elapse(l.version, at)
	return level
}

// lastDeparture is when the last unit leaves a queue: µs, exactly.
func (tn *tenant) lastDeparture(l *limit, subject string, at int64) *big.Rat {
	last := new(big.Rat)
	for _, o := range tn.opsAt(l, subject, at) {
		last = depart(last, o.at, o.units, &o.terms)
	}
	return last
}

// depart is when units leave that come behind others.
func depart(last *big.Rat, at, units int64, l *limit) *big.Rat {
	if units == 0 {
		return last
	}
	if last.Cmp(whole(at)) < 0 {
		last = whole(at)
	}
	return new(big.Rat).Add(last, new(big.Rat).Quo(whole(units), l.rate()))
}

// cell is the window of a fixed_window limit that an instant is in.
func (tn *tenant) cell(l *limit, at int64) (start, end int64) {
	if l.window > 0 {
		start = at / l.window * l.window
		return start, start + l.window
	}
	edges := tn.edges(l.calendar, at)
	i, found := slices.BinarySearch(edges, at)
	if !found {
		i--
	}
	return edges[i], edges[i+1]
}

// edges are starts of calendar windows in the tenant's zone, from before an instant to
// behind it.
func (tn *tenant) edges(word catalog.Calendar, at int64) []int64 {
	local := time.UnixMicro(at).In(tn.zone)
	year, month, day := local.Date()
	date := func(y int, m time.Month, d int) int64 { return time.Date(y, m, d, 0, 0, 0, 0, tn.zone).UnixMicro() }
	anchored := func(y int, m time.Month) int64 {
		last := time.Date(y, m+1, 0, 0, 0, 0, 0, time.UTC).Day()
		return date(y, m, min(tn.anchor, last))
	}
	var edges []int64
	for i := -2; i <= 2; i++ {
		switch word {
		case catalog.CalendarHour: // offsets of the zones here are whole in quarters
			start := time.Date(year, month, day, local.Hour(), 0, 0, 0, tn.zone)
			edges = append(edges, start.Add(time.Duration(i)*time.Hour).UnixMicro())
		case catalog.CalendarDay:
			edges = append(edges, date(year, month, day+i))
		case catalog.CalendarWeek:
			monday := day - (int(local.Weekday())+6)%7
			edges = append(edges, date(year, month, monday+7*i))
		case catalog.CalendarMonth:
			edges = append(edges, anchored(year, month+time.Month(i)))
		case catalog.CalendarYear:
			edges = append(edges, anchored(year+i, time.January))
		}
	}
	return edges
}

// searchMax is how far the model looks for an instant: 30 years, and no wait here is as long.
const searchMax = int64(1e15)

// firstAt finds the first instant from which on something holds that, once true without
// traffic, stays true.
func firstAt(from int64, holds func(at int64) bool) (at int64, found bool) {
	if holds(from) {
		return from, true
	}
	low, step := from, int64(1) // false at low
	for ; !holds(from + step); step *= 2 {
		low = from + step
		if step > searchMax {
			return 0, false
		}
	}
	high := from + step
	for high-low > 1 {
		if middle := low + (high-low)/2; holds(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high, true
}

func whole(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func least(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) <= 0 {
		return a
	}
	return b
}

func roundDown(r *big.Rat) int64 {
	return new(big.Int).Div(r.Num(), r.Denom()).Int64() // Euclidean: down, as denominators are positive
}

func roundUp(r *big.Rat) int64 { return -roundDown(new(big.Rat).Neg(r)) }
