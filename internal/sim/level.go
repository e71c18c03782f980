package sim

import (
	"math/big"
	"sort"
)

// A level is the replayed state of a token bucket, a GCRA or a leaky bucket. A bucket's
// and a GCRA's value is the units available just after the newest entry, a leaky
// bucket's is the instant of the last departure in microseconds.
type level struct {
	renewed bool // there was another level of this name before
	loose   bool // its numbers have changed, so stored remainders may be rounded
	points  []point
}

// A point is the value of a level after one entry, and what that was taken under.
type point struct {
	index   int // of the entry
	at      int64
	value   *big.Rat
	version *version
	rule    *limit
}

// newest is the last point, nil for a level that nothing was taken from.
func (v *level) newest() *point {
	if len(v.points) == 0 {
		return nil
	}
	return &v.points[len(v.points)-1]
}

// upTo is the last point at a moment, nil if there is none.
func (v *level) upTo(m moment) *point {
	n := sort.Search(len(v.points), func(i int) bool { return v.points[i].index >= m.entries })
	if n == 0 {
		return nil
	}
	return &v.points[n-1]
}

// levelUsage is what a limit had used at an instant, after the entry of a point.
func levelUsage(l *limit, p *point, now int64) usage {
	if l.rate.Sign() == 0 { // it blocks, and nothing is taken from it
		return usage{new(big.Int), func(*big.Int) bool { return false }}
	}
	switch l.Algorithm {
	case "token_bucket":
		available := bucketAvailable(l, p, now)
		return usage{
			new(big.Int).Sub(l.size, floor(available)),
			func(cost *big.Int) bool { return new(big.Rat).SetInt(cost).Cmp(available) <= 0 },
		}
	case "gcra":
		return gcraUsage(l, p, now)
	default:
		backlog := new(big.Rat).Sub(departure(p, now), micros(now))
		return below(ceil(backlog.Mul(backlog, l.rate)), l.size)
	}
}

// bucketAvailable is what a bucket holds: it starts full and refills up to its capacity.
func bucketAvailable(l *limit, p *point, now int64) *big.Rat {
	full := new(big.Rat).SetInt(l.size)
	if p == nil {
		return full
	}
	refilled := new(big.Rat).Mul(micros(now-p.at), l.rate)
	if refilled.Add(refilled, p.value); refilled.Cmp(full) < 0 {
		return refilled
	}
	return full
}

// gcraUsage is the rule as it is written: max(now,tat) + cost·T − burst·T ≤ now, where
// T is the time of one unit and tat the theoretical arrival time.
func gcraUsage(l *limit, p *point, now int64) usage {
	unit := new(big.Rat).Inv(l.rate)
	late := latest(micros(now), tat(l, p, now))
	ahead := new(big.Rat).Sub(late, micros(now))
	return usage{
		ceil(new(big.Rat).Quo(ahead, unit)),
		func(cost *big.Int) bool {
			spent := new(big.Rat).SetInt(new(big.Int).Sub(cost, l.size))
			at := new(big.Rat).Add(late, spent.Mul(spent, unit))
			return at.Cmp(micros(now)) <= 0
		},
	}
}

// tat is the theoretical arrival time: now for a fresh limit.
func tat(l *limit, p *point, now int64) *big.Rat {
	if p == nil {
		return micros(now)
	}
	missing := new(big.Rat).Sub(new(big.Rat).SetInt(l.size), p.value)
	return missing.Quo(missing, l.rate).Add(missing, micros(p.at))
}

// departure is the last departure that was promised, or now.
func departure(p *point, now int64) *big.Rat {
	if p == nil {
		return micros(now)
	}
	return latest(micros(now), p.value)
}

// takeLevel is the value after a cost was taken at an instant. One below 0 is given back,
// up to a full level.
func takeLevel(l *limit, p *point, now int64, cost *big.Int) *big.Rat {
	units := new(big.Rat).SetInt(cost)
	switch l.Algorithm {
	case "token_bucket":
		return atMost(new(big.Rat).Sub(bucketAvailable(l, p, now), units), l.size)
	case "gcra":
		next := latest(micros(now), tat(l, p, now))
		next.Add(next, units.Quo(units, l.rate))
		ahead := next.Sub(next, micros(now))
		return atMost(ahead.Sub(new(big.Rat).SetInt(l.size), ahead.Mul(ahead, l.rate)), l.size)
	default:
		gone := departure(p, now)
		return gone.Add(gone, units.Quo(units, l.rate))
	}
}

// atMost is the lower of a level and its size.
func atMost(level *big.Rat, size *big.Int) *big.Rat {
	if full := new(big.Rat).SetInt(size); full.Cmp(level) < 0 {
		return full
	}
	return level
}

// delayMS is how long after now a departure is, in milliseconds, rounded up.
func delayMS(value *big.Rat, now int64) int64 {
	delay := new(big.Rat).Sub(value, micros(now))
	return ceil(delay.Quo(delay, big.NewRat(1000, 1))).Int64()
}

// micros is an instant or a span as a fraction.
func micros(at int64) *big.Rat { return new(big.Rat).SetInt64(at) }

// latest returns a copy of the later of two instants.
func latest(a, b *big.Rat) *big.Rat {
	if a.Cmp(b) < 0 {
		return new(big.Rat).Set(b)
	}
	return new(big.Rat).Set(a)
}

// agrees reports whether a stored level says what was replayed. After its numbers were
// changed a remainder was rounded, never in the tenant's favour: by less than a unit of
// a bucket, or than a millisecond of a departure.
func (v *level) agrees(stored storedLevel) bool {
	p := v.newest()
	if stored.version != p.version.id || stored.overrideSet != 0 || stored.denominator <= 0 {
		return false
	}
	value := new(big.Rat).SetFrac(big.NewInt(stored.remainder), big.NewInt(stored.denominator))
	against := new(big.Rat).Set(value)
	tolerance := big.NewRat(1, 1)
	if p.rule.Algorithm == "leaky_bucket" {
		value.Add(value, micros(stored.at))
		against.Sub(value, p.value) // a later departure is against the tenant
		tolerance = big.NewRat(1000, 1)
		if stored.units != 0 {
			return false
		}
	} else {
		value.Add(value, micros(stored.units))
		against.Sub(p.value, value)
		if stored.at != p.at {
			return false
		}
	}
	return against.Sign() == 0 || (v.loose && against.Sign() > 0 && against.Cmp(tolerance) < 0)
}
