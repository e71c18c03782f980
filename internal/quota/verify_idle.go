package quota

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// index: account_pkey, plan_pkey. lock: none.
const planInForceSQL = `
select greatest(quotad.decision_clock(), a.last_at), p.plan_version_id
from quotad.account a
join quotad.plan p on p.plan = a.plan
where a.tenant_id = $1`

// index: plan_version_unique by plan. lock: none.
const versionsOfSQL = `
select v.plan_version_id
from quotad.plan_version v
where v.plan = $1
order by v.version desc`

// missingLevels says which levels that the entries make are missing and should not be: a
// level may be missing if it is a subject's and full, by the plan in force or by a version
// that was when it was removed.
func (v *Verifier) missingLevels(ctx context.Context, db ledger.Querier, tenantID int64, levels map[levelKey]level) ([]string, error) {
	if len(levels) == 0 {
		return nil, nil
	}
	now, inForce, err := planInForce(ctx, db, tenantID)
	if err != nil {
		return nil, err
	}
	var details []string
	versions := map[string][]int64{}
	for key, want := range levels {
		if _, known := versions[want.plan]; !known {
			if versions[want.plan], err = versionsOf(ctx, db, want.plan); err != nil {
				return nil, err
			}
		}
		removed, err := v.removable(ctx, db, key, want, now, append([]int64{inForce}, versions[want.plan]...))
		if err != nil {
			return nil, err
		}
		if !removed {
			details = append(details, fmt.Sprintf("the level of limit %q is missing", key.limit))
		}
	}
	return details, nil
}

// removable reports whether any of the plan versions lets a level be missing now.
func (v *Verifier) removable(
	ctx context.Context, db ledger.Querier, key levelKey, want level, now time.Time, versions []int64,
) (bool, error) {
	if key.subjectID == 0 {
		return false, nil
	}
	for _, id := range versions {
		r, err := v.rulesOf(ctx, db, id)
		switch {
		case errors.Is(err, catalog.ErrUnreadable), err == nil && r == nil:
			continue // it lets nothing go
		case err != nil:
			return false, err
		}
		if l := r.limitNamed(key.limit); l != nil && l.forgettable(want, r.plan.Name, now.UnixMicro()) {
			return true, nil
		}
	}
	return false, nil
}

func planInForce(ctx context.Context, db ledger.Querier, tenantID int64) (now time.Time, versionID int64, err error) {
	rows, err := db.Query(ctx, planInForceSQL, tenantID)
	if err != nil {
		return now, 0, fmt.Errorf("read the plan in force: %w", err)
	}
	_, err = pgx.ForEachRow(rows, []any{&now, &versionID}, func() error { return nil })
	if err != nil {
		return now, 0, fmt.Errorf("read the plan in force: %w", err)
	}
	return now, versionID, nil
}

func versionsOf(ctx context.Context, db ledger.Querier, plan string) ([]int64, error) {
	rows, err := db.Query(ctx, versionsOfSQL, plan)
	if err != nil {
		return nil, fmt.Errorf("read the versions of plan %q: %w", plan, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read the versions of plan %q: %w", plan, err)
	}
	return ids, nil
}
