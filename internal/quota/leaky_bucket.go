package quota

import "github.com/quotad/quotad/internal/catalog"

// A Shaper is an algorithm whose allowed requests have to wait their turn.
type Shaper interface {
	// DelayMillis returns how long after nowMicros a request may go whose Take
	// returned after, rounded up to a millisecond.
	DelayMillis(after State, nowMicros int64) int64
}

// A leakyBucket is a queue that shapes: each unit takes its turn, one every
// 1/rate, and a request goes when the turn of its last unit has come.
//
// A [State] of it is the last departure promised, the instant
// AtMicros + Remainder/Denominator µs (Units is 0): kept as an instant, a changed
// rate moves no promise, and departures stay in order and distinct.
type leakyBucket struct {
	queue      int64
	rateUnits  int64 // per rateMicros, in lowest terms; 0 never leaves
	rateMicros int64
}

func newLeakyBucket(l catalog.Limit) leakyBucket {
	units, micros := lowestTerms(l.Rate)
	return leakyBucket{queue: l.Queue, rateUnits: units, rateMicros: micros}
}

// Edges returns none: the last departure is kept, not counted.
func (b leakyBucket) Edges(int64) []Edge { return nil }

// Used returns the units that have not departed, a begun one included.
func (b leakyBucket) Used(v View) int64 {
	if v.State.AtMicros >= instantMaxMicros {
		return catalog.UnitsMax // see Take
	}
	atMicros, rest := b.departure(v)
	backlog := product(uint64(atMicros-v.NowMicros), uint64(b.rateUnits)).plus(wide{lo: rest})
	units, ok := backlog.ceilDiv(uint64(b.rateMicros))
	if !ok || units > catalog.UnitsMax {
		return catalog.UnitsMax
	}
	return int64(units)
}

// FreeAt returns when all but target units have departed.
func (b leakyBucket) FreeAt(v View, target int64) (atMicros int64, ok bool) {
	if b.Used(v) <= target {
		return v.NowMicros, true
	}
	if b.rateUnits == 0 || v.State.AtMicros >= instantMaxMicros {
		return 0, false
	}
	departure, rest := b.departure(v)
	ahead := product(uint64(target), uint64(b.rateMicros)) // of the last departure, in 1/rateUnits µs
	if ahead.less(wide{lo: rest}) {
		return departure + 1, true // rest is below one microsecond
	}
	// More than target units are left, so the quotient is below their time.
	early, _, _ := ahead.minus(wide{lo: rest}).floorDiv(uint64(b.rateUnits))
	return max(v.NowMicros, departure-int64(early)), true
}

// Take returns the departure of a request of this cost, behind everything promised
// before. Nothing is given back for a cost below 0: later departures are promised.
func (b leakyBucket) Take(v View, cost int64) State {
	atMicros, rest := b.departure(v)
	if b.rateUnits == 0 {
		return State{Remainder: 0, Denominator: 1, AtMicros: atMicros}
	}
	turns := product(uint64(max(0, cost)), uint64(b.rateMicros)).plus(wide{lo: rest})
	after, rest, ok := turns.floorDiv(uint64(b.rateUnits))
	if !ok || after > instantMaxMicros || atMicros+int64(after) >= instantMaxMicros {
		// It never departs, as far as any caller can tell, and Used lets nothing
		// else in behind it: a clamped departure must not make room.
		return State{Denominator: b.rateUnits, AtMicros: instantMaxMicros}
	}
	return State{Remainder: int64(rest), Denominator: b.rateUnits, AtMicros: atMicros + int64(after)}
}

// DelayMicros returns how long after nowMicros the departure is, rounded up.
func (b leakyBucket) DelayMicros(after State, nowMicros int64) int64 {
	atMicros := after.AtMicros
	if after.Remainder > 0 {
		atMicros++
	}
	return max(0, atMicros-nowMicros)
}

// DelayMillis returns the same in milliseconds. Rounding up twice is rounding up
// once: the microseconds are already a whole number at or above the exact delay.
func (b leakyBucket) DelayMillis(after State, nowMicros int64) int64 {
	return (b.DelayMicros(after, nowMicros) + 999) / 1000
}

// departure returns the last departure or now, whichever is later, as
// atMicros + rest/rateUnits. After a changed rate the rest is rounded up, so that the
// next departure is never before or at the last one.
func (b leakyBucket) departure(v View) (atMicros int64, rest uint64) {
	s := v.State
	if s.Fresh() || s.AtMicros < v.NowMicros {
		return v.NowMicros, 0
	}
	denominator := uint64(max(1, b.rateUnits))
	if rest = uint64(s.Remainder); uint64(s.Denominator) != denominator {
		rest, _ = product(rest, denominator).ceilDiv(uint64(s.Denominator))
	}
	if rest >= denominator {
		return s.AtMicros + 1, 0
	}
	return s.AtMicros, rest
}
