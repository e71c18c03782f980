package catalog

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
)

// A Put is what became of one object.
type Put struct {
	Change
	Version int64 `json:"version"` // of the configuration afterwards
	Tag     Tag   `json:"-"`       // of the object as it is stored now
}

// PutMeter creates a meter or changes its unit and weights; it stays the same meter
// to the ledger. Paths of faults are relative to spec. It returns a
// *[PreconditionError], as the other Puts do, if not every precondition holds.
func (s *Store) PutMeter(ctx context.Context, actor, name string, spec MeterSpec, when ...Precondition) (Put, error) {
	t := &target{object: ObjectMeter, name: name, path: fieldPath("meters", name), when: when}
	return s.put(ctx, actor, t, &Config{Meters: map[string]MeterSpec{name: spec}})
}

// PutPlan creates a plan or gives it a new version, if anything differs. Paths of
// faults are relative to spec.
func (s *Store) PutPlan(ctx context.Context, actor, name string, spec PlanSpec, when ...Precondition) (Put, error) {
	t := &target{object: ObjectPlan, name: name, path: fieldPath("plans", name), when: when}
	return s.put(ctx, actor, t, &Config{Plans: map[string]PlanSpec{name: spec}})
}

// PutTenant creates a tenant's account or changes its configuration. A calendar that
// it had stays valid for the windows that began under it. Paths of faults are
// relative to spec.
func (s *Store) PutTenant(ctx context.Context, actor, name string, spec TenantSpec, when ...Precondition) (Put, error) {
	t := &target{object: ObjectTenant, name: name, path: fieldPath("tenants", name), when: when}
	return s.put(ctx, actor, t, &Config{Tenants: map[string]TenantSpec{name: spec}})
}

// PutSettings changes the settings; what spec leaves out becomes what it is in a new
// database.
func (s *Store) PutSettings(ctx context.Context, actor string, spec SettingsSpec, when ...Precondition) (Put, error) {
	t := &target{object: ObjectSettings, name: settingsName, when: when}
	return s.put(ctx, actor, t, &Config{
		DefaultPlan: spec.DefaultPlan, DefaultPlanRate: spec.DefaultPlanRate, wholeSettings: true,
	})
}

func (s *Store) put(ctx context.Context, actor string, t *target, config *Config) (Put, error) {
	changes, err := s.apply(ctx, actor, config, ApplyOptions{}, t)
	if faults := Faults(err); len(faults) > 0 {
		var relative faultList
		for _, f := range faults {
			f.Path = strings.TrimPrefix(strings.TrimPrefix(f.Path, t.path), ".")
			relative.faults = append(relative.faults, f)
		}
		return Put{}, relative.err()
	}
	if err != nil {
		return Put{}, err
	}
	return Put{Change: changes.Items[0], Version: changes.Version, Tag: t.tag}, nil
}

// A target is the one object that a change is about: what must hold of it before, and
// its tag as it is stored. A nil target asks nothing.
type target struct {
	object Object
	name   string
	path   string // of the object in a configuration
	when   []Precondition
	tag    Tag
}

// check looks at the object under the lock that makes changes serial, so that nothing
// can come between this and the change.
func (t *target) check(have state) error {
	if t == nil {
		return nil
	}
	t.tag = have.tag(t.object, t.name)
	for _, p := range t.when {
		if err := p.Check(t.tag); err != nil {
			return err
		}
	}
	return nil
}

// reread takes the tag of the object as the change has stored it.
func (t *target) reread(ctx context.Context, tx pgx.Tx, want compiled) error {
	if t == nil {
		return nil
	}
	have, err := readState(ctx, tx, want, false)
	t.tag = have.tag(t.object, t.name)
	return err
}
