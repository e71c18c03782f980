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
		gone := key.subjectID != 0 && want.mayBeGone(v.timeline, key.limit, by) || want.replaced(v.timeline, key.limit, by)
		if !gone {
			details = append(details, fmt.Sprintf("the level of limit %q is missing", key.limit))
		}
	}
	return details, nil
}

// replaced reports whether another limit took the place of a level's own since, so that it
// starts full, whatever the level says.
func (v *level) replaced(tl *catalog.Timeline, name string, by catalog.InForce) bool {
	written, known := tl.Piece(v.inForce())
	if !known {
		return false
	}
	s, _ := elapse(v.State, ruleOf(&written, name), tl.Pieces(v.inForce(), by), by.AtMicros)
	return s.Fresh()
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
