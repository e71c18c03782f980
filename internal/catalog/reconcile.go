package catalog

import (
	"maps"
	"slices"
)

// A state is what the database has of the objects that a configuration concerns.
type state struct {
	meters  map[string]haveMeter
	plans   map[string]havePlan
	tenants map[string]haveTenant

	settings Settings
}

type haveMeter struct {
	Meter
	removed bool
}

type havePlan struct {
	Plan    // the newest version
	removed bool
}

// edits is what has to be written for the database to agree with a configuration.
type edits struct {
	newMeters   []Meter
	meters      []Meter // changed, or brought back
	goneMeters  []string
	newVersions []Plan   // plans that get a new version
	backPlans   []string // plans brought back as they were
	gonePlans   []string
	newTenants  []Tenant
	tenants     []tenantEdit
	settings    *Settings // nil if they stay as they are
	changes     []Change
}

type tenantEdit struct{ before, after Tenant }

// none reports whether there is nothing to write.
func (e *edits) none() bool {
	return !slices.ContainsFunc(e.changes, func(c Change) bool { return c.Outcome != Unchanged })
}

// reconcile compares what should be there with what is, and adds a fault for each
// name that refers to nothing. Without prune, nothing is ever removed.
func reconcile(have state, want compiled, prune bool, faults *faultList) *edits {
	e := &edits{}
	meters := map[string]bool{} // those that exist once the change is made
	for _, m := range want.meters {
		meters[m.Name] = true
		e.putMeter(have.meters[m.Name], m)
	}
	e.pruneMeters(have.meters, meters, prune)
	plans := map[string]bool{}
	limits := have.plansByName()
	for i, p := range want.plans {
		plans[p.Name], limits[p.Name] = true, &want.plans[i]
		checkMeters(p, meters, faults)
		e.putPlan(have.plans[p.Name], p)
	}
	e.prunePlans(have.plans, plans, prune)
	e.putSettings(have.settings, want, prune)
	if name := want.settings.DefaultPlan; name != "" && !plans[name] {
		faults.add("default_plan", "must name a plan: there is no %s", name)
	}
	for _, t := range want.tenants {
		path := fieldPath("tenants", t.Name)
		if !plans[t.Plan] {
			faults.add(fieldPath(path, "plan"), "must name a plan: there is no %s", t.Plan)
		}
		if t.NextPlan != "" && !plans[t.NextPlan] {
			faults.add(fieldPath(path, "next_plan"), "must name a plan: there is no %s", t.NextPlan)
		}
		was := have.tenants[t.Name]
		fresh, err := t.over(was)
		if err != nil {
			faults.add(path, "%s", err)
		}
		checkOverrides(was.Tenant, fresh, limits, path, faults)
		e.putTenant(was.Tenant, fresh)
	}
	return e
}

// plansByName is the plans that there are, by name.
func (s state) plansByName() map[string]*Plan {
	plans := make(map[string]*Plan, len(s.plans))
	for name, p := range s.plans {
		plans[name] = &p.Plan
	}
	return plans
}

// pruneMeters removes the meters that are not in live, or else adds them to it.
func (e *edits) pruneMeters(have map[string]haveMeter, live map[string]bool, prune bool) {
	for _, name := range slices.Sorted(maps.Keys(have)) {
		m := have[name]
		switch {
		case m.removed || live[name]:
		case prune:
			e.goneMeters = append(e.goneMeters, name)
			e.changes = append(e.changes, specChange(ObjectMeter, name, m.Spec(), nil))
		default:
			live[name] = true
		}
	}
}

// prunePlans removes the plans that are not in live, or else adds them to it.
func (e *edits) prunePlans(have map[string]havePlan, live map[string]bool, prune bool) {
	for _, name := range slices.Sorted(maps.Keys(have)) {
		p := have[name]
		switch {
		case p.removed || live[name]:
		case prune:
			e.gonePlans = append(e.gonePlans, name)
			e.changes = append(e.changes, specChange(ObjectPlan, name, p.Spec(), nil))
		default:
			live[name] = true
		}
	}
}

