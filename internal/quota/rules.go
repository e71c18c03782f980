package quota

import (
	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// rules is one version of a plan, compiled for one calendar. It is immutable.
type rules struct {
	plan    *catalog.Plan
	byMeter map[string][]*limit // in the plan's order, without those that are off
	named   map[string]bool     // every meter the plan has a limit on, off ones included
}

// limit is one limit of rules.
type limit struct {
	catalog.Limit
	rule         Algorithm
	units        int64 // what used, held and cost are compared with
	blocked      bool
	windowMicros int64 // the span it is quoted over
}

func compilePlan(p *catalog.Plan, cal *calendar.Calendar) *rules {
	r := &rules{
		plan:    p,
		byMeter: make(map[string][]*limit, len(p.Limits)),
		named:   make(map[string]bool, len(p.Limits)),
	}
	for _, l := range p.Limits {
		r.named[l.Meter] = true
		if l.Mode == catalog.ModeOff {
			continue
		}
		r.byMeter[l.Meter] = append(r.byMeter[l.Meter], &limit{
			Limit:        l,
			rule:         newAlgorithm(l, cal),
			units:        limitUnits(l),
			blocked:      blocked(l),
			windowMicros: quotedWindowMicros(l),
		})
	}
	return r
}

// admits reports whether cost fits. Cost 0 fits wherever the limit is not blocked.
func (l *limit) admits(used, held, cost int64) bool {
	switch {
	case l.Unlimited:
		return true
	case l.blocked:
		return false
	case cost == 0:
		return true
	default:
		return fits(used, held, cost, l.units)
	}
}

// remaining is the largest cost that fits now; 0 for an unlimited limit, which says
// so apart.
func (l *limit) remaining(used, held int64) int64 {
	if l.Unlimited || l.blocked {
		return 0
	}
	return max(0, l.units-used-held)
}

// counts reports whether the limit counts usage of the subject; "" is none.
func (l *limit) counts(subject string) bool {
	return l.Scope != catalog.ScopeSubject || subject != ""
}

// asked reports whether the limit has a say in requests of a kind: one of concurrency only
// in holds.
func (l *limit) asked(kind ledger.Kind) bool {
	return l.Algorithm != catalog.Concurrency || kind == ledger.KindHold
}

// asks returns the number that the limit compares of a request for a cost: to one of
// concurrency each hold is one.
func (l *limit) asks(cost int64) int64 {
	if l.Algorithm == catalog.Concurrency {
		return 1
	}
	return cost
}

// subjectOf returns the subject whose usage the limit counts: "" for the whole tenant.
func (l *limit) subjectOf(subject string) string {
	if l.Scope == catalog.ScopeSubject {
		return subject
	}
	return ""
}
