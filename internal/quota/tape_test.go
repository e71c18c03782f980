package quota

import (
	"fmt"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// A tape is the smallest ledger that can drive one algorithm: a list of entries, read
// in full each time, and the level. It keeps whatever it is told, in time order.
type tape struct {
	rule    Algorithm
	entries []posting
	total   int64
	state   State
}

// posting is one consumption on a tape.
type posting struct {
	atMicros int64
	units    int64
}

// view reads what the rule sees at now.
func (p *tape) view(nowMicros int64) View {
	v := View{NowMicros: nowMicros, Total: p.total, State: p.state}
	for _, edge := range p.rule.Edges(nowMicros) {
		v.Before = append(v.Before, p.totalBefore(edge.AtMicros))
	}
	for _, e := range p.entries {
		if e.units > 0 {
			v.LastAtMicros = e.atMicros
		}
	}
	v.Crossing = p.crossing
	return v
}

func (p *tape) totalBefore(atMicros int64) int64 {
	var sum int64
	for _, e := range p.entries {
		if e.atMicros < atMicros {
			sum += e.units
		}
	}
	return sum
}

func (p *tape) crossing(total int64) int64 {
	var sum int64
	for _, e := range p.entries {
		if sum += e.units; sum >= total {
			return e.atMicros
		}
	}
	panic(fmt.Sprintf("asked for the crossing of %d, the total is %d", total, sum))
}

// take consumes cost at now, fitting or not.
func (p *tape) take(nowMicros, cost int64) {
	p.state = p.rule.Take(p.view(nowMicros), cost)
	p.entries = append(p.entries, posting{nowMicros, cost})
	p.total += cost
}

// offer takes cost if it fits, as decide does without holds.
func (p *tape) offer(nowMicros, cost, limit int64) (admitted bool) {
	if !fits(p.rule.Used(p.view(nowMicros)), 0, cost, limit) {
		return false
	}
	p.take(nowMicros, cost)
	return true
}

// micros reads an instant as tests write it.
func micros(text string) int64 {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return t.UnixMicro()
}

func instant(atMicros int64) string {
	return time.UnixMicro(atMicros).UTC().Format(time.RFC3339Nano)
}

const (
	second = int64(time.Second / time.Microsecond)
	minute = 60 * second
	hours  = 60 * minute
	days   = 24 * hours
	years  = 365 * days
)

func perSecond(units int64) catalog.Rate { return catalog.Rate{Units: units, PerMicros: second} }

func perMinute(units int64) catalog.Rate { return catalog.Rate{Units: units, PerMicros: minute} }
