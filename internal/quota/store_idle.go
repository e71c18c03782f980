package quota

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A levelRef names a level as its table does.
type levelRef struct {
	tenantID  int64
	limit     string
	subjectID int64
}

// An idleCandidate is a level that was looked at; idle ones may be removed.
type idleCandidate struct {
	levelRef
	tenant string
	idle   bool // a subject's, and not written for long
}

// index: level_pkey from where the step before ended, account_pkey for the names. The
// instant has no index: each decision writes it, and its row must stay HOT. lock: none.
const idleCandidatesSQL = `
select c.tenant_id, c.limit_name, c.subject_id, a.tenant,
       c.subject_id <> 0 and c.at < quotad.decision_clock() - $5::interval
from (
  select l.tenant_id, l.limit_name, l.subject_id, l.at
  from quotad.level l
  where (l.tenant_id, l.limit_name, l.subject_id) > ($1::bigint, $2::text, $3::bigint)
  order by l.tenant_id, l.limit_name, l.subject_id
  limit $4
) c
cross join lateral (
  select a.tenant
  from quotad.account a
  where a.tenant_id = c.tenant_id
  limit 1
) a
order by c.tenant_id, c.limit_name, c.subject_id`

func queueIdleCandidates(b *pgx.Batch, after levelRef, got func(idleCandidate)) {
	b.Queue(idleCandidatesSQL, after.tenantID, after.limit, after.subjectID, idleStep, idleMin).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var c idleCandidate
			if err := rows.Scan(&c.tenantID, &c.limit, &c.subjectID, &c.tenant, &c.idle); err != nil {
				return fmt.Errorf("read candidates: %w", err)
			}
			got(c)
		}
		return rows.Err()
	})
}

// index: level_pkey, one descent each. lock: none, the accounts' locks are held.
const levelsOfSQL = `
select l.tenant_id, l.limit_name, l.subject_id, l.plan_version_id, l.override_set_id, l.units, l.remainder, l.denominator, l.at
from unnest($1::bigint[], $2::text[], $3::bigint[]) as k(tenant_id, limit_name, subject_id)
cross join lateral (
  select l.tenant_id, l.limit_name, l.subject_id, l.plan_version_id, l.override_set_id, l.units, l.remainder, l.denominator, l.at
  from quotad.level l
  where l.tenant_id = k.tenant_id and l.limit_name = k.limit_name and l.subject_id = k.subject_id
  limit 1
) l`

func queueLevelsOf(b *pgx.Batch, candidates []idleCandidate, got func(levelRef, level)) {
	refs := make([]levelRef, len(candidates))
	for i := range candidates {
		refs[i] = candidates[i].levelRef
	}
	tenantIDs, limits, subjectIDs := columnsOf(refs)
	b.Queue(levelsOfSQL, tenantIDs, limits, subjectIDs).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var ref levelRef
			var v level
			var at time.Time
			if err := rows.Scan(&ref.tenantID, &ref.limit, &ref.subjectID, &v.versionID, &v.overrideSetID,
				&v.Units, &v.Remainder, &v.Denominator, &at); err != nil {
				return fmt.Errorf("read levels: %w", err)
			}
			v.AtMicros = at.UnixMicro()
			got(ref, v)
		}
		return rows.Err()
	})
}

// index: level_pkey, one descent each. lock: rows of accounts that are locked.
const removeLevelsSQL = `
delete from quotad.level l
using unnest($1::bigint[], $2::text[], $3::bigint[]) as k(tenant_id, limit_name, subject_id)
where l.tenant_id = k.tenant_id and l.limit_name = k.limit_name and l.subject_id = k.subject_id`

func queueRemoveLevels(b *pgx.Batch, refs []levelRef) {
	if len(refs) == 0 {
		return
	}
	tenantIDs, limits, subjectIDs := columnsOf(refs)
	b.Queue(removeLevelsSQL, tenantIDs, limits, subjectIDs)
}

func columnsOf(refs []levelRef) (tenantIDs []int64, limits []string, subjectIDs []int64) {
	for _, ref := range refs {
		tenantIDs, limits, subjectIDs = append(tenantIDs, ref.tenantID), append(limits, ref.limit), append(subjectIDs, ref.subjectID)
	}
	return tenantIDs, limits, subjectIDs
}
