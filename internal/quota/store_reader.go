package quota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pg"
)

// index: account_tenant_unique. lock: none.
const accountFactsSQL = `
select a.tenant_id, a.plan, coalesce(a.next_plan, ''), coalesce(a.next_plan_at, '1970-01-01 00:00:00+00'),
       a.override_set_id, a.terms_at, a.timezone, a.billing_anchor, coalesce(a.calendar_past::text, '')
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
		var nextPlanAt, termsAt time.Time
		t := &f.terms
		err := row.Scan(&f.tenantID, &t.Plan, &t.NextPlan, &nextPlanAt, &t.OverrideSetID, &termsAt, &f.timezone,
			&f.billingAnchor, &f.calendarPast)
		t.NextPlanAtMicros, t.AtMicros = nextPlanAt.UnixMicro(), termsAt.UnixMicro()
		return struct{}{}, err
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

// index: account_tenant_unique, hold_open. lock: none.
const holdsDueSQL = `
select exists (
  select
  from quotad.account a
  join quotad.hold h on h.tenant_id = a.tenant_id
  where a.tenant = $1 and h.state = 'open'
    and h.expires_at <= coalesce($2, greatest(quotad.decision_clock(), a.last_at)))`

// HoldsDue reports whether a tenant has holds that have ended by an instant, now if it is
// zero, and that no entry says so of yet. It is dated then, not when somebody notices: who
// reads up to that instant has it entered first, by [Engine.Limits].
func (x *Reader) HoldsDue(ctx context.Context, tenant string, by time.Time) (due bool, err error) {
	rows, err := x.db.Query(ctx, holdsDueSQL, tenant, pg.OrNull(by))
	if err != nil {
		return false, fmt.Errorf("look for ended holds: %w", err)
	}
	due, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	if err != nil {
		return false, fmt.Errorf("look for ended holds: %w", err)
	}
	return due, nil
}
