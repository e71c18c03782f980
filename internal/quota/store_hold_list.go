package quota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

// holdTenant is a tenant whose holds are read, and its time.
type holdTenant struct {
	id  int64
	now time.Time
}

// index: account_tenant_unique. lock: none.
const holdTenantSQL = `
select a.tenant_id, greatest(quotad.decision_clock(), a.last_at)
from quotad.account a
where a.tenant = $1`

func holdTenantOf(ctx context.Context, db ledger.Querier, tenant string) (t holdTenant, err error) {
	rows, err := db.Query(ctx, holdTenantSQL, tenant)
	if err != nil {
		return t, fmt.Errorf("read account: %w", err)
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&t.id, &t.now)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return t, ledger.ErrNotFound
	case err != nil:
		return t, fmt.Errorf("read account: %w", err)
	}
	return t, nil
}

// index: hold_open, at most HoldsOpenMax rows; they are sorted afterwards, since the order
// would tempt the planner into an index over all tenants. lock: none.
const openHoldsSQL = `
with open as materialized (
  select h.*
  from quotad.hold h
  where h.tenant_id = $1 and h.state = 'open'
)` + holdColumns + `
from (
  select h.*
  from open h
  where (h.expires_at, h.hold_id) > ($2, $3) and ($4::bigint = 0 or h.subject_id = $4)
  order by h.expires_at, h.hold_id
  limit $5
) h` + holdTexts + `
order by h.expires_at, h.hold_id`

// openHolds returns those that have not ended, in the order in which they will.
func openHolds(ctx context.Context, db ledger.Querier, t holdTenant, subject int64, q HoldQuery) ([]storedHold, *HoldPlace, error) {
	after := q.After
	if !after.ExpiresAt.After(t.now) { // what has ended by now is not open
		after = HoldPlace{ExpiresAt: t.now, ID: uuid.Max}
	}
	rows, err := db.Query(ctx, openHoldsSQL, t.id, after.ExpiresAt, after.ID, subject, q.Limit+1)
	holds, err := collectHolds(rows, err)
	if err != nil || len(holds) <= q.Limit {
		return holds, nil, err
	}
	holds = holds[:q.Limit]
	last := &holds[q.Limit-1]
	return holds, &HoldPlace{ExpiresAt: time.UnixMicro(last.expiresMicros).UTC(), ID: last.id}, nil
}

// endedHoldsLooked is how many holds one page of those that have ended looks at: nothing
// is indexed by how they ended.
const endedHoldsLooked = 5000

// index: hold_pkey, backwards, endedHoldsLooked rows of it. lock: none.
const holdsLookedSQL = `
select h.hold_id
from quotad.hold h
where h.tenant_id = $1 and h.hold_id < $2
order by h.hold_id desc
offset $3
limit 1`

// index: hold_pkey, backwards, between two of its rows. lock: none.
const endedHoldsSQL = holdColumns + `
from (
  select h.*
  from quotad.hold h
  where h.tenant_id = $1 and h.hold_id < $2 and h.hold_id >= $3
    and (h.state = $4 or $4 = 'expired' and h.state = 'open' and h.expires_at <= $5)
    and ($6::bigint = 0 or h.subject_id = $6)
  order by h.hold_id desc
  limit $7
) h` + holdTexts + `
order by h.hold_id desc`

// endedHolds returns those that have ended in one way, the newest first.
func endedHolds(ctx context.Context, db ledger.Querier, t holdTenant, subject int64, q HoldQuery) ([]storedHold, *HoldPlace, error) {
	below := q.After.ID
	if below == uuid.Nil {
		below = uuid.Max
	}
	rows, err := db.Query(ctx, holdsLookedSQL, t.id, below, endedHoldsLooked-1)
	if err != nil {
		return nil, nil, fmt.Errorf("read holds: %w", err)
	}
	looked, err := pgx.CollectOneRow(rows, pgx.RowTo[uuid.UUID])
	if err != nil && !errors.Is(err, pgx.ErrNoRows) { // without one this page is the last: looked is zero
		return nil, nil, fmt.Errorf("read holds: %w", err)
	}
	rows, err = db.Query(ctx, endedHoldsSQL, t.id, below, looked, q.State, t.now, subject, q.Limit+1)
	holds, err := collectHolds(rows, err)
	switch {
	case err != nil:
		return nil, nil, err
	case len(holds) > q.Limit:
		holds = holds[:q.Limit]
		return holds, &HoldPlace{ID: holds[q.Limit-1].id}, nil
	case looked != uuid.Nil:
		return holds, &HoldPlace{ID: looked}, nil
	}
	return holds, nil, nil
}

// index: hold_pkey. lock: none.
const holdSQL = holdColumns + `
from quotad.hold h` + holdTexts + `
where h.tenant_id = $1 and h.hold_id = $2`

func holdOf(ctx context.Context, db ledger.Querier, t holdTenant, id uuid.UUID) (storedHold, error) {
	rows, err := db.Query(ctx, holdSQL, t.id, id)
	holds, err := collectHolds(rows, err)
	switch {
	case err != nil:
		return storedHold{}, err
	case len(holds) == 0:
		return storedHold{}, errNoHold()
	}
	return holds[0], nil
}

func collectHolds(rows pgx.Rows, err error) ([]storedHold, error) {
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	holds, err := pgx.CollectRows(rows, scanHold)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	return holds, nil
}
