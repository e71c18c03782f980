package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/quotad/quotad/internal/calendar"
)

// A TenantSpec is a tenant as it is written in a file and in JSON. Its plan is in force at
// once, and no other is to follow, unless it says so: by plan_from, or by next_plan and
// next_plan_at, which is the canonical form of the same.
type TenantSpec struct {
	Plan          string         `json:"plan"`
	PlanFrom      PlanFrom       `json:"plan_from,omitempty"`      // now if absent
	NextPlan      string         `json:"next_plan,omitempty"`      // in force from next_plan_at on
	NextPlanAt    string         `json:"next_plan_at,omitempty"`   // RFC 3339
	Timezone      string         `json:"timezone,omitempty"`       // IANA name; UTC if absent
	BillingAnchor *int           `json:"billing_anchor,omitempty"` // day of month; 1 if absent
	Status        Status         `json:"status,omitempty"`         // if absent: as it was, active for a new tenant
	Overrides     []OverrideSpec `json:"overrides,omitempty"`      // if absent: as they were; none if empty
}

// A PlanFrom says from when on a tenant's plan is in force.
type PlanFrom string

const (
	PlanFromNow        PlanFrom = "now"
	PlanFromNextPeriod PlanFrom = "next_period" // of its billing months; until then the plan stays that it has
)

// A wantedTenant is what a configuration says of a tenant. A zero Status, Timezone or
// BillingAnchor and nil Overrides mean: as it was.
type wantedTenant struct {
	Tenant
	planFrom PlanFrom
}

// A haveTenant is a tenant as the database has it, at its own now.
type haveTenant struct {
	Tenant
	now       time.Time // never before its newest entry
	calendars []calendar.Past
}

// Validate returns every fault of the tenant's configuration.
func (s TenantSpec) Validate() error {
	var faults faultList
	s.compile("", "", map[string]bool{}, &faults)
	return faults.err()
}

// compile remembers in zones which time zones exist: most tenants share a few.
func (s TenantSpec) compile(name, path string, zones map[string]bool, faults *faultList) wantedTenant {
	t := wantedTenant{Tenant{Name: name, Plan: s.Plan, Status: s.Status, Timezone: s.Timezone}, s.PlanFrom}
	switch {
	case s.Plan == "":
		faults.add(fieldPath(path, "plan"), "is required")
	case !ValidName(s.Plan):
		faults.add(fieldPath(path, "plan"), NameRule)
	}
	s.compileNext(path, &t, faults)
	known, seen := zones[t.Timezone]
	if !seen {
		known = t.Timezone == "" || validZone(t.Timezone)
		zones[t.Timezone] = known
	}
	if !known {
		faults.add(fieldPath(path, "timezone"), "must be an IANA time zone such as Asia/Jakarta or UTC")
	}
	if s.BillingAnchor != nil {
		t.BillingAnchor = *s.BillingAnchor
	}
	if s.BillingAnchor != nil && (t.BillingAnchor < 1 || t.BillingAnchor > 31) {
		faults.add(fieldPath(path, "billing_anchor"), "must be a whole number from 1 to 31")
	}
	if s.Status != "" {
		oneOf(faults, fieldPath(path, "status"), s.Status, StatusActive, StatusSuspended, StatusClosed)
	}
	if s.Overrides != nil {
		t.Overrides = compileOverrides(s.Overrides, fieldPath(path, "overrides"), faults)
	}
	return t
}

// compileNext reads which plan is to follow, and from when on.
func (s TenantSpec) compileNext(path string, t *wantedTenant, faults *faultList) {
	if s.PlanFrom != "" {
		oneOf(faults, fieldPath(path, "plan_from"), s.PlanFrom, PlanFromNow, PlanFromNextPeriod)
	}
	at := fieldPath(path, "next_plan")
	switch {
	case s.NextPlan == "" && s.NextPlanAt == "":
		return
	case s.PlanFrom != "":
		faults.add(at, "must not stand beside plan_from")
	case s.NextPlan == "":
		faults.add(at, "is required beside next_plan_at")
	case !ValidName(s.NextPlan):
		faults.add(at, NameRule)
	case s.NextPlan == s.Plan:
		faults.add(at, "must be another one than plan")
	case s.NextPlanAt == "":
		faults.add(fieldPath(path, "next_plan_at"), "is required beside next_plan: plan_from takes the next period")
	default:
		micros := readInstant(s.NextPlanAt, fieldPath(path, "next_plan_at"), faults)
		t.NextPlan, t.NextPlanAt = s.NextPlan, time.UnixMicro(micros).UTC()
	}
}

