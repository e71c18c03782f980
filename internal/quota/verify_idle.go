package quota

import (
	"context"
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

// missingLevels says which levels that the entries make are missing and should not be.
func (v *Verifier) missingLevels(ctx context.Context, db ledger.Querier, tenantID int64, levels map[levelKey]level) ([]string, error) {
	if len(levels) == 0 || v.timeline == nil {
		return nil, nil
	}
	now, inForce, err := planInForce(ctx, db, tenantID)
	if err != nil {
		return nil, err
	}
	var details []string
	for key, want := range levels {
		by := catalog.InForce{AtMicros: now.UnixMicro(), VersionID: inForce}
		if key.subjectID == 0 || !want.mayBeGone(v.timeline, key.limit, by) {
			details = append(details, fmt.Sprintf("the level of limit %q is missing", key.limit))
		}
	}
	return details, nil
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