func checkMeters(p Plan, live map[string]bool, faults *faultList) {
	for i, l := range p.Limits {
		if !live[l.Meter] {
			path := itemPath(fieldPath(fieldPath("plans", p.Name), "limits"), i)
			faults.add(fieldPath(path, "meter"), "must name a meter: there is no %s", l.Meter)
		}
	}
}

func (e *edits) putMeter(have haveMeter, want Meter) {
	want.ID = have.ID
	switch {
	case have.ID == 0:
		e.newMeters = append(e.newMeters, want)
		e.changes = append(e.changes, specChange(ObjectMeter, want.Name, nil, want.Spec()))
	case have.removed:
		e.meters = append(e.meters, want)
		e.changes = append(e.changes, specChange(ObjectMeter, want.Name, nil, want.Spec()))
	case have.Unit == want.Unit && have.OnExpiry == want.OnExpiry && maps.Equal(have.Weights, want.Weights):
		e.changes = append(e.changes, unchanged(ObjectMeter, want.Name))
	default:
		e.meters = append(e.meters, want)
		e.changes = append(e.changes, specChange(ObjectMeter, want.Name, have.Spec(), want.Spec()))
	}
}

func (e *edits) putPlan(have havePlan, want Plan) {
	want.Version = have.Version + 1
	setSince(have.Limits, &want)
	same := have.VersionID != 0 && slices.Equal(have.Limits, want.Limits)
	switch {
	case same && !have.removed:
		e.changes = append(e.changes, unchanged(ObjectPlan, want.Name))
		return
	case same:
		e.backPlans = append(e.backPlans, want.Name)
	default:
		e.newVersions = append(e.newVersions, want)
	}
	if have.VersionID == 0 || have.removed {
		e.changes = append(e.changes, specChange(ObjectPlan, want.Name, nil, want.Spec()))
	} else {
		e.changes = append(e.changes, specChange(ObjectPlan, want.Name, have.Spec(), want.Spec()))
	}
}

// setSince keeps the since of each limit that counts the same thing by the same
// algorithm as it did in the version before: its level goes on. Any other limit is
// new with this version, and starts full.
func setSince(before []Limit, plan *Plan) {
	old := make(map[string]Limit, len(before))
	for _, l := range before {
		old[l.Name] = l
	}
	for i := range plan.Limits {
		l := &plan.Limits[i]
		was, there := old[l.Name]
		if there && was.Algorithm == l.Algorithm && was.Meter == l.Meter && was.Scope == l.Scope {
			l.Since = was.Since
		} else {
			l.Since = plan.Version
		}
	}
}

func (e *edits) putTenant(was, fresh Tenant) {
	switch {
	case was.Name == "":
		e.newTenants = append(e.newTenants, fresh)
		e.changes = append(e.changes, specChange(ObjectTenant, fresh.Name, nil, fresh.Spec()))
	case was.equal(fresh):
		e.changes = append(e.changes, unchanged(ObjectTenant, fresh.Name))
	default:
		e.tenants = append(e.tenants, tenantEdit{was, fresh})
		e.changes = append(e.changes, specChange(ObjectTenant, fresh.Name, was.Spec(), fresh.Spec()))
	}
}

// putSettings changes the settings. A configuration that says nothing of them, and does
// not change them, has nothing to say of them either.
func (e *edits) putSettings(have Settings, want compiled, prune bool) {
	fresh := want.settings.over(have, prune || want.wholeSettings)
	switch {
	case fresh != have:
		e.settings = &fresh
		e.changes = append(e.changes, specChange(ObjectSettings, settingsName, have.Spec(), fresh.Spec()))
	case !want.settings.empty() || want.wholeSettings:
		e.changes = append(e.changes, unchanged(ObjectSettings, settingsName))
	}
}
