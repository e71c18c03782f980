package sim

import (
	"slices"
	"time"
)

// spent is a call that was acknowledged, as its callers saw it: begun when the first of them
// asked, decided when the first of them knew.
type spent struct {
	first *Call
	began time.Time
	ended time.Time
	units int64 // of one meter, less what was given back
}

// CheckOutside finds windows that acknowledged answers alone show to be over a limit,
// whatever the ledger says: calls that were all begun and answered within one window of a
// sliding log were all admitted in it. It goes by the clock of the callers, so it looks at
// no call during which the database's may have been stepped.
func (l *Ledger) CheckOutside(calls []Call) []string {
	f := newFindings()
	for tenant, spends := range acknowledged(calls) {
		t := l.byName[tenant]
		if t == nil {
			continue // said elsewhere
		}
		for _, limit := range l.largest(t) {
			if over := limit.passed(spends); over != nil {
				l.over++
				f.add(tenant, "%s and those before it were allowed more of %s within %s than limit %s of %s admits",
					over.first, limit.Meter, limit.Window, limit.Name, limit.size)
			}
		}
	}
	return f.lines
}

// acknowledged is what each tenant was allowed to consume, by tag.
func acknowledged(calls []Call) map[string]map[string]*spent {
	of := make(map[string]map[string]*spent)
	for i := range calls {
		call := &calls[i]
		if call.kind() != KindConsume || call.DryRun || call.ClockOff > 0 {
			continue
		}
		if of[call.Tenant] == nil {
			of[call.Tenant] = make(map[string]*spent)
		}
		s := of[call.Tenant][call.Tag]
		if s == nil {
			s = &spent{began: call.Started}
			of[call.Tenant][call.Tag] = s
		}
		if call.Outcome == OutcomeAllowed && (s.first == nil || call.end().Before(s.ended)) {
			s.first, s.ended = call, call.end()
		}
	}
	once := make(map[tagKey]bool)
	for i := range calls { // whatever may have been given back is
		call := &calls[i]
		key := tagKey{call.Tenant, call.Tag}
		if call.kind() != KindReverse || call.Outcome == OutcomeRefused || once[key] {
			continue
		}
		once[key] = true
		for _, s := range of[call.Tenant] {
			if s.first != nil && s.first.Receipt.FirstSeq <= call.Seq && call.Seq <= s.first.Receipt.Seq {
				s.units -= call.Units
			}
		}
	}
	return of
}

// largest is the sliding logs that count a whole tenant, each with the largest number it
// had in any version of a plan that the tenant had.
func (l *Ledger) largest(t *tenant) []*limit {
	found := make(map[string]*limit)
	for _, v := range l.versions {
		if !slices.ContainsFunc(t.terms, func(had terms) bool { return had.plan == v.plan || had.nextPlan == v.plan }) {
			continue
		}
		for _, limit := range v.limits {
			if limit.Algorithm != "sliding_log" || limit.Scope == "subject" || limit.Mode != "enforce" || limit.Unlimited {
				continue
			}
			if have := found[limit.Name]; have == nil || have.size.Cmp(limit.size) < 0 {
				found[limit.Name] = limit
			}
		}
	}
	limits := make([]*limit, 0, len(found))
	for _, name := range sortedKeys(found) {
		limits = append(limits, found[name])
	}
	return limits
}

// passed returns the last call of a window with more in it than the limit; nil without one.
func (l *limit) passed(spends map[string]*spent) *spent {
	var ordered []spent
	for _, s := range spends {
		if s.first != nil && s.first.Charged[l.Meter] > 0 {
			one := *s
			one.units += one.first.Charged[l.Meter]
			ordered = append(ordered, one)
		}
	}
	slices.SortFunc(ordered, func(a, b spent) int { return a.ended.Compare(b.ended) })
	window := time.Duration(l.window) * time.Microsecond
	for i, last := range ordered {
		units := int64(0)
		for j := i; j >= 0 && last.ended.Sub(ordered[j].ended) < window; j-- {
			if last.ended.Sub(ordered[j].began) < window {
				units += ordered[j].units
			}
		}
		if units > l.size.Int64() {
			return &ordered[i]
		}
	}
	return nil
}
