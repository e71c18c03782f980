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
	return tenant, faults.err()
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
