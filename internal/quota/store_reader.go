package quota

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

// index: account_tenant_unique. lock: none.
const accountFactsSQL = `
select a.tenant_id, a.plan, a.timezone, a.billing_anchor, coalesce(a.calendar_past::text, '')
from quotad.account a
where a.tenant = $1`

// accountFacts returns what is known of a tenant; [ledger.ErrNotFound] if there is no
// such tenant.
func accountFacts(ctx context.Context, db ledger.Querier, tenant string) (f facts, err error) {
	rows, err := db.Query(ctx, accountFactsSQL, tenant)
	if err != nil {
		return f, fmt.Errorf("read account: %w", err)
	}
	_, err = pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&f.tenantID, &f.plan, &f.timezone, &f.billingAnchor, &f.calendarPast)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return f, ledger.ErrNotFound
	case err != nil:
		return f, fmt.Errorf("read account: %w", err)
	}
	return f, nil
}

// index: subject_unique. lock: none.
const subjectIDSQL = `
select s.subject_id
from quotad.subject s
where s.tenant_id = $1 and s.subject = $2`

// subjectID returns the number of a subject: 0 without one, -1 for one that has no entry.
func subjectID(ctx context.Context, db ledger.Querier, tenantID int64, subject string) (int64, error) {
	if subject == "" {
		return 0, nil
	}
	rows, err := db.Query(ctx, subjectIDSQL, tenantID, subject)
	if err != nil {
		return 0, fmt.Errorf("read subject: %w", err)
	}
	id, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return -1, nil
	case err != nil:
		return 0, fmt.Errorf("read subject: %w", err)
	}
	return id, nil
}
