package catalog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a tenant's zone must mean the same on every machine
)

// Bounds of a configuration. They keep a plan small enough to decide on in one batch,
// and the whole of it small enough to hold in memory on every instance.
const (
	MetersMax         = 1_000  // in a database
	PlansMax          = 1_000  // in a database
	TenantsMax        = 10_000 // in one file
	LimitsMax         = 64     // in a plan
	LimitsPerMeterMax = 16     // in a plan, on one meter
	PoolsMax          = 16     // of a meter
	HoldsOpenMax      = 1_000  // of a tenant at a time: a decision reads them all
	unitBytesMax      = 64     // a meter's unit
)

// A Config is the content of a configuration file: what should be there. Objects that
// it does not name are left alone, unless [ApplyOptions] says to prune.
type Config struct {
	Meters  map[string]MeterSpec  `json:"meters,omitempty"`
	Plans   map[string]PlanSpec   `json:"plans,omitempty"`
	Tenants map[string]TenantSpec `json:"tenants,omitempty"`

	// What holds for the whole database. Absent ones stay as they are.
	DefaultPlan     string `json:"default_plan,omitempty"`      // as SettingsSpec has it
	DefaultPlanRate *int   `json:"default_plan_rate,omitempty"` // as SettingsSpec has it

	wholeSettings bool   // absent settings go back to what a new database has
	source        source // where each field stands, if it came from a file
}

// A MeterSpec is a meter as it is written in a file and in JSON.
type MeterSpec struct {
	Unit    string                `json:"unit"`
	Weights map[string]WeightText `json:"weights,omitempty"` // by pool

	// OnExpiry is what becomes of a hold that nobody resolves in time: release, which is
	// also what it is if absent, or charge.
	OnExpiry Expiry `json:"on_expiry,omitempty"`
}

// A PlanSpec is a plan as it is written in a file and in JSON.
type PlanSpec struct {
	Limits []LimitSpec `json:"limits"`
}

// Validate returns every fault of the configuration by itself. What it refers to may
// be in the database; [Store.Apply] checks that.
func (c *Config) Validate() error {
	var faults faultList
	c.compile(&faults)
	return c.source.locate(faults)
}

// compiled is a configuration as the domain's own types.
type compiled struct {
	meters  []Meter // sorted by name, as are the others
	plans   []Plan
	tenants []wantedTenant

	settings      SettingsSpec
	wholeSettings bool
}

// compile checks the configuration and translates it. The result is of use only if
// there are no faults.
func (c *Config) compile(faults *faultList) compiled {
	out := compiled{settings: SettingsSpec{c.DefaultPlan, c.DefaultPlanRate}, wholeSettings: c.wholeSettings}
	if len(c.Meters)+len(c.Plans)+len(c.Tenants) == 0 && out.settings.empty() && !c.wholeSettings {
		faults.add("", "must name at least one meter, plan or tenant")
	}
	out.settings.compile(faults)
	atMost(faults, "meters", len(c.Meters), MetersMax)
	atMost(faults, "plans", len(c.Plans), PlansMax)
	atMost(faults, "tenants", len(c.Tenants), TenantsMax)
	for _, name := range slices.Sorted(maps.Keys(c.Meters)) {
		path := fieldPath("meters", name)
		checkName(faults, path, name)
		out.meters = append(out.meters, c.Meters[name].compile(name, path, faults))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Plans)) {
		path := fieldPath("plans", name)
		checkName(faults, path, name)
		out.plans = append(out.plans, c.Plans[name].compile(name, path, faults))
	}
	zones := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		path := fieldPath("tenants", name)
		if rule := IDRule(name); rule != "" {
			faults.add(path, "a tenant's id %s", rule)
		}
		out.tenants = append(out.tenants, c.Tenants[name].compile(name, path, zones, faults))
	}
	return out
}

