package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// calendarsMax bounds account.calendar_past. A window that began under a calendar
// older than that has long ended, unless someone changes zones all day.
const calendarsMax = 16

// New row. meter_unique cannot be hit: changes are serial.
const insertMeterSQL = `
insert into quotad.meter (meter, unit, weights, catalog_version, on_expiry)
values ($1, $2, $3, $4, $5)`

// meter_pkey finds the row; waits for nobody, since changes are serial.
const updateMeterSQL = `
update quotad.meter
set unit = $2, weights = $3, removed = false, catalog_version = $4, on_expiry = $5
where meter_id = $1`

// meter_unique finds the rows.
const removeMetersSQL = `
update quotad.meter
set removed = true, catalog_version = $2
where meter = any($1)`

// New row in plan_version, and plan_pkey finds the row that points at it.
const insertPlanVersionSQL = `
with fresh as (
  insert into quotad.plan_version (plan, version, spec, created_by, created_at)
  values ($1, $2, $3, $4, $6)
  returning plan_version_id
)
insert into quotad.plan (plan, plan_version_id, catalog_version)
select $1, plan_version_id, $5
from fresh
on conflict (plan) do update
set plan_version_id = excluded.plan_version_id, removed = false, catalog_version = excluded.catalog_version`

// plan_pkey finds the rows.
const markPlansSQL = `
update quotad.plan
set removed = $2, catalog_version = $3
where plan = any($1)`

// New rows. account_tenant_unique cannot be hit: whoever makes accounts
// holds the lock of lockVersionSQL.
const insertAccountsSQL = `
insert into quotad.account (tenant, plan, status, timezone, billing_anchor, head_hash, created_at)
select n.tenant, n.plan, n.status, n.timezone, n.billing_anchor, n.head_hash, $7
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::bytea[])
  as n(tenant, plan, status, timezone, billing_anchor, head_hash)`

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

// Holds the lock of lockAccountsSQL. account_pkey finds the rows.
const updateAccountsSQL = `
update quotad.account a
set plan = n.plan, status = n.status, timezone = n.timezone, billing_anchor = n.billing_anchor,
    calendar_past = coalesce(n.calendar_past::jsonb, a.calendar_past)
from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::smallint[], $6::text[])
  as n(tenant_id, plan, status, timezone, billing_anchor, calendar_past)
where a.tenant_id = n.tenant_id`

// New rows, in the order given.
const insertChangesSQL = `
insert into quotad.config_change (changed_by, changed_at, object, name, before, after)
select $1, $6, n.object, n.name, n.before::jsonb, n.after::jsonb
from unnest($2::text[], $3::text[], $4::text[], $5::text[]) with ordinality
  as n(object, name, before, after, i)
order by n.i`

// Reads the clock alone.
const stampSQL = `select quotad.decision_clock()`

// stampOf returns the instant that everything of a change is said to be of. It is taken
// behind the locks of the accounts that change, so that no decision of theirs under what
// was before is younger. Decisions of others may be, until the change is committed.
func stampOf(ctx context.Context, tx pgx.Tx) (time.Time, error) {
	var at time.Time
	if err := tx.QueryRow(ctx, stampSQL).Scan(&at); err != nil {
		return at, fmt.Errorf("read the clock: %w", err)
	}
	return at.UTC(), nil
}

// write carries out edits under the lock of the configuration's version.
func write(ctx context.Context, tx pgx.Tx, actor string, version int64, e *edits) error {
	accounts, err := lockAccounts(ctx, tx, e.tenants)
	if err != nil {
		return err
	}
	at, err := stampOf(ctx, tx)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	if err := queueMeters(batch, version, e); err != nil {
		return err
	}
	for i := range e.newVersions {
		p := &e.newVersions[i]
		spec, err := encodeStored(p)
		if err != nil {
			return err
		}
		batch.Queue(insertPlanVersionSQL, p.Name, p.Version, spec, actor, version, at)
	}
	if len(e.backPlans) > 0 {
		batch.Queue(markPlansSQL, e.backPlans, false, version)
	}
	if len(e.gonePlans) > 0 {
		batch.Queue(markPlansSQL, e.gonePlans, true, version)
	}
	if e.settings != nil { // after plans: it refers to one
		batch.Queue(updateSettingsSQL, e.settings.DefaultPlan, e.settings.DefaultPlanRate, version)
	}
	queueNewAccounts(batch, at, e.newTenants)
	queueChangedAccounts(batch, accounts)
	queueChanges(batch, at, actor, e.changes)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("write the configuration: %w", err)
	}
	return nil
}

