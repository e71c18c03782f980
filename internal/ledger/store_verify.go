package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// verifyChunk is how many entries verify reads at a time, so that neither side holds
// a tenant's whole ledger.
const verifyChunk = 2000

// A storedEntry is an entry with the erasable texts its digests are over.
type storedEntry struct {
	Entry
	subjectText *string
	subjectSalt []byte
	dimsText    *string
	dimsSalt    []byte
}

// index: entry_pkey in its order; the texts are found one by one, so that a page costs
// the same wherever it is. lock: none; one repeatable-read snapshot. Outer joins, so
// that an entry whose reference was edited is still seen.
const verifyEntriesSQL = `
with page as (
  select e.*
  from quotad.entry e
  where e.tenant_id = $1 and (e.seq, e.at) > ($2, $3)
  order by e.seq, e.at
  limit $4
)
select e.seq, e.at, e.effective_at, e.kind, coalesce(m.meter, ''), e.subject_id, e.units, e.held, e.total,
       e.subject_total, e.request_id, e.batch_id, e.ref_seq, e.plan_version_id, e.override_set_id, e.limits_used,
       e.limits_held, s.digest, e.dims_digest, e.hash, s.subject, s.salt, d.dims::text, d.salt
from page e
left join quotad.meter m on m.meter_id = e.meter_id
left join lateral (
  select s.subject, s.salt, s.digest
  from quotad.subject s
  where s.tenant_id = e.tenant_id and s.subject_id = e.subject_id
  limit 1
) s on true
left join lateral (
  select d.dims, d.salt
  from quotad.entry_dims d
  where e.dims_digest is not null and d.tenant_id = e.tenant_id and d.seq = e.seq and d.at = e.at
  limit 1
) d on true
order by e.seq, e.at`

func storedEntries(ctx context.Context, db Querier, a *Account, after *Entry) ([]storedEntry, error) {
	// Planned anew for each page: a plan for any tenant would sort all entries of a large one.
	rows, err := db.Query(ctx, verifyEntriesSQL, pgx.QueryExecModeCacheDescribe,
		a.TenantID, after.Seq, after.At, verifyChunk)
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (storedEntry, error) {
		e := storedEntry{Entry: Entry{Tenant: a.Tenant}}
		var hash []byte
		err := row.Scan(&e.Seq, &e.At, &e.EffectiveAt, &e.Kind, &e.Meter, &e.SubjectID, &e.Units, &e.Held, &e.Total,
			&e.SubjectTotal, &e.RequestID, &e.BatchID, &e.RefSeq, &e.PlanVersionID, &e.OverrideSetID, &e.LimitsUsed,
			&e.LimitsHeld, &e.SubjectDigest, &e.DimsDigest, &hash, &e.subjectText, &e.subjectSalt, &e.dimsText, &e.dimsSalt)
		copy(e.Hash[:], hash)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	return entries, nil
}

// index: account_tenant_unique. lock: none.
const verifyAccountSQL = `
select a.tenant_id, a.tenant, a.seq, a.last_at, a.head_hash, a.subject_seq, a.open_holds
from quotad.account a
where a.tenant = $1`

func storedAccount(ctx context.Context, db Querier, tenant string) (*Account, error) {
	rows, err := db.Query(ctx, verifyAccountSQL, tenant)
	if err != nil {
		return nil, fmt.Errorf("read account: %w", err)
	}
	a, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (Account, error) {
		var a Account
		var hash []byte
		err := row.Scan(&a.TenantID, &a.Tenant, &a.Seq, &a.LastAt, &hash, &a.SubjectSeq, &a.OpenHolds)
		copy(a.HeadHash[:], hash)
		return a, err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("read account: %w", err)
	}
	return &a, nil
}

// index: meter_total_pkey. lock: none.
const verifyTotalsSQL = `
select coalesce(m.meter, ''), t.subject_id, t.units, t.returned, t.held, t.calls, t.last_at
from quotad.meter_total t
left join quotad.meter m on m.meter_id = t.meter_id
where t.tenant_id = $1
order by m.meter, t.subject_id`

type totalKey struct {
	meter     string
	subjectID int64 // 0 for the whole tenant
}

// storedTotals calls got for each counter of the tenant.
func storedTotals(ctx context.Context, db Querier, tenantID int64, got func(totalKey, Total)) error {
	rows, err := db.Query(ctx, verifyTotalsSQL, tenantID)
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	var key totalKey
	var t Total
	_, err = pgx.ForEachRow(rows, []any{&key.meter, &key.subjectID, &t.Units, &t.Returned, &t.Held, &t.Calls, &t.LastAt}, func() error {
		t.LastAt = t.LastAt.UTC()
		got(key, t)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	return nil
}

// index: account_tenant_unique in its order. lock: none.
const tenantsSQL = `
select a.tenant, a.seq from quotad.account a where a.tenant > $1 order by a.tenant limit $2`

// A Head is how many entries a tenant's account says it has.
type Head struct {
	Tenant string
	Seq    int64
}

// Heads returns up to limit tenants after the given one, in the order of their ids.
func (s *Store) Heads(ctx context.Context, after string, limit int) ([]Head, error) {
	rows, err := s.db.Query(ctx, tenantsSQL, after, limit)
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	heads, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Head, error) {
		var h Head
		err := row.Scan(&h.Tenant, &h.Seq)
		return h, err
	})
	if err != nil {
		return nil, fmt.Errorf("list tenants: %w", err)
	}
	return heads, nil
}

// epoch is the last_at of a counter that never counted units.
func epoch() time.Time { return time.UnixMicro(0).UTC() }
