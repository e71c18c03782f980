package catalog

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// drawLimits draws the limits of a plan from few names, so that they often meet again.
func drawLimits(t *rapid.T) []Limit {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c"}), 0, 3, rapid.ID).Draw(t, "names")
	var limits []Limit
	for _, name := range names {
		l := Limit{
			Name: name, Meter: rapid.SampledFrom([]string{"m", "n"}).Draw(t, "meter"),
			Algorithm: GCRA, Rate: Rate{Units: rapid.Int64Range(0, 1).Draw(t, "units"), PerMicros: 1},
			Scope: rapid.SampledFrom([]Scope{ScopeTenant, ScopeSubject}).Draw(t, "scope"), Mode: ModeEnforce,
		}
		if rapid.Bool().Draw(t, "windowed") {
			l.Algorithm, l.Rate, l.Window = SlidingLog, Rate{}, Window{DurationMicros: 1000}
		}
		limits = append(limits, l)
	}
	return limits
}

func drawConfig(t *rapid.T) compiled {
	want := compiled{meters: []Meter{{Name: "m"}, {Name: "n"}}}
	for i := range want.meters {
		want.meters[i].Unit = rapid.SampledFrom([]string{"u", "v"}).Draw(t, "unit")
	}
	for _, name := range []string{"p", "q"} {
		if name == "p" || rapid.Bool().Draw(t, "has q") {
			want.plans = append(want.plans, Plan{Name: name, Limits: drawLimits(t)})
		}
	}
	if rapid.Bool().Draw(t, "has default plan") {
		want.settings.DefaultPlan = "p"
	}
	if rapid.Bool().Draw(t, "has tenant") {
		want.tenants = []wantedTenant{{Tenant: Tenant{
			Name: "t", Plan: "p", Timezone: "UTC", BillingAnchor: rapid.IntRange(1, 2).Draw(t, "anchor"),
			Status: rapid.SampledFrom([]Status{"", StatusActive, StatusClosed}).Draw(t, "status"),
		}}}
	}
	return want
}

// carryOut does in memory what write does in the database.
func (s *state) carryOut(e *edits) {
	for _, m := range append(e.newMeters, e.meters...) {
		if m.ID == 0 {
			m.ID = int32(len(s.meters) + 1)
		}
		s.meters[m.Name] = haveMeter{m, false}
	}
	for _, name := range e.goneMeters {
		s.meters[name] = haveMeter{s.meters[name].Meter, true}
	}
	for _, p := range e.newVersions {
		p.VersionID = int64(p.Version)
		s.plans[p.Name] = havePlan{p, false}
	}
	for _, name := range e.backPlans {
		s.plans[name] = havePlan{s.plans[name].Plan, false}
	}
	for _, name := range e.gonePlans {
		s.plans[name] = havePlan{s.plans[name].Plan, true}
	}
	if e.settings != nil {
		s.settings = *e.settings
	}
	for _, t := range e.newTenants {
		t.ID = 1
		s.tenants[t.Name] = haveTenant{Tenant: t}
	}
	for _, t := range e.tenants {
		s.tenants[t.after.Name] = haveTenant{Tenant: t.after}
	}
}

// Whatever is applied after whatever: it is there afterwards, applying it again does
// nothing, and a limit keeps its level exactly while it counts the same by the same.
func TestReconcileConvergesAndKeepsSince(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		have := state{meters: map[string]haveMeter{}, plans: map[string]havePlan{}, tenants: map[string]haveTenant{}}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			want, prune := drawConfig(t), rapid.Bool().Draw(t, "prune")
			before := map[string]havePlan{}
			for name, p := range have.plans {
				before[name] = p
			}
			var faults faultList
			have.carryOut(reconcile(have, want, prune, &faults))
			if err := faults.err(); err != nil {
				t.Fatalf("reconcile: %v", err)
			}
			if again := reconcile(have, want, prune, &faults); !again.none() {
				t.Fatalf("reconcile again would do %+v", again.changes)
			}
			for _, p := range want.plans {
				ignore := cmpopts.IgnoreFields(Limit{}, "Since")
				if diff := cmp.Diff(p.Limits, have.plans[p.Name].Limits, ignore, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("plan %s (-want +got):\n%s", p.Name, diff)
				}
				checkSince(t, before[p.Name].Plan, have.plans[p.Name].Plan)
			}
		}
	})
}

func checkSince(t *rapid.T, before, after Plan) {
	for _, l := range after.Limits {
		want := after.Version
		for _, was := range before.Limits {
			if was.Name == l.Name && was.Algorithm == l.Algorithm && was.Meter == l.Meter && was.Scope == l.Scope {
				want = was.Since
			}
		}
		if l.Since != want {
			t.Fatalf("limit %s of version %d has since %d, want %d", l.Name, after.Version, l.Since, want)
		}
	}
}
