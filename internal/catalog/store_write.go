package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

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
	if err := lockAccounts(ctx, tx, e.tenants); err != nil {
		return err
	}
	accounts, err := accountsOf(ctx, tx, e)
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
	accounts.queue(batch, actor, at)
	if len(e.gonePlans) > 0 {
		batch.Queue(settleSwitchesSQL, e.gonePlans, at)
	}
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
