package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// index: account_tenant_unique. lock: none.
const newestSQL = `
select a.last_at, greatest(quotad.decision_clock(), a.last_at)
from quotad.account a
where a.tenant = $1`

// Waits for whoever holds the account, and holds it for this statement alone. The clock
// may be read before the wait: what is decided then was decided under the lock that is
// waited for. index: account_tenant_unique. lock: the row, for key share, which only a
// lock for update keeps waiting.
const settleSQL = `
select greatest(quotad.decision_clock(), a.last_at)
from quotad.account a
where a.tenant = $1
for key share of a`

// Settle waits until no decision that is still being written can belong before until, and
// returns the tenant's time; with a zero until, before that time. What is read after it of
// any instant before then is final. A decision takes its instant some milliseconds before
// others can see it; without this, a report that ends now would miss it, and so would the
// one that begins where that ended. Where the newest entry is younger than until there is
// nothing to wait for. An unknown tenant is [ErrNotFound].
func (s *Store) Settle(ctx context.Context, tenant string, until time.Time) (now time.Time, err error) {
	var newest time.Time
	if err := s.instants(ctx, newestSQL, tenant, &newest, &now); err != nil {
		return now, err
	}
	if !until.IsZero() && until.Before(newest) {
		return now.UTC(), nil
	}
	err = s.instants(ctx, settleSQL, tenant, &now)
	return now.UTC(), err
}

func (s *Store) instants(ctx context.Context, sql, tenant string, at ...any) error {
	rows, err := s.db.Query(ctx, sql, tenant)
	if err != nil {
		return fmt.Errorf("read account: %w", err)
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(at...)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return ErrNotFound
	case err != nil:
		return fmt.Errorf("read account: %w", err)
	}
	return nil
}
