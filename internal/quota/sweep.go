package quota

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/internal/pg"
)

// Bounds of the background's work on holds, of one turn each.
const (
	sweptMax  = 1000 // expired holds that are ended
	purgedMax = 1000 // resolved holds that one statement deletes
	purgesMax = 100  // such statements
)

// sweepHolds ends the expired holds of tenants that nobody calls: for those that are
// called, the batch that relies on the expiry does it. Each goes through the engine as a
// question about the tenant's limits does, so there is one way in which a hold expires.
// Nobody waits for the answers; what is not done now is found again the next time.
func (r *runner) sweepHolds(ctx context.Context) error {
	var tenants []string
	var queries pgx.Batch
	queueExpiring(&queries, func(tenant string) { tenants = append(tenants, tenant) })
	if err := r.session.Send(ctx, &queries, r.engine.config.readTimeout); err != nil {
		r.session.Close()
		return fmt.Errorf("look for expired holds: %w", err)
	}
	for _, tenant := range tenants {
		if err := r.engine.start(&call{request: Request{Tenant: tenant}, stand: true}); err != nil {
			break // full, or at its end
		}
	}
	return nil
}

// purgeHolds deletes holds that were resolved so long ago that nobody repeats it.
func (r *runner) purgeHolds(ctx context.Context) error {
	for range purgesMax {
		purged := int64(0)
		var queries pgx.Batch
		pg.Begin(&queries)
		queuePurgeHolds(&queries, &purged)
		if err := r.session.Commit(ctx, &queries, r.engine.config.commitTimeout); err != nil {
			r.session.Rollback(ctx, r.engine.config.readTimeout)
			return fmt.Errorf("delete old holds: %w", err)
		}
		if purged < purgedMax {
			break
		}
	}
	return nil
}

// index: hold_expiring. lock: none.
const expiringSQL = `
select a.tenant
from (
  select h.tenant_id
  from quotad.hold h
  where h.state = 'open' and h.expires_at <= quotad.decision_clock()
  order by h.expires_at
  limit $1
) h
join quotad.account a on a.tenant_id = h.tenant_id
group by a.tenant`

func queueExpiring(b *pgx.Batch, got func(tenant string)) {
	b.Queue(expiringSQL, sweptMax).Query(func(rows pgx.Rows) error {
		var tenant string
		_, err := pgx.ForEachRow(rows, []any{&tenant}, func() error {
			got(tenant)
			return nil
		})
		return err
	})
}

// index: hold_resolved_at, account_pkey, hold_pkey. lock: the accounts, of which those that
// someone holds are left for the next time.
const purgeHoldsSQL = `
with old as (
  select h.tenant_id, h.hold_id
  from quotad.hold h
  where h.state <> 'open' and h.resolved_at < quotad.decision_clock() - interval '` + keyRetention + `'
  order by h.resolved_at
  limit $1
), locked as (
  select a.tenant_id
  from quotad.account a
  where a.tenant_id in (select o.tenant_id from old o)
  for update skip locked
)
delete from quotad.hold h
using old o
join locked l on l.tenant_id = o.tenant_id
where h.tenant_id = o.tenant_id and h.hold_id = o.hold_id`

func queuePurgeHolds(b *pgx.Batch, purged *int64) {
	b.Queue(purgeHoldsSQL, purgedMax).Exec(func(tag pgconn.CommandTag) error {
		*purged = tag.RowsAffected()
		return nil
	})
}