// Compile returns the configuration as it would be in a database that holds nothing
// else, and its tenants sorted by name. The error lists every fault, what refers to
// nothing in the configuration included.
func (c *Config) Compile() (*Snapshot, []Tenant, error) {
	var faults faultList
	want := c.compile(&faults)
	if err := c.source.locate(faults); err != nil {
		return nil, nil, err
	}
	todo := reconcile(state{}, want, false, &faults)
	if err := c.source.locate(faults); err != nil {
		return nil, nil, err
	}
	meters, plans := make([]*Meter, len(todo.newMeters)), make([]*Plan, len(todo.newVersions))
	for i := range todo.newMeters {
		meters[i] = &todo.newMeters[i]
		meters[i].ID = int32(i + 1)
	}
	for i := range todo.newVersions {
		plans[i] = &todo.newVersions[i]
		plans[i].VersionID = int64(i + 1)
	}
	snapshot := NewSnapshot(1, meters, plans)
	snapshot.settings = want.settings.over(Settings{}, true)
	return snapshot, todo.newTenants, nil
}

// Validate returns every fault of the meter.
func (s MeterSpec) Validate() error {
	var faults faultList
	s.compile("", "", &faults)
	return faults.err()
}

func (s MeterSpec) compile(name, path string, faults *faultList) Meter {
	m := Meter{
		Name: name, Unit: s.Unit, Weights: make(map[string]Weight, len(s.Weights)), OnExpiry: cmp.Or(s.OnExpiry, ExpiryRelease),
	}
	oneOf(faults, fieldPath(path, "on_expiry"), m.OnExpiry, ExpiryRelease, ExpiryCharge)
	if s.Unit == "" {
		faults.add(fieldPath(path, "unit"), "is required")
	} else if rule := shortTextRule(s.Unit, unitBytesMax); rule != "" {
		faults.add(fieldPath(path, "unit"), "%s", rule)
	}
	weightsPath := fieldPath(path, "weights")
	atMost(faults, weightsPath, len(s.Weights), PoolsMax)
	for _, pool := range slices.Sorted(maps.Keys(s.Weights)) {
		checkName(faults, fieldPath(weightsPath, pool), pool)
		weight, err := ParseWeight(string(s.Weights[pool]))
		if err != nil {
			faults.add(fieldPath(weightsPath, pool), weightRule)
		}
		m.Weights[pool] = weight
	}
	return m
}

// Spec is the meter as it is written, in its one canonical form.
func (m *Meter) Spec() MeterSpec {
	spec := MeterSpec{Unit: m.Unit, OnExpiry: m.OnExpiry}
	for pool, weight := range m.Weights {
		if spec.Weights == nil {
			spec.Weights = make(map[string]WeightText, len(m.Weights))
		}
		spec.Weights[pool] = WeightText(weight.String())
	}
	return spec
}

// validZone refuses names that mean something else elsewhere: Local and localtime are
// the machine's own, and right/ and posix/ are on some systems only (right/ counts
// leap seconds).
func validZone(name string) bool {
	switch {
	case name == "", name == "Local", name == "localtime",
		strings.HasPrefix(name, "right/"), strings.HasPrefix(name, "posix"):
		return false
	}
	_, err := time.LoadLocation(name)
	return err == nil
}

func checkName(faults *faultList, path, name string) {
	if !ValidName(name) {
		faults.add(path, "a name %s", NameRule)
	}
}

func atMost(faults *faultList, path string, n, most int) {
	if n > most {
		faults.add(path, "must hold at most %d, not %d", most, n)
	}
}

// oneOf adds a fault unless value is one of allowed.
func oneOf[T ~string](faults *faultList, path string, value T, allowed ...T) {
	if slices.Contains(allowed, value) {
		return
	}
	words := make([]string, len(allowed))
	for i, a := range allowed {
		words[i] = string(a)
	}
	faults.add(path, "%s", fmt.Sprintf("must be one of %s", strings.Join(words, ", ")))
}
