package catalog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// ApplyOptions says how far [Store.Apply] goes.
type ApplyOptions struct {
	Prune bool // remove the meters, plans and settings that the configuration does not name
}

// Apply makes the database agree with the configuration, as one transaction: all of
// it or, on any fault, nothing. The error then lists every [Fault]. What agrees
// already is left as it is, so applying the same configuration again writes nothing.
// Tenants are never removed, nor is a plan that a tenant has, or that is the default.
// [Store.DryRun] has the same done and undone.
func (s *Store) Apply(ctx context.Context, actor string, config *Config, options ApplyOptions) (Changes, error) {
	return s.apply(ctx, actor, config, options, nil)
}

// apply is Apply; with a target, what must hold of that one object is checked first.
func (s *Store) apply(
	ctx context.Context, actor string, config *Config, options ApplyOptions, one *target,
) (Changes, error) {
	var faults faultList
	want := config.compile(&faults)
	if err := config.source.locate(faults); err != nil {
		return Changes{}, err
	}
	result := Changes{DryRun: s.look != nil}
	err := s.inChange(ctx, func(tx pgx.Tx, version int64) (keep bool, err error) {
		have, err := readState(ctx, tx, want, options.Prune)
		if err != nil {
			return false, err
		}
		if err := one.check(have); err != nil {
			return false, err
		}
		todo := reconcile(have, want, options.Prune, &faults)
		if err := config.source.locate(faults); err != nil {
			return false, err
		}
		result.Version, result.Items = version-1, todo.changes
		if todo.none() {
			return false, nil
		}
		if s.look != nil {
			if err := s.look(ctx, tx, todo.changes, false); err != nil {
				return false, err
			}
		}
		if err := write(ctx, tx, actor, version, todo); err != nil {
			return false, err
		}
		if err := checkWhole(ctx, tx, todo.gonePlans, &faults); err != nil {
			return false, err
		}
		if err := config.source.locate(faults); err != nil {
			return false, err
		}
		if err := one.reread(ctx, tx, want); err != nil {
			return false, err
		}
		if s.look != nil {
			return false, s.look(ctx, tx, todo.changes, true)
		}
		result.Version = version
		return true, nil
	})
	if err != nil {
		return Changes{}, err
	}
	return result, nil
}

// meter_unique finds the named ones; with $2, the whole table of at most a thousand
// and the removed. Changes are serial, so no lock.
const stateMetersSQL = `
select meter_id, meter, jsonb_build_object('unit', unit, 'weights', weights, 'on_expiry', on_expiry), removed
from quotad.meter
where meter = any($1) or ($2 and not removed)`

// plan_pkey and plan_version_pkey find the named ones; with $2, the whole table of
// at most a thousand and the removed. Changes are serial, so no lock.
const statePlansSQL = `
select v.plan_version_id, p.plan, v.version, v.spec, p.removed
from quotad.plan p
join quotad.plan_version v on v.plan_version_id = p.plan_version_id
where p.plan = any($1) or ($2 and not p.removed)`

// account_tenant_unique finds them. No lock: only changes of the configuration write
// these columns, and those are serial.
const stateTenantsSQL = tenantRows + `
where a.tenant = any($1)`

