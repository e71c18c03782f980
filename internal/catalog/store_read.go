package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounds of one page of a list.
const (
	PageItems    = 100 // if nothing is asked for
	PageItemsMax = 1_000
)

// A Page is a part of a list. Its zero value is the first [PageItems].
type Page struct {
	After string // the cursor that the page before gave; "" for the first
	Limit int    // 1 to PageItemsMax items; 0 for PageItems
}

func (p Page) limit() int {
	if p.Limit <= 0 {
		return PageItems
	}
	return min(p.Limit, PageItemsMax)
}

// meter_unique finds the row; no lock.
const meterSQL = `
select meter_id, meter, jsonb_build_object('unit', unit, 'weights', weights, 'on_expiry', on_expiry), removed
from quotad.meter
where meter = $1 and not removed`

// meter_unique is walked from the cursor; no lock.
const metersSQL = `
select meter_id, meter, jsonb_build_object('unit', unit, 'weights', weights, 'on_expiry', on_expiry), removed
from quotad.meter
where meter > $1 and not removed
order by meter
limit $2`

// Reads the whole table, removed meters included; no lock.
const allMetersSQL = `
select meter_id, meter, jsonb_build_object('unit', unit, 'weights', weights, 'on_expiry', on_expiry), removed
from quotad.meter`

// Meter returns a meter. It returns [ErrNotFound] if there is none.
func (s *Store) Meter(ctx context.Context, name string) (*Meter, error) {
	m, err := one(ctx, s.pool, scanHaveMeter, meterSQL, name)
	if err != nil {
		return nil, fmt.Errorf("meter %s: %w", name, err)
	}
	return &m.Meter, nil
}

// Meters returns meters in the order of their names, and the cursor of the next page;
// "" if this is the last.
func (s *Store) Meters(ctx context.Context, page Page) (meters []*Meter, next string, err error) {
	have, err := collect(ctx, s.pool, scanHaveMeter, metersSQL, page.After, page.limit()+1)
	if err != nil {
		return nil, "", fmt.Errorf("list meters: %w", err)
	}
	have, next = cut(have, page, func(m haveMeter) string { return m.Name })
	for i := range have {
		meters = append(meters, &have[i].Meter)
	}
	return meters, next, nil
}

// MetersByID returns every meter that ever was, removed ones too: entries name meters
// by their ID.
func (s *Store) MetersByID(ctx context.Context, q Querier) (map[int32]*Meter, error) {
	have, err := collect(ctx, q, scanHaveMeter, allMetersSQL)
	if err != nil {
		return nil, fmt.Errorf("read meters: %w", err)
	}
	out := make(map[int32]*Meter, len(have))
	for i := range have {
		out[have[i].ID] = &have[i].Meter
	}
	return out, nil
}

// plan_pkey and plan_version_pkey find the row; no lock.
const planSQL = `
select v.plan_version_id, p.plan, v.version, v.spec
from quotad.plan p
join quotad.plan_version v on v.plan_version_id = p.plan_version_id
where p.plan = $1 and not p.removed`

// plan_pkey is walked from the cursor; no lock.
const plansSQL = `
select v.plan_version_id, p.plan, v.version, v.spec
from quotad.plan p
join quotad.plan_version v on v.plan_version_id = p.plan_version_id
where p.plan > $1 and not p.removed
order by p.plan
limit $2`

// Plan returns the current version of a plan. It returns [ErrNotFound] if there is
// none.
func (s *Store) Plan(ctx context.Context, name string) (*Plan, error) {
	p, err := one(ctx, s.pool, scanPlan, planSQL, name)
	if err != nil {
		return nil, fmt.Errorf("plan %s: %w", name, err)
	}
	return p, nil
}

// Plans returns the current versions of plans in the order of their names, and the
// cursor of the next page; "" if this is the last.
func (s *Store) Plans(ctx context.Context, page Page) (plans []*Plan, next string, err error) {
	plans, err = collect(ctx, s.pool, scanPlan, plansSQL, page.After, page.limit()+1)
	if err != nil {
		return nil, "", fmt.Errorf("list plans: %w", err)
	}
	plans, next = cut(plans, page, func(p *Plan) string { return p.Name })
	return plans, next, nil
}

// What a tenant is, of an account a; override_set_pkey finds its overrides.
const (
	tenantColumns = `
select a.tenant_id, a.tenant, a.plan, coalesce(a.next_plan, ''), a.next_plan_at, a.override_set_id, o.overrides,
       a.status, a.timezone, a.billing_anchor, a.created_at, a.calendar_past,
       greatest(quotad.decision_clock(), a.last_at)`
	tenantOverrides = `
left join quotad.override_set o on o.override_set_id = a.override_set_id`
	tenantRows = tenantColumns + `
from quotad.account a` + tenantOverrides
)

// account_tenant_unique finds the row; no lock.
const tenantSQL = tenantRows + `
where a.tenant = $1`

// Tenant returns a tenant's configuration. It returns [ErrNotFound] if there is none.
func (s *Store) Tenant(ctx context.Context, name string) (Tenant, error) {
	t, err := one(ctx, s.pool, scanTenant, tenantSQL, name)
	if err != nil {
		return Tenant{}, fmt.Errorf("tenant %q: %w", name, err)
	}
	return t, nil
}

func scanTenant(row pgx.CollectableRow) (Tenant, error) {
	t, err := scanHaveTenant(row)
	return t.Tenant, err
}

func scanHaveTenant(row pgx.CollectableRow) (haveTenant, error) {
	var t haveTenant
	var nextPlanAt *time.Time
	var overrides, calendars []byte
	err := row.Scan(&t.ID, &t.Name, &t.Plan, &t.NextPlan, &nextPlanAt, &t.OverrideSetID, &overrides,
		&t.Status, &t.Timezone, &t.BillingAnchor, &t.CreatedAt, &calendars, &t.now)
	if err != nil {
		return t, err
	}
	t.CreatedAt, t.now = t.CreatedAt.UTC(), t.now.UTC()
	if nextPlanAt != nil {
		t.NextPlanAt = nextPlanAt.UTC()
	}
	set, err := decodeOverrides(t.OverrideSetID, overrides)
	if err != nil {
		return t, err
	}
	if set != nil {
		t.Overrides = set.Overrides
	}
	if calendars != nil {
		err = json.Unmarshal(calendars, &t.calendars)
	}
	t.Tenant = t.At(t.now)
	return t, err
}

// one runs a query for at most one row; none is [ErrNotFound].
func one[T any](ctx context.Context, q Querier, scan pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	found, err := collect(ctx, q, scan, sql, args...)
	if err != nil || len(found) == 0 {
		var none T
		if err == nil {
			err = ErrNotFound
		}
		return none, err
	}
	return found[0], nil
}

// cut drops the one item too many that was read to learn whether there are more.
func cut[T any](items []T, page Page, name func(T) string) (kept []T, next string) {
	if len(items) <= page.limit() {
		return items, ""
	}
	items = items[:page.limit()]
	return items, name(items[len(items)-1])
}
