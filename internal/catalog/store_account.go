package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/calendar"
)

// calendarsMax bounds account.calendar_past. A window that began under a calendar
// older than that has long ended, unless someone changes zones all day.
const calendarsMax = 16

// New rows. account_tenant_unique cannot be hit: whoever makes accounts
// holds the lock of lockVersionSQL.
const insertAccountsSQL = `
insert into quotad.account (
  tenant, plan, status, timezone, billing_anchor, next_plan, next_plan_at, override_set_id, head_hash, created_at, terms_at)
select n.tenant, n.plan, n.status, n.timezone, n.billing_anchor, n.next_plan, n.next_plan_at, n.override_set_id, n.head_hash,
       $1, $1
from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::timestamptz[], $9::bigint[],
  $10::bytea[]) as n(tenant, plan, status, timezone, billing_anchor, next_plan, next_plan_at, override_set_id, head_hash)`

// account_pkey finds the rows. Locks them in the order of the tenants' names, as
// anyone does who locks several and waits; decisions skip what is locked.
const lockAccountsSQL = `
select tenant_id
from quotad.account
where tenant_id = any($1)
order by tenant
for update`

// Holds the lock of lockAccountsSQL and is a statement after it, so that last_at is
// what the holder before has committed. account_pkey finds the rows.
const calendarsSQL = `
select tenant_id, calendar_past, greatest(quotad.decision_clock(), last_at)
from quotad.account
where tenant_id = any($1)`

// Holds the lock of lockAccountsSQL. account_tenant_unique finds the rows. Terms are dated
// in the tenant's own time: behind every decision under what was before.
const updateAccountsSQL = `
update quotad.account a
set plan = n.plan, status = n.status, timezone = n.timezone, billing_anchor = n.billing_anchor,
    next_plan = n.next_plan, next_plan_at = n.next_plan_at, override_set_id = n.override_set_id,
    calendar_past = coalesce(n.calendar_past::jsonb, a.calendar_past),
    terms_at = case when n.fresh_terms then greatest($1, a.last_at) else a.terms_at end
from unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[], $8::timestamptz[], $9::bigint[],
  $10::text[], $11::boolean[])
  as n(tenant, plan, status, timezone, billing_anchor, next_plan, next_plan_at, override_set_id, calendar_past, fresh_terms)
where a.tenant = n.tenant`

// New rows, of accounts that were just written; account_tenant_unique finds those.
const insertTermsSQL = `
insert into quotad.terms (tenant_id, at, plan, next_plan, next_plan_at, override_set_id)
select a.tenant_id, a.terms_at, a.plan, a.next_plan, a.next_plan_at, a.override_set_id
from quotad.account a
where a.tenant = any($1)`

// Ids are taken before the rows are made, so that accounts can name them. No lock.
const overrideSetIDsSQL = `
select nextval('quotad.override_set_override_set_id_seq')
from generate_series(1, $1)`

// New rows, of accounts that were just written; account_tenant_unique finds those.
const insertOverrideSetsSQL = `
insert into quotad.override_set (override_set_id, tenant_id, overrides, created_at, created_by)
select n.override_set_id, a.tenant_id, n.overrides::jsonb, $1, $2
from unnest($3::text[], $4::bigint[], $5::text[]) as n(tenant, override_set_id, overrides)
join quotad.account a on a.tenant = n.tenant`

// account_plan finds the accounts of plans that go; of them those are changed, in the order
// of their names, whose next plan's time has come, so that they have the old one no more.
const settleSwitchesSQL = `
with due as (
  select tenant_id
  from quotad.account
  where plan = any($1) and next_plan_at <= greatest($2, last_at)
  order by tenant
  for update
)
update quotad.account a
set plan = a.next_plan, next_plan = null, next_plan_at = null
from due
where a.tenant_id = due.tenant_id and a.next_plan_at <= greatest($2, a.last_at)`

// accounts is what a change writes to accounts and beside them.
type accounts struct {
	fresh, changed accountColumns
	termsOf        []string // tenants that get new terms
	sets           overrideColumns
}

// accountColumns is the rows of accounts column by column, as unnest wants them.
type accountColumns struct {
	names, plans, statuses, zones []string
	anchors                       []int16
	nextPlans                     []*string
	nextPlanAts                   []*time.Time
	overrideSetIDs                []int64
	heads                         [][]byte
	calendars                     []*string
	freshTerms                    []bool
}

// overrideColumns is the rows of new override sets.
type overrideColumns struct {
	tenants, overrides []string
	ids                []int64
}

func (c *accountColumns) add(t Tenant, past *string, freshTerms bool) {
	head := GenesisHash(t.Name)
	c.names = append(c.names, t.Name)
	c.plans = append(c.plans, t.Plan)
	c.statuses = append(c.statuses, string(t.Status))
	c.zones = append(c.zones, t.Timezone)
	c.anchors = append(c.anchors, int16(t.BillingAnchor))
	if t.NextPlan == "" {
		c.nextPlans, c.nextPlanAts = append(c.nextPlans, nil), append(c.nextPlanAts, nil)
	} else {
		c.nextPlans, c.nextPlanAts = append(c.nextPlans, &t.NextPlan), append(c.nextPlanAts, &t.NextPlanAt)
	}
	c.overrideSetIDs = append(c.overrideSetIDs, t.OverrideSetID)
	c.heads = append(c.heads, head[:])
	c.calendars = append(c.calendars, past)
	c.freshTerms = append(c.freshTerms, freshTerms)
}

