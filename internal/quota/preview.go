package quota

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/internal/catalog"
)

// Bounds of a preview: whoever changes the configuration waits while it looks.
const (
	previewTenantsMax = 10_000 // tenants that are looked at
	previewListedMax  = 100    // tenants that are listed
	previewChunk      = 200    // tenants of one round trip
)

// A Preview is what a change of the configuration would mean for tenants right now. Limits
// that count per subject are left out: each subject stands somewhere else.
type Preview struct {
	Tenants  []TenantPreview `json:"tenants"`           // those with a difference, the newly denied first; at most 100
	Affected int             `json:"tenants_affected"`  // whose plan, overrides or status the change is about
	Looked   int             `json:"tenants_looked_at"` // of those; at most 10,000
	Differ   int             `json:"tenants_differing"` // of those: something is left that was not, or the other way round
	Denied   int             `json:"tenants_denied"`    // of those: a call of cost 1, or a hold, would be denied that is not now
}

// A TenantPreview is what changes for one tenant.
type TenantPreview struct {
	Tenant     string         `json:"tenant"`
	PlanBefore string         `json:"plan_before"`
	PlanAfter  string         `json:"plan_after"`
	Denied     bool           `json:"denied"` // on some meter
	Limits     []LimitPreview `json:"limits"` // those that differ, by meter and name
}

// A LimitPreview is what changes of one limit. What a limit has not is nil: it is not in
// the plan, or unlimited.
type LimitPreview struct {
	Name            string `json:"name"`
	Meter           string `json:"meter"`
	LimitBefore     *int64 `json:"limit_before,omitempty"`     // units
	LimitAfter      *int64 `json:"limit_after,omitempty"`      // units
	RemainingBefore *int64 `json:"remaining_before,omitempty"` // units
	RemainingAfter  *int64 `json:"remaining_after,omitempty"`  // units
	Denied          bool   `json:"denied"`                     // it denies a cost of 1 and did not
}

// add counts what a tenant has before and after, and keeps it if it differs.
func (p *Preview) add(before, after stood) {
	p.Looked++
	t := previewOf(before, after)
	if len(t.Limits) == 0 && t.PlanBefore == t.PlanAfter && !t.Denied {
		return
	}
	p.Differ++
	if t.Denied {
		p.Denied++
	}
	p.Tenants = append(p.Tenants, t)
	if len(p.Tenants) >= 2*previewListedMax {
		p.cut()
	}
}

// cut leaves the tenants that are to be listed.
func (p *Preview) cut() {
	slices.SortFunc(p.Tenants, func(a, b TenantPreview) int {
		if a.Denied != b.Denied {
			if a.Denied {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Tenant, b.Tenant)
	})
	p.Tenants = p.Tenants[:min(len(p.Tenants), previewListedMax)]
}

// stood is how the limits of a tenant stand, and under which rules.
type stood struct {
	Decision
	rules *rules
}

// previewOf compares how the limits of a tenant stand and would stand. What is used of a
// meter that the plan no longer names is denied.
func previewOf(before, after stood) TenantPreview {
	t := TenantPreview{
		Tenant: after.Tenant, PlanBefore: before.Standing.Plan, PlanAfter: after.Standing.Plan,
		Denied: before.Standing.Status == catalog.StatusActive && after.Standing.Status != catalog.StatusActive,
		Limits: []LimitPreview{},
	}
	for _, name := range limitNames(before.Decision, after.Decision) {
		was, is := limitNamed(before.Decision, name), limitNamed(after.Decision, name)
		l := LimitPreview{Denied: denies(is) && !denies(was)}
		if was != nil {
			l.Name, l.Meter = was.Name, was.Meter
			l.Denied = l.Denied || !after.rules.named[was.Meter] && !denies(was)
			l.LimitBefore, l.RemainingBefore = shownUnits(was)
		}
		if is != nil {
			l.Name, l.Meter = is.Name, is.Meter
			l.LimitAfter, l.RemainingAfter = shownUnits(is)
		}
		if l.Denied || !sameUnits(l.LimitBefore, l.LimitAfter) || !sameUnits(l.RemainingBefore, l.RemainingAfter) || (was == nil) != (is == nil) {
			t.Limits = append(t.Limits, l)
			t.Denied = t.Denied || l.Denied
		}
	}
	return t
}

// limitNames are the names of all limits of both, by meter and name.
func limitNames(before, after Decision) []string {
	type named struct{ meter, name string }
	var all []named
	for _, l := range slices.Concat(before.Limits, after.Limits) {
		all = append(all, named{l.Meter, l.Name})
	}
	slices.SortFunc(all, func(a, b named) int { return cmp.Or(cmp.Compare(a.meter, b.meter), cmp.Compare(a.name, b.name)) })
	var names []string
	for _, n := range all {
		if !slices.Contains(names, n.name) {
			names = append(names, n.name)
		}
	}
	return names
}

func limitNamed(d Decision, name string) *LimitResult {
	for i := range d.Limits {
		if d.Limits[i].Name == name {
			return &d.Limits[i]
		}
	}
	return nil
}

// denies reports whether a limit denies a cost of 1 now.
func denies(l *LimitResult) bool {
	return l != nil && l.Mode == catalog.ModeEnforce && !l.Unlimited && l.Remaining == 0
}

func shownUnits(l *LimitResult) (limit, remaining *int64) {
	if l.Unlimited {
		return nil, nil
	}
	return &l.Limit, &l.Remaining
}

func sameUnits(a, b *int64) bool { return a == b || a != nil && b != nil && *a == *b }
