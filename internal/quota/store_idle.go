package quota

import (
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A totalRef names a running total, beside which levels stand, as its table does.
type totalRef struct {
	tenantID  int64
	meterID   int32
	subjectID int64
}

// An idleCandidate is a total that was looked at; from idle ones levels may be removed.
type idleCandidate struct {
	totalRef
	tenant string
	meter  string
	idle   bool // a subject's, with levels, and not written for long
}

// index: meter_total_pkey from where the step before ended, account_pkey and meter_pkey for
// the names. Neither instants nor levels have an index: each decision writes them, and their
// row must stay HOT. lock: none.
const idleCandidatesSQL = `
select c.tenant_id, c.meter_id, c.subject_id, a.tenant, m.meter,
       c.subject_id <> 0 and c.kept and c.last_at < quotad.decision_clock() - $5::interval
from (
  select t.tenant_id, t.meter_id, t.subject_id, t.levels is not null as kept, t.last_at
  from quotad.meter_total t
  where (t.tenant_id, t.meter_id, t.subject_id) > ($1::bigint, $2::integer, $3::bigint)
  order by t.tenant_id, t.meter_id, t.subject_id
  limit $4
) c
cross join lateral (
  select a.tenant
  from quotad.account a
  where a.tenant_id = c.tenant_id
  limit 1
) a
cross join lateral (
  select m.meter
  from quotad.meter m
  where m.meter_id = c.meter_id
  limit 1
) m
order by c.tenant_id, c.meter_id, c.subject_id`

func queueIdleCandidates(b *pgx.Batch, after totalRef, got func(idleCandidate)) {
	b.Queue(idleCandidatesSQL, after.tenantID, after.meterID, after.subjectID, idleStep, idleMin).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var c idleCandidate
			if err := rows.Scan(&c.tenantID, &c.meterID, &c.subjectID, &c.tenant, &c.meter, &c.idle); err != nil {
				return fmt.Errorf("read candidates: %w", err)
			}
			got(c)
		}
		return rows.Err()
	})
}

// index: meter_total_pkey, one descent each. lock: none, the accounts' locks are held.
const levelsOfSQL = `
select t.tenant_id, t.meter_id, t.subject_id, t.levels
from unnest($1::bigint[], $2::integer[], $3::bigint[]) as k(tenant_id, meter_id, subject_id)
cross join lateral (
  select t.tenant_id, t.meter_id, t.subject_id, t.levels
  from quotad.meter_total t
  where t.tenant_id = k.tenant_id and t.meter_id = k.meter_id and t.subject_id = k.subject_id
  limit 1
) t`

// queueLevelsOf queues reading the levels of candidates and calls got with those of each.
func queueLevelsOf(b *pgx.Batch, candidates []idleCandidate, got func(ref totalRef, levels []byte)) {
	size := len(candidates)
	tenantIDs, meterIDs, subjectIDs := make([]int64, size), make([]int32, size), make([]int64, size)
	for i := range candidates {
		tenantIDs[i], meterIDs[i], subjectIDs[i] = candidates[i].tenantID, candidates[i].meterID, candidates[i].subjectID
	}
	b.Queue(levelsOfSQL, tenantIDs, meterIDs, subjectIDs).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var ref totalRef
			var levels []byte
			if err := rows.Scan(&ref.tenantID, &ref.meterID, &ref.subjectID, &levels); err != nil {
				return fmt.Errorf("read levels: %w", err)
			}
			got(ref, levels)
		}
		return rows.Err()
	})
}

// index: meter_total_pkey, one descent each. lock: rows of accounts that are locked; updates
// stay HOT.
const setLevelsSQL = `
update quotad.meter_total t
set levels = k.levels
from unnest($1::bigint[], $2::integer[], $3::bigint[], $4::json[]) as k(tenant_id, meter_id, subject_id, levels)
where t.tenant_id = k.tenant_id and t.meter_id = k.meter_id and t.subject_id = k.subject_id`

// queueSetLevels queues writing what is left of levels.
func queueSetLevels(b *pgx.Batch, left map[totalRef]keptLevels) {
	var tenantIDs, subjectIDs []int64
	var meterIDs []int32
	var levels [][]byte
	for ref, kept := range left {
		tenantIDs, meterIDs = append(tenantIDs, ref.tenantID), append(meterIDs, ref.meterID)
		subjectIDs, levels = append(subjectIDs, ref.subjectID), append(levels, kept.encode())
	}
	if len(left) > 0 {
		b.Queue(setLevelsSQL, tenantIDs, meterIDs, subjectIDs, levels)
	}
}