func (s *overrideColumns) add(tenant string, overrides []Override) error {
	text, err := encodeOverrides(overrides)
	s.tenants, s.overrides = append(s.tenants, tenant), append(s.overrides, text)
	return err
}

// accountsOf gathers what edits write to accounts, those that change under their locks.
func accountsOf(ctx context.Context, tx pgx.Tx, e *edits) (a accounts, err error) {
	past, err := readCalendars(ctx, tx, e.tenants)
	if err != nil {
		return a, fmt.Errorf("read calendars: %w", err)
	}
	if err := a.takeSets(ctx, tx, e); err != nil {
		return a, err
	}
	for _, t := range e.newTenants {
		a.fresh.add(t, nil, true)
		a.termsOf = append(a.termsOf, t.Name)
	}
	for _, t := range e.tenants {
		var calendars *string
		if changesCalendar(t.before, t.after) {
			text, err := past[t.after.ID].with(t.before)
			if err != nil {
				return a, fmt.Errorf("encode the calendars of %q: %w", t.after.Name, err)
			}
			calendars = &text
		}
		freshTerms := !t.before.sameTerms(t.after)
		a.changed.add(t.after, calendars, freshTerms)
		if freshTerms {
			a.termsOf = append(a.termsOf, t.after.Name)
		}
	}
	return a, nil
}

// takeSets gives each tenant whose overrides are new an id for their set.
func (a *accounts) takeSets(ctx context.Context, tx pgx.Tx, e *edits) error {
	var owners []*Tenant
	for i := range e.newTenants {
		owners = append(owners, &e.newTenants[i])
	}
	for i := range e.tenants {
		if t := &e.tenants[i]; !slices.Equal(t.before.Overrides, t.after.Overrides) {
			owners = append(owners, &t.after)
		}
	}
	owners = slices.DeleteFunc(owners, func(t *Tenant) bool {
		t.OverrideSetID = 0
		return len(t.Overrides) == 0
	})
	if len(owners) == 0 {
		return nil
	}
	ids, err := collect(ctx, tx, pgx.RowTo[int64], overrideSetIDsSQL, len(owners))
	if err != nil {
		return fmt.Errorf("number override sets: %w", err)
	}
	for i, t := range owners {
		t.OverrideSetID = ids[i]
		if err := a.sets.add(t.Name, t.Overrides); err != nil {
			return fmt.Errorf("encode the overrides of %q: %w", t.Name, err)
		}
	}
	a.sets.ids = ids
	return nil
}

// queue writes accounts first: what stands beside them refers to them.
func (a *accounts) queue(batch *pgx.Batch, actor string, at time.Time) {
	if c := &a.fresh; len(c.names) > 0 {
		batch.Queue(insertAccountsSQL, at, c.names, c.plans, c.statuses, c.zones, c.anchors,
			c.nextPlans, c.nextPlanAts, c.overrideSetIDs, c.heads)
	}
	if c := &a.changed; len(c.names) > 0 {
		batch.Queue(updateAccountsSQL, at, c.names, c.plans, c.statuses, c.zones, c.anchors,
			c.nextPlans, c.nextPlanAts, c.overrideSetIDs, c.calendars, c.freshTerms)
	}
	if len(a.termsOf) > 0 {
		batch.Queue(insertTermsSQL, a.termsOf)
	}
	if s := &a.sets; len(s.ids) > 0 {
		batch.Queue(insertOverrideSetsSQL, at, actor, s.tenants, s.ids, s.overrides)
	}
}

// lockAccounts locks the accounts of tenants that change.
func lockAccounts(ctx context.Context, tx pgx.Tx, tenants []tenantEdit) error {
	if len(tenants) == 0 {
		return nil
	}
	ids := make([]int64, len(tenants))
	for i, t := range tenants {
		ids[i] = t.after.ID
	}
	tag, err := tx.Exec(ctx, lockAccountsSQL, ids)
	if err != nil {
		return fmt.Errorf("lock accounts: %w", err)
	}
	if tag.RowsAffected() != int64(len(tenants)) {
		return fmt.Errorf("lock accounts: %w", errNoRow)
	}
	return nil
}

// pastCalendars is account.calendar_past and the instant at which the present
// calendar joins it: the tenant's own now, which never falls behind its entries.
type pastCalendars struct {
	earlier []calendar.Past
	now     time.Time
}

// with returns account.calendar_past after the calendar of before has ended.
func (p pastCalendars) with(before Tenant) (string, error) {
	earlier := append(p.earlier, calendar.Past{
		Until: p.now.UTC(), Timezone: before.Timezone, BillingAnchor: before.BillingAnchor,
	})
	text, err := json.Marshal(earlier[max(0, len(earlier)-calendarsMax):])
	return string(text), err
}

// readCalendars reads what the locks' last holders have left, of tenants whose calendar
// changes.
func readCalendars(ctx context.Context, tx pgx.Tx, tenants []tenantEdit) (map[int64]pastCalendars, error) {
	var tenantIDs []int64
	for _, t := range tenants {
		if changesCalendar(t.before, t.after) {
			tenantIDs = append(tenantIDs, t.after.ID)
		}
	}
	if len(tenantIDs) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, calendarsSQL, tenantIDs)
	if err != nil {
		return nil, err
	}
	out := make(map[int64]pastCalendars, len(tenantIDs))
	var (
		tenantID int64
		earlier  []byte
		now      time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&tenantID, &earlier, &now}, func() error {
		past := pastCalendars{now: now}
		if earlier != nil {
			if err := json.Unmarshal(earlier, &past.earlier); err != nil {
				return err
			}
		}
		out[tenantID] = past
		return nil
	})
	return out, err
}
