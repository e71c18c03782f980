package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// A Previewer looks at a change that [catalog.Store.DryRun] makes and undoes, and tells
// what it would mean for tenants. It reads what decisions read and locks nothing. It is
// for one change, and not safe for concurrent use.
type Previewer struct {
	catalog *catalog.Store
	tenants []string // that the change is about
	now     time.Time
	before  map[string]stood
	preview *Preview
}

// NewPreviewer returns a previewer; its Look is what DryRun wants.
func NewPreviewer(store *catalog.Store) *Previewer { return &Previewer{catalog: store} }

// Preview returns what the change would mean; nil if nothing would change.
func (x *Previewer) Preview() *Preview { return x.preview }

// Look looks at how the tenants of a change stand before it is made, and then after.
func (x *Previewer) Look(ctx context.Context, tx pgx.Tx, changes []catalog.Change, made bool) error {
	if made {
		return x.lookAfter(ctx, tx)
	}
	x.preview, x.before = &Preview{Tenants: []TenantPreview{}}, make(map[string]stood)
	var queries pgx.Batch
	queueAffected(&queries, changes, &x.now, &x.preview.Affected, &x.tenants)
	if err := tx.SendBatch(ctx, &queries).Close(); err != nil {
		return fmt.Errorf("look for the tenants of a change: %w", err)
	}
	return x.stand(ctx, tx, func(name string, s stood) { x.before[name] = s })
}

func (x *Previewer) lookAfter(ctx context.Context, tx pgx.Tx) error {
	err := x.stand(ctx, tx, func(name string, after stood) {
		if before, known := x.before[name]; known {
			x.preview.add(before, after)
		}
	})
	x.preview.cut()
	return err
}

// stand calls got with how each tenant stands in what tx sees.
func (x *Previewer) stand(ctx context.Context, tx pgx.Tx, got func(name string, s stood)) error {
	snapshot, err := x.catalog.Snapshot(ctx, tx, nil)
	if err != nil {
		return err
	}
	// A runner of no engine: it compiles plans and keeps overrides.
	r := newRunner(&Engine{config: Config{Catalog: x.catalog, readTimeout: readTimeoutMax}})
	for names := range slices.Chunk(x.tenants, previewChunk) {
		b := &batch{
			runner: r, snapshot: snapshot, clock: ledger.Clock{At: x.now, CatalogVersion: snapshot.Version},
			byName: make(map[string]*tenantWork),
		}
		if err := b.readStanding(ctx, tx, names); err != nil {
			return fmt.Errorf("look at how tenants stand: %w", err)
		}
		for _, t := range b.tenants {
			for _, h := range t.book.due() {
				t.book.expire(h)
			}
			got(t.name, stood{t.book.stand(t.name, "").decision, t.book.rules})
		}
	}
	return nil
}

// readStanding fills the books of tenants with all that their limits need, as a batch does
// that only asks how they stand, but without their locks.
func (b *batch) readStanding(ctx context.Context, tx pgx.Tx, names []string) error {
	var accounts pgx.Batch
	ledger.QueueAccounts(&accounts, names, func(a ledger.Account) {
		t := &tenantWork{
			name: a.Tenant, account: a, facts: factsOf(&a), exists: true, locked: true, holding: a.OpenHolds > 0,
			calls: []*call{{request: Request{Tenant: a.Tenant}, stand: true}},
		}
		b.tenants, b.byName[a.Tenant] = append(b.tenants, t), t
	})
	if err := tx.SendBatch(ctx, &accounts).Close(); err != nil {
		return err
	}
	if err := b.runner.loadSets(ctx, tx, b.tenants); err != nil {
		return err
	}
	for _, t := range b.tenants {
		if err := b.restart(t); err != nil {
			return err
		}
		t.book.status = catalog.Status(t.account.Status)
		t.book.clockMicros, t.book.nowMicros = b.clock.At.UnixMicro(), b.now(t)
	}
	for range readRoundsMax {
		var queries pgx.Batch
		if !b.queueReads(&queries, false) {
			b.closeEdges()
			for _, t := range b.tenants {
				if err := t.book.openLevels(); err != nil {
					return err
				}
			}
			return b.carryLevels(ctx, tx)
		}
		if err := tx.SendBatch(ctx, &queries).Close(); err != nil {
			return err
		}
	}
	return errors.New("what has to be read did not settle")
}

// index: account_plan, account_of_next_plan, account_tenant_unique. lock: none.
const affectedSQL = `
select quotad.decision_clock(), count(*) over (), a.tenant
from (
  select a.tenant from quotad.account a where a.plan = any($1)
  union
  select a.tenant from quotad.account a where a.next_plan = any($1)
  union
  select a.tenant from quotad.account a where a.tenant = any($2)
) a
order by a.tenant
limit $3`

// queueAffected queues finding the tenants that changes are about: those that are changed,
// and those that have or get a plan that is.
func queueAffected(b *pgx.Batch, changes []catalog.Change, now *time.Time, count *int, tenants *[]string) {
	plans, named := []string{}, []string{}
	for _, c := range changes {
		switch {
		case c.Outcome != catalog.Changed:
		case c.Object == catalog.ObjectPlan:
			plans = append(plans, c.Name)
		case c.Object == catalog.ObjectTenant:
			named = append(named, c.Name)
		}
	}
	b.Queue(affectedSQL, plans, named, previewTenantsMax).Query(func(rows pgx.Rows) error {
		var tenant string
		_, err := pgx.ForEachRow(rows, []any{now, count, &tenant}, func() error {
			*tenants = append(*tenants, tenant)
			return nil
		})
		return err
	})
}
