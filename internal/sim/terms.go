package sim

import (
	"context"
	"slices"
	"time"
)

// terms is what a tenant had from an instant on: a plan, perhaps another from a later
// instant on. Overrides are not known here: entries that name them are said to be so.
type terms struct {
	at         int64
	plan       string
	nextPlan   string
	nextPlanAt int64
}

const termsSQL = `
select t.tenant_id, t.at, t.plan, coalesce(t.next_plan, ''), coalesce(t.next_plan_at, t.at)
from quotad.terms t
order by t.tenant_id, t.at, t.terms_id`

func (l *Ledger) readTerms(ctx context.Context, db Querier) error {
	var tenantID int64
	var row terms
	var at, nextPlanAt time.Time
	return each(ctx, db, termsSQL, []any{&tenantID, &at, &row.plan, &row.nextPlan, &nextPlanAt}, func() error {
		t, fresh := l.of(tenantID), row
		fresh.at, fresh.nextPlanAt = at.UnixMicro(), nextPlanAt.UnixMicro()
		t.terms = append(t.terms, fresh)
		return nil
	})
}

// carried is a level at an instant under limit l of version v, from the point at which it was
// last written: each span of time between counts by what the tenant had in it. nil is a
// level that is full.
func (w *walk) carried(p *point, v *version, l *limit, at int64) *point {
	if p == nil {
		return nil
	}
	was, value := *p, p
	if p.rule.Algorithm != "leaky_bucket" { // promises stand
		cuts := w.cuts(p.at, at)
		for i, from := range cuts[:len(cuts)-1] {
			in := w.versionAt(from, p.version, v)
			is := in.limit(p.rule.Name)
			if is == nil || !is.keepsLevel() {
				if value != nil {
					value = &point{at: cuts[i+1], value: value.value}
				}
				continue
			}
			if !goesOn(was.version, was.rule, in, is) {
				value = nil
			}
			if value != nil && is.Algorithm != "leaky_bucket" {
				value = &point{at: cuts[i+1], value: bucketAvailable(is, value, cuts[i+1])}
			}
			was.version, was.rule = in, is
		}
	}
	if value == nil || !goesOn(was.version, was.rule, v, l) {
		return nil
	}
	return value
}

// cuts are the instants, between two and with both, at which the tenant may have got
// something else.
func (w *walk) cuts(from, to int64) []int64 {
	cuts := []int64{from, max(from, to)}
	add := func(at int64) {
		if from < at && at < to {
			cuts = append(cuts, at)
		}
	}
	for _, t := range w.tenant.terms {
		add(t.at)
		add(t.nextPlanAt)
	}
	for _, v := range w.ledger.versions {
		add(v.at)
	}
	slices.Sort(cuts)
	return slices.Compact(cuts[:len(cuts):len(cuts)])
}

// versionAt is the version that was in force at an instant, by the dates of changes. Those
// are from before they are committed: it is none older than the one that was decided under
// before, and none newer than the one after.
func (w *walk) versionAt(at int64, before, after *version) *version {
	have := w.tenant.terms[0]
	for _, t := range w.tenant.terms {
		if t.at <= at {
			have = t
		}
	}
	plan := have.plan
	if have.nextPlan != "" && at >= have.nextPlanAt {
		plan = have.nextPlan
	}
	var found, first *version
	for _, v := range w.ledger.versions {
		switch {
		case v.plan != plan, plan == before.plan && v.number < before.number, plan == after.plan && v.number > after.number:
			continue
		case v.at <= at && (found == nil || v.number > found.number):
			found = v
		}
		if first == nil || v.number < first.number {
			first = v
		}
	}
	if found == nil {
		return first
	}
	return found
}

// limit returns the limit of a name; nil if there is none.
func (v *version) limit(name string) *limit {
	if v == nil {
		return nil
	}
	if i := slices.IndexFunc(v.limits, func(l *limit) bool { return l.Name == name }); i >= 0 {
		return v.limits[i]
	}
	return nil
}

// goesOn reports whether a level goes on from one limit to another: they count the same by
// the same, and its plan has not made it anew.
func goesOn(from *version, was *limit, to *version, is *limit) bool {
	return was.Algorithm == is.Algorithm && was.Meter == is.Meter && was.Scope == is.Scope &&
		(from.plan != to.plan || was.Since == is.Since)
}
