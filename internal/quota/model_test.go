package quota

import (
	"math/big"

	"github.com/quotad/quotad/internal/catalog"
)

// The models keep lists of every entry, or exact rationals.

// A list is a history of entries, summed from the first one each time.
type list []posting

func (l list) sum(fromMicros, untilMicros int64) *big.Rat {
	sum := new(big.Rat)
	for _, e := range l {
		if fromMicros <= e.atMicros && e.atMicros < untilMicros {
			sum.Add(sum, rat(e.units))
		}
	}
	return sum
}

// logModel: the units in (now − W, now].
type logModel struct {
	windowMicros, limit int64
	entries             list
}

func (m *logModel) used(now int64) int64 {
	return m.entries.sum(now-m.windowMicros+1, now+1).Num().Int64()
}

func (m *logModel) admits(now, cost int64) bool { return m.used(now)+cost <= m.limit }

func (m *logModel) take(now, cost int64) { m.entries = append(m.entries, posting{now, cost}) }

// counterModel: prev·(W−e) + (cur+cost)·W ≤ limit·W.
type counterModel struct {
	windowMicros, limit int64
	entries             list
}

// scaled returns prev·(W−e) + cur·W.
func (m *counterModel) scaled(now int64) *big.Rat {
	start := now / m.windowMicros * m.windowMicros
	prev := m.entries.sum(start-m.windowMicros, start)
	cur := m.entries.sum(start, start+m.windowMicros)
	left := mulRat(prev, rat(start+m.windowMicros-now))
	return left.Add(left, mulRat(cur, rat(m.windowMicros)))
}

func (m *counterModel) used(now int64) int64 {
	scaled := m.scaled(now)
	return ceilRat(scaled.Quo(scaled, rat(m.windowMicros))).Int64()
}

func (m *counterModel) admits(now, cost int64) bool {
	scaled := m.scaled(now)
	scaled.Add(scaled, mulRat(rat(cost), rat(m.windowMicros)))
	return scaled.Cmp(mulRat(rat(m.limit), rat(m.windowMicros))) <= 0
}

func (m *counterModel) take(now, cost int64) { m.entries = append(m.entries, posting{now, cost}) }

// fixedModel: one number per cell.
type fixedModel struct {
	windowMicros, limit int64
	cells               map[int64]int64
}

func (m *fixedModel) used(now int64) int64 { return m.cells[now/m.windowMicros] }

func (m *fixedModel) admits(now, cost int64) bool { return m.used(now)+cost <= m.limit }

func (m *fixedModel) take(now, cost int64) {
	if m.cells == nil {
		m.cells = map[int64]int64{}
	}
	m.cells[now/m.windowMicros] += cost
}

// bucketModel: an exact level that is brought up to date at every look.
type bucketModel struct {
	capacity int64
	rate     catalog.Rate
	level    *big.Rat
	at       int64
}

func newBucketModel(capacity int64, rate catalog.Rate) *bucketModel {
	return &bucketModel{capacity: capacity, rate: rate, level: rat(capacity)}
}

func (m *bucketModel) refill(now int64) *big.Rat {
	if now > m.at {
		m.level.Add(m.level, mulRat(rat(now-m.at), perMicro(m.rate)))
		m.at = now
	}
	if m.level.Cmp(rat(m.capacity)) > 0 {
		m.level.SetInt64(m.capacity)
	}
	return m.level
}

func (m *bucketModel) used(now int64) int64 {
	return m.capacity - floorRat(m.refill(now)).Int64()
}

func (m *bucketModel) admits(now, cost int64) bool { return m.refill(now).Cmp(rat(cost)) >= 0 }

func (m *bucketModel) take(now, cost int64) { m.level.Sub(m.refill(now), rat(cost)) }

// gcraModel: the theoretical arrival time and the formula of the textbooks.
type gcraModel struct {
	burst int64
	unit  *big.Rat // T, µs for each unit
	tat   *big.Rat
}

func newGCRAModel(burst int64, rate catalog.Rate) *gcraModel {
	return &gcraModel{burst: burst, unit: new(big.Rat).Inv(perMicro(rate)), tat: new(big.Rat)}
}

// arrival returns max(now, tat) + cost·T.
func (m *gcraModel) arrival(now, cost int64) *big.Rat {
	from := rat(now)
	if m.tat.Cmp(from) > 0 {
		from.Set(m.tat)
	}
	return from.Add(from, mulRat(rat(cost), m.unit))
}

func (m *gcraModel) admits(now, cost int64) bool {
	arrival := m.arrival(now, cost)
	return arrival.Sub(arrival, mulRat(rat(m.burst), m.unit)).Cmp(rat(now)) <= 0
}

func (m *gcraModel) used(now int64) int64 {
	ahead := m.arrival(now, 0)
	ahead.Sub(ahead, rat(now))
	return ceilRat(ahead.Quo(ahead, m.unit)).Int64()
}

func (m *gcraModel) take(now, cost int64) { m.tat = m.arrival(now, cost) }

// leakyModel: the last departure of each request, in the order of their promises.
type leakyModel struct {
	queue      int64
	unit       *big.Rat // µs for each unit
	departures []*big.Rat
}

func newLeakyModel(queue int64, rate catalog.Rate) *leakyModel {
	return &leakyModel{queue: queue, unit: new(big.Rat).Inv(perMicro(rate))}
}

func (m *leakyModel) last() *big.Rat {
	if len(m.departures) == 0 {
		return new(big.Rat)
	}
	return m.departures[len(m.departures)-1]
}

// lost reports whether the last departure is after the year 9999: then nothing else
// is let in.
func (m *leakyModel) lost() bool { return m.last().Cmp(rat(instantMaxMicros)) >= 0 }

// backlog returns the units that have not departed at now.
func (m *leakyModel) backlog(now int64) *big.Rat {
	left := new(big.Rat).Sub(m.last(), rat(now))
	if left.Sign() < 0 {
		return new(big.Rat)
	}
	return left.Quo(left, m.unit)
}

func (m *leakyModel) used(now int64) int64 {
	if m.lost() {
		return catalog.UnitsMax
	}
	return ceilRat(m.backlog(now)).Int64()
}

func (m *leakyModel) admits(now, cost int64) bool {
	if m.lost() {
		return catalog.UnitsMax+cost <= m.queue
	}
	backlog := m.backlog(now)
	return backlog.Add(backlog, rat(cost)).Cmp(rat(m.queue)) <= 0
}

func (m *leakyModel) take(now, cost int64) {
	departure := rat(now)
	if m.last().Cmp(departure) > 0 {
		departure.Set(m.last())
	}
	m.departures = append(m.departures, departure.Add(departure, mulRat(rat(cost), m.unit)))
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func mulRat(a, b *big.Rat) *big.Rat { return new(big.Rat).Mul(a, b) }

// perMicro returns the rate in units per microsecond.
func perMicro(r catalog.Rate) *big.Rat { return new(big.Rat).SetFrac64(r.Units, r.PerMicros) }
