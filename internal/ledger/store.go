package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrNotFound says that there is no such entry, or no such tenant.
var ErrNotFound = errors.New("no such entry")

// A Querier runs a query: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// A Store reads the ledger for audits. It is safe for concurrent use if its Querier is.
type Store struct {
	db Querier
}

// NewStore returns a store that reads from db.
func NewStore(db Querier) *Store { return &Store{db: db} }

// index: account_tenant_unique. lock: none.
const tenantIDSQL = `select a.tenant_id from quotad.account a where a.tenant = $1`

// A page is cut from the entries alone, so that the order of entry_pkey serves its
// limit; the texts that its entries refer to are found one by one.
const (
	pageOf = `
with page as (
  select e.*
  from quotad.entry e
  where e.tenant_id = $1`
	withTexts = `
)
select e.seq, e.at, e.effective_at, e.kind, m.meter, coalesce(s.subject, ''), e.subject_id, e.units, e.held, e.total,
       e.subject_total, e.request_id, e.batch_id, e.ref_seq, e.plan_version_id, e.override_set_id, p.plan, p.version, e.limits_used,
       e.limits_held, d.dims, s.digest, e.dims_digest, e.hash
from page e
join quotad.meter m on m.meter_id = e.meter_id
join quotad.plan_version p on p.plan_version_id = e.plan_version_id
left join lateral (
  select s.subject, s.digest
  from quotad.subject s
  where s.tenant_id = e.tenant_id and s.subject_id = e.subject_id
  limit 1
) s on true
left join lateral (
  select d.dims
  from quotad.entry_dims d
  where d.tenant_id = e.tenant_id and d.seq = e.seq and d.at = e.at
  limit 1
) d on true`
)

// index: entry_pkey, one descent per partition. lock: none.
const entrySQL = pageOf + `
    and e.seq = $2` + withTexts

// Entry returns one entry, or [ErrNotFound].
func (s *Store) Entry(ctx context.Context, tenant string, seq int64) (Entry, error) {
	tenantID, err := s.tenantID(ctx, tenant)
	if err != nil {
		return Entry{}, fmt.Errorf("read entry: %w", err)
	}
	rows, err := s.db.Query(ctx, entrySQL, tenantID, seq)
	if err != nil {
		return Entry{}, fmt.Errorf("read entry: %w", err)
	}
	e, err := pgx.CollectExactlyOneRow(rows, scanEntry(tenant))
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return Entry{}, ErrNotFound
	case err != nil:
		return Entry{}, fmt.Errorf("read entry: %w", err)
	}
	return e, nil
}

// tenantID returns the identity of a tenant, or [ErrNotFound].
func (s *Store) tenantID(ctx context.Context, tenant string) (int64, error) {
	rows, err := s.db.Query(ctx, tenantIDSQL, tenant)
	if err != nil {
		return 0, err
	}
	id, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, ErrNotFound
	}
	return id, err
}

func scanEntry(tenant string) pgx.RowToFunc[Entry] {
	return func(row pgx.CollectableRow) (Entry, error) {
		e := Entry{Tenant: tenant}
		var dims, hash []byte
		err := row.Scan(&e.Seq, &e.At, &e.EffectiveAt, &e.Kind, &e.Meter, &e.Subject, &e.SubjectID, &e.Units, &e.Held, &e.Total,
			&e.SubjectTotal, &e.RequestID, &e.BatchID, &e.RefSeq, &e.PlanVersionID, &e.OverrideSetID, &e.Plan, &e.PlanVersion, &e.LimitsUsed,
			&e.LimitsHeld, &dims, &e.SubjectDigest, &e.DimsDigest, &hash)
		if err != nil {
			return Entry{}, err
		}
		e.At, e.EffectiveAt = e.At.UTC(), e.EffectiveAt.UTC()
		copy(e.Hash[:], hash)
		if dims != nil {
			if err := json.Unmarshal(dims, &e.Dims); err != nil {
				return Entry{}, fmt.Errorf("read dims: %w", err)
			}
		}
		return e, nil
	}
}
