package quota

import "github.com/quotad/quotad/internal/catalog"

// instantMaxMicros is the last instant that RFC 3339 can write, the end of the year
// 9999. A level that would come back later than that never does, as far as any
// caller can tell, and arithmetic stays far from the end of int64.
const instantMaxMicros = 253_402_300_799_999_999

// debtMax is the deepest a level goes below empty. What a limit cannot deny (a
// settle above its hold, usage in shadow mode) can add up without bound; a level
// this deep already denies for good.
const debtMax = catalog.UnitsMax

// A bucket is a level that starts full and refills without ever passing its
// capacity. A [State] of it holds the units available as an exact rational,
// Units + Remainder/Denominator as of AtMicros; Units is below 0 while in debt. The
// Denominator is the refill's period in lowest terms, so that any number of reads
// and takes loses nothing: 7 per minute is exact for ever.
type bucket struct {
	capacity     int64
	refillUnits  int64 // per refillMicros, in lowest terms; 0 never refills
	refillMicros int64
}

func newBucket(capacity int64, refill catalog.Rate) bucket {
	units, micros := lowestTerms(refill)
	return bucket{capacity: capacity, refillUnits: units, refillMicros: micros}
}

// Edges returns none: the level is kept, not counted.
func (b bucket) Edges(int64) []Edge { return nil }

// Used returns what is missing to a full bucket, in units begun.
func (b bucket) Used(v View) int64 {
	return min(b.capacity-b.level(v).Units, catalog.UnitsMax)
}

// FreeAt returns when the refill has brought the level to capacity − target.
func (b bucket) FreeAt(v View, target int64) (atMicros int64, ok bool) {
	if b.Used(v) <= target {
		return v.NowMicros, true
	}
	if b.refillUnits == 0 {
		return 0, false
	}
	level := b.level(v)
	missing := product(uint64(b.capacity-target-level.Units), uint64(b.refillMicros)).
		minus(wide{lo: uint64(level.Remainder)})
	wait, ok := missing.ceilDiv(uint64(b.refillUnits))
	if !ok || wait > instantMaxMicros || level.AtMicros+int64(wait) > instantMaxMicros {
		return 0, false
	}
	return level.AtMicros + int64(wait), true
}

// Take returns the level less cost; a cost below 0 gives units back, up to a full
// bucket. It takes what it is told to, into debt if need be: denying is fits' work.
func (b bucket) Take(v View, cost int64) State {
	level := b.level(v)
	level.Units = max(level.Units-cost, -debtMax)
	if level.Units >= b.capacity {
		return b.full(level.AtMicros)
	}
	return level
}

// level returns the level at v.NowMicros, kept in the refill's own denominator: the rule
// must have held since the level was written, see [level.carry]. A clock
// behind the level's own instant means that no time has passed.
func (b bucket) level(v View) State {
	s := v.State
	at := max(v.NowMicros, s.AtMicros)
	if s.Fresh() || s.Units >= b.capacity {
		return b.full(at)
	}
	units := max(s.Units, -debtMax)
	gained := product(uint64(at-s.AtMicros), uint64(b.refillUnits)).
		plus(wide{lo: b.remainder(s)})
	if !gained.less(product(uint64(b.capacity-units), uint64(b.refillMicros))) {
		return b.full(at)
	}
	// Less than the room in the bucket was gained, so the quotient fits.
	whole, rest, _ := gained.floorDiv(uint64(b.refillMicros))
	return State{
		Units:       units + int64(whole),
		Remainder:   int64(rest),
		Denominator: b.refillMicros,
		AtMicros:    at,
	}
}

func (b bucket) full(atMicros int64) State {
	return State{Units: b.capacity, Denominator: b.refillMicros, AtMicros: atMicros}
}

// remainder returns the state's remainder over this bucket's denominator. After a
// changed rate it is rounded down, so a change never grants anything.
func (b bucket) remainder(s State) uint64 {
	if s.Denominator == b.refillMicros {
		return uint64(s.Remainder)
	}
	converted, _, _ := product(uint64(s.Remainder), uint64(b.refillMicros)).floorDiv(uint64(s.Denominator))
	return converted
}

// lowestTerms reduces a rate, so that 2000 per second is 1 per 500 µs. A rate of 0
// units, or none, is 0 per 1 µs.
func lowestTerms(r catalog.Rate) (units, micros int64) {
	if r.Units <= 0 || r.PerMicros <= 0 {
		return 0, 1
	}
	divisor := gcd(r.Units, r.PerMicros)
	return r.Units / divisor, r.PerMicros / divisor
}