func queueMeters(batch *pgx.Batch, version int64, e *edits) error {
	for i := range e.newMeters {
		m := &e.newMeters[i]
		weights, err := encodeWeights(m)
		if err != nil {
			return err
		}
		batch.Queue(insertMeterSQL, m.Name, m.Unit, weights, version, m.OnExpiry)
	}
	for i := range e.meters {
		m := &e.meters[i]
		weights, err := encodeWeights(m)
		if err != nil {
			return err
		}
		batch.Queue(updateMeterSQL, m.ID, m.Unit, weights, version, m.OnExpiry)
	}
	if len(e.goneMeters) > 0 {
		batch.Queue(removeMetersSQL, e.goneMeters, version)
	}
	return nil
}

// accountColumns is the rows of accounts column by column, as unnest wants them.
type accountColumns struct {
	ids                           []int64
	names, plans, statuses, zones []string
	anchors                       []int16
	heads                         [][]byte
	calendars                     []*string
}

func (c *accountColumns) add(t Tenant) {
	head := GenesisHash(t.Name)
	c.ids = append(c.ids, t.ID)
	c.names = append(c.names, t.Name)
	c.plans = append(c.plans, t.Plan)
	c.statuses = append(c.statuses, string(t.Status))
	c.zones = append(c.zones, t.Timezone)
	c.anchors = append(c.anchors, int16(t.BillingAnchor))
	c.heads = append(c.heads, head[:])
	c.calendars = append(c.calendars, nil)
}

func queueNewAccounts(batch *pgx.Batch, at time.Time, tenants []Tenant) {
	if len(tenants) == 0 {
		return
	}
	var c accountColumns
	for _, t := range tenants {
		c.add(t)
	}
	batch.Queue(insertAccountsSQL, c.names, c.plans, c.statuses, c.zones, c.anchors, c.heads, at)
}

func queueChangedAccounts(batch *pgx.Batch, c accountColumns) {
	if len(c.ids) > 0 {
		batch.Queue(updateAccountsSQL, c.ids, c.plans, c.statuses, c.zones, c.anchors, c.calendars)
	}
}

func queueChanges(batch *pgx.Batch, at time.Time, actor string, changes []Change) {
	var objects, names []string
	var befores, afters []*string
	for _, c := range changes {
		if c.Outcome == Unchanged {
			continue
		}
		objects = append(objects, string(c.Object))
		names = append(names, c.Name)
		befores = append(befores, textOrNull(c.Before))
		afters = append(afters, textOrNull(c.After))
	}
	batch.Queue(insertChangesSQL, actor, objects, names, befores, afters, at)
}

func textOrNull(text json.RawMessage) *string {
	if text == nil {
		return nil
	}
	s := string(text)
	return &s
}

// lockAccounts locks the accounts of tenants that change, then reads what the locks' last
// holders have left. It returns what is to be written to them.
func lockAccounts(ctx context.Context, tx pgx.Tx, tenants []tenantEdit) (c accountColumns, err error) {
	if len(tenants) == 0 {
		return c, nil
	}
	var moved []int64 // tenants whose calendar changes
	for _, t := range tenants {
		c.add(t.after)
		if t.changesCalendar() {
			moved = append(moved, t.after.ID)
		}
	}
	tag, err := tx.Exec(ctx, lockAccountsSQL, c.ids)
	if err != nil {
		return c, fmt.Errorf("lock accounts: %w", err)
	}
	if tag.RowsAffected() != int64(len(tenants)) {
		return c, fmt.Errorf("lock accounts: %w", errNoRow)
	}
	past, err := readCalendars(ctx, tx, moved)
	if err != nil {
		return c, fmt.Errorf("read calendars: %w", err)
	}
	for i, t := range tenants {
		if !t.changesCalendar() {
			continue
		}
		text, err := past[t.after.ID].with(t.before)
		if err != nil {
			return c, fmt.Errorf("encode the calendars of %q: %w", t.after.Name, err)
		}
		c.calendars[i] = &text
	}
	return c, nil
}

// pastCalendars is account.calendar_past and the instant at which the present
// calendar joins it: the tenant's own now, which never falls behind its entries.
type pastCalendars struct {
	earlier []PastCalendar
	now     time.Time
}

// with returns account.calendar_past after the calendar of before has ended.
func (p pastCalendars) with(before Tenant) (string, error) {
	calendars := append(p.earlier, PastCalendar{
		Until: p.now.UTC(), Timezone: before.Timezone, BillingAnchor: before.BillingAnchor,
	})
	text, err := json.Marshal(calendars[max(0, len(calendars)-calendarsMax):])
	return string(text), err
}

func readCalendars(ctx context.Context, tx pgx.Tx, tenantIDs []int64) (map[int64]pastCalendars, error) {
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