// readState reads what a configuration names or refers to, and with all also every
// other meter and plan.
func readState(ctx context.Context, tx pgx.Tx, want compiled, all bool) (state, error) {
	meters, plans, tenants := map[string]bool{}, map[string]bool{}, []string{}
	for _, m := range want.meters {
		meters[m.Name] = true
	}
	for _, p := range want.plans {
		plans[p.Name] = true
		for _, l := range p.Limits {
			meters[l.Meter] = true
		}
	}
	for _, t := range want.tenants {
		plans[t.Plan], plans[t.NextPlan] = true, true
		tenants = append(tenants, t.Name)
	}
	haveTenants, err := collect(ctx, tx, scanHaveTenant, stateTenantsSQL, tenants)
	if err != nil {
		return state{}, fmt.Errorf("read tenants: %w", err)
	}
	for _, t := range haveTenants {
		plans[t.Plan], plans[t.NextPlan] = true, true
	}
	plans[want.settings.DefaultPlan] = true
	haveMeters, err := collect(ctx, tx, scanHaveMeter, stateMetersSQL, slices.Sorted(maps.Keys(meters)), all)
	if err != nil {
		return state{}, fmt.Errorf("read meters: %w", err)
	}
	havePlans, err := collect(ctx, tx, scanHavePlan, statePlansSQL, slices.Sorted(maps.Keys(plans)), all)
	if err != nil {
		return state{}, fmt.Errorf("read plans: %w", err)
	}
	settings, err := readSettings(ctx, tx)
	if err != nil {
		return state{}, err
	}
	return state{
		meters:  byName(haveMeters, func(m haveMeter) string { return m.Name }),
		plans:   byName(havePlans, func(p havePlan) string { return p.Name }),
		tenants: byName(haveTenants, func(t haveTenant) string { return t.Name }),

		settings: settings,
	}, nil
}

func byName[T any](items []T, name func(T) string) map[string]T {
	out := make(map[string]T, len(items))
	for _, item := range items {
		out[name(item)] = item
	}
	return out
}

func scanHaveMeter(row pgx.CollectableRow) (haveMeter, error) {
	var (
		id      int32
		name    string
		spec    []byte
		removed bool
	)
	if err := row.Scan(&id, &name, &spec, &removed); err != nil {
		return haveMeter{}, err
	}
	meter, err := decodeMeter(name, id, spec)
	if err != nil {
		return haveMeter{}, err
	}
	return haveMeter{*meter, removed}, nil
}

func scanHavePlan(row pgx.CollectableRow) (havePlan, error) {
	var (
		versionID int64
		name      string
		version   int32
		spec      []byte
		removed   bool
	)
	if err := row.Scan(&versionID, &name, &version, &spec, &removed); err != nil {
		return havePlan{}, err
	}
	plan, err := decodeStored(name, version, versionID, spec)
	if err != nil {
		return havePlan{}, err
	}
	return havePlan{*plan, removed}, nil
}

// account_plan and account_of_next_plan find the accounts of each plan; index-only scans of
// those alone.
const plansUsedSQL = `
select u.plan, count(*)
from (
  select plan
  from quotad.account
  where plan = any($1)
  union all
  select next_plan
  from quotad.account
  where next_plan = any($1)
) u
group by u.plan
order by u.plan`

// Counts two tables of at most a few thousand rows.
const countsSQL = `
select
  (select count(*) from quotad.meter where not removed),
  (select count(*) from quotad.plan where not removed)`

// checkWhole checks, after a change, what only the whole database can tell.
func checkWhole(ctx context.Context, tx pgx.Tx, gonePlans []string, faults *faultList) error {
	var meters, plans int
	if err := tx.QueryRow(ctx, countsSQL).Scan(&meters, &plans); err != nil {
		return fmt.Errorf("count meters and plans: %w", err)
	}
	atMost(faults, "meters", meters, MetersMax)
	atMost(faults, "plans", plans, PlansMax)
	if len(gonePlans) == 0 {
		return nil
	}
	var (
		plan    string
		tenants int
	)
	rows, err := tx.Query(ctx, plansUsedSQL, gonePlans)
	if err != nil {
		return fmt.Errorf("count the tenants of removed plans: %w", err)
	}
	_, err = pgx.ForEachRow(rows, []any{&plan, &tenants}, func() error {
		faults.add(fieldPath("plans", plan), "cannot be removed: tenants that have it or get it next: %d", tenants)
		return nil
	})
	if err != nil {
		return fmt.Errorf("count the tenants of removed plans: %w", err)
	}
	return nil
}

// errNoRow says that a row which the change had read is gone.
var errNoRow = errors.New("a row vanished under the lock of the configuration")