// Spec is the tenant's configuration as it is written, in its one canonical form.
func (t Tenant) Spec() TenantSpec {
	spec := TenantSpec{
		Plan: t.Plan, Timezone: t.Timezone, BillingAnchor: &t.BillingAnchor, Status: t.Status,
		Overrides: overrideSpecs(t.Overrides),
	}
	if t.NextPlan != "" {
		spec.NextPlan, spec.NextPlanAt = t.NextPlan, writeInstant(t.NextPlanAt.UnixMicro())
	}
	return spec
}

// At is the tenant's configuration from an instant's point of view: a next plan whose
// time has come is the plan.
func (t Tenant) At(at time.Time) Tenant {
	if t.NextPlan != "" && !at.Before(t.NextPlanAt) {
		t.Plan, t.NextPlan, t.NextPlanAt = t.NextPlan, "", time.Time{}
	}
	return t
}

// sameTerms reports whether limits and prices are the same under both, now and later.
func (t Tenant) sameTerms(other Tenant) bool {
	return t.Plan == other.Plan && t.NextPlan == other.NextPlan && t.NextPlanAt.Equal(other.NextPlanAt) &&
		slices.Equal(t.Overrides, other.Overrides)
}

func (t Tenant) equal(other Tenant) bool {
	return t.sameTerms(other) && t.Status == other.Status && t.Timezone == other.Timezone && t.BillingAnchor == other.BillingAnchor
}

// over returns the tenant that comes of writing w over the one that there is, if there is
// one.
func (w wantedTenant) over(was haveTenant) (Tenant, error) {
	there := was.Name != ""
	fresh := w.Tenant
	fresh.ID, fresh.CreatedAt, fresh.OverrideSetID = was.ID, was.CreatedAt, was.OverrideSetID
	kept := Tenant{Status: StatusActive, Timezone: "UTC", BillingAnchor: 1}
	if there {
		kept = was.Tenant
	}
	fresh.Status = cmp.Or(w.Status, kept.Status)
	fresh.Timezone = cmp.Or(w.Timezone, kept.Timezone)
	fresh.BillingAnchor = cmp.Or(w.BillingAnchor, kept.BillingAnchor)
	if w.Overrides == nil {
		fresh.Overrides = kept.Overrides
	}
	if there && w.planFrom == PlanFromNextPeriod {
		fresh.Plan = was.Plan
		switch {
		case w.Plan == was.Plan: // as it is, and no other follows
		case w.Plan == was.NextPlan:
			fresh.NextPlan, fresh.NextPlanAt = was.NextPlan, was.NextPlanAt
		default:
			end, err := was.periodEnd(fresh)
			fresh.NextPlan, fresh.NextPlanAt = w.Plan, end
			return fresh, err
		}
	}
	return fresh.At(was.now), nil
}

// periodEnd returns when the billing month of the tenant ends that it is in now; fresh is
// the tenant with the calendar that it is to have.
func (h haveTenant) periodEnd(fresh Tenant) (time.Time, error) {
	past := slices.Clone(h.calendars)
	if changesCalendar(h.Tenant, fresh) {
		past = append(past, calendar.Past{Until: h.now, Timezone: h.Timezone, BillingAnchor: h.BillingAnchor})
	}
	setting := calendar.Setting{Timezone: fresh.Timezone, BillingAnchor: fresh.BillingAnchor}
	cal, err := calendar.New(setting, past, time.LoadLocation)
	if err != nil {
		return time.Time{}, fmt.Errorf("the billing month of tenant %q: %w", fresh.Name, err)
	}
	_, end := cal.Window(calendar.Month, h.now.UnixMicro())
	return time.UnixMicro(end).UTC(), nil
}

func changesCalendar(before, after Tenant) bool {
	return before.Timezone != after.Timezone || before.BillingAnchor != after.BillingAnchor
}

// checkOverrides adds a fault for each override that is new and that no plan of the
// tenant has a limit for, the one in force or the next. Those that it had are let be: its
// plan may have changed since.
func checkOverrides(was, fresh Tenant, plans map[string]*Plan, path string, faults *faultList) {
	for i := range fresh.Overrides {
		o := &fresh.Overrides[i]
		if slices.Contains(was.Overrides, *o) {
			continue
		}
		rule := fmt.Sprintf("must name a limit of the tenant's plan: %s has no %s", fresh.Plan, o.Name)
		for _, name := range []string{fresh.NextPlan, fresh.Plan} {
			if l := plans[name].limit(o.Name); l != nil && rule != "" {
				_, rule = o.over(*l)
			}
		}
		if rule != "" {
			faults.add(itemPath(fieldPath(path, "overrides"), i), "%s", rule)
		}
	}
}

// limit returns the limit of that name; nil if there is none, or no plan.
func (p *Plan) limit(name string) *Limit {
	if p == nil {
		return nil
	}
	if i := slices.IndexFunc(p.Limits, func(l Limit) bool { return l.Name == name }); i >= 0 {
		return &p.Limits[i]
	}
	return nil
}
