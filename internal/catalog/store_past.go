package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// config_change_name is walked backwards from the instant; no lock, rows never change.
const tenantAtSQL = `
select after
from quotad.config_change
where object = 'tenant' and name = $1 and changed_at <= $2
order by changed_at desc, change_id desc
limit 1`

// TenantAt returns a tenant's plan, status and calendar as they were configured at an
// instant. It returns [ErrNotFound] if the tenant was made later, or never.
func (s *Store) TenantAt(ctx context.Context, name string, at time.Time) (Tenant, error) {
	spec, err := one(ctx, s.pool, scanTenantSpec, tenantAtSQL, name, at)
	if err != nil {
		return Tenant{}, fmt.Errorf("tenant %q at %s: %w", name, at.Format(time.RFC3339Nano), err)
	}
	var faults faultList
	tenant := spec.compile(name, "", map[string]bool{}, &faults)
	return tenant.At(at), faults.err()
}

func scanTenantSpec(row pgx.CollectableRow) (spec TenantSpec, err error) {
	var text []byte
	if err := row.Scan(&text); err != nil {
		return spec, err
	}
	return spec, json.Unmarshal(text, &spec)
}

// plan_version_unique is walked backwards until a version is as old as the instant; no
// lock, rows never change.
const planAtSQL = `
select plan_version_id, plan, version, spec
from quotad.plan_version
where plan = $1 and created_at <= $2
order by version desc
limit 1`

// PlanAt returns the version of a plan that was the newest at an instant. It returns
// [ErrNotFound] if the plan was made later, or never.
func (s *Store) PlanAt(ctx context.Context, name string, at time.Time) (*Plan, error) {
	plan, err := one(ctx, s.pool, scanPlan, planAtSQL, name, at)
	if err != nil {
		return nil, fmt.Errorf("plan %s at %s: %w", name, at.Format(time.RFC3339Nano), err)
	}
	return plan, nil
}

// account_tenant_unique finds what the tenant has now, which is what is asked for most;
// only for another plan are the tenant's own changes looked through, by config_change_name.
// No lock: a plan that a tenant once had stays one that it had.
const hadPlanSQL = `
select exists (
    select
    from quotad.account
    where tenant = $1 and (plan = $2 or next_plan = $2))
  or exists (
    select
    from quotad.config_change
    where object = 'tenant' and name = $1 and (after ->> 'plan' = $2 or after ->> 'next_plan' = $2))`

// HadPlan reports whether a tenant has a plan, had it once, or was to get it.
func (s *Store) HadPlan(ctx context.Context, tenant, plan string) (bool, error) {
	had, err := one(ctx, s.pool, pgx.RowTo[bool], hadPlanSQL, tenant, plan)
	if err != nil {
		return false, fmt.Errorf("plan %s of tenant %q: %w", plan, tenant, err)
	}
	return had, nil
}

// As plansSQL, of the plans that hadPlanSQL finds: the tenant's own changes are read once.
const plansOfTenantSQL = `
select v.plan_version_id, p.plan, v.version, v.spec
from quotad.plan p
join quotad.plan_version v on v.plan_version_id = p.plan_version_id
where p.plan > $1 and not p.removed and p.plan in (
    select plan
    from quotad.account
    where tenant = $3
    union
    select next_plan
    from quotad.account
    where tenant = $3
    union
    select p.plan
    from quotad.config_change c
    cross join lateral (values (c.after ->> 'plan'), (c.after ->> 'next_plan')) as p(plan)
    where c.object = 'tenant' and c.name = $3)
order by p.plan
limit $2`

// PlansOfTenant returns what Plans does of the plans that a tenant has, had once, or was
// to get.
func (s *Store) PlansOfTenant(ctx context.Context, tenant string, page Page) (plans []*Plan, next string, err error) {
	plans, err = collect(ctx, s.pool, scanPlan, plansOfTenantSQL, page.After, page.limit()+1, tenant)
	if err != nil {
		return nil, "", fmt.Errorf("list the plans of tenant %q: %w", tenant, err)
	}
	plans, next = cut(plans, page, func(p *Plan) string { return p.Name })
	return plans, next, nil
}
