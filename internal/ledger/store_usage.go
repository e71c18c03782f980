package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A UsageQuery asks for the units of a meter in a range of instants. SubjectID 0 is the
// whole tenant, -1 a subject that has no entry.
type UsageQuery struct {
	SubjectID int64
	From      time.Time // inclusive
	To        time.Time // exclusive
}

// A range's usage is the running total of its last entry less that before its first one:
// two descents, bounded by the range on both sides, so that only its partitions are
// opened. What was given back in it is taken off, whenever it had been used: so a range
// that has ended stays as it is. index: entry_window or entry_subject_window, and
// entry_correction. lock: none; one statement is one snapshot, so that parts sum to
// their whole.
const usageSQL = `
select coalesce(t.units, s.units, 0) + coalesce(r.units, 0)
from unnest($3::integer[], $4::bigint[], $5::timestamptz[], $6::timestamptz[]) as k(n, subject_id, from_at, to_at)
left join lateral (
  select l.total - f.before as units
  from (
    select e.total - greatest(e.units, 0) as before
    from quotad.entry e
    where k.subject_id = 0 and e.tenant_id = $1 and e.meter_id = $2 and e.subject_id >= 0 and e.at >= k.from_at and e.at < k.to_at
    order by e.at, e.seq
    limit 1
  ) f
  cross join (
    select e.total
    from quotad.entry e
    where k.subject_id = 0 and e.tenant_id = $1 and e.meter_id = $2 and e.subject_id >= 0 and e.at >= k.from_at and e.at < k.to_at
    order by e.at desc, e.seq desc
    limit 1
  ) l
) t on true
left join lateral (
  select l.total - f.before as units
  from (
    select e.subject_total - greatest(e.units, 0) as before
    from quotad.entry e
    where k.subject_id > 0 and e.tenant_id = $1 and e.meter_id = $2 and e.subject_id <> 0 and e.subject_id = k.subject_id
      and e.at >= k.from_at and e.at < k.to_at
    order by e.at, e.seq
    limit 1
  ) f
  cross join (
    select e.subject_total as total
    from quotad.entry e
    where k.subject_id > 0 and e.tenant_id = $1 and e.meter_id = $2 and e.subject_id <> 0 and e.subject_id = k.subject_id
      and e.at >= k.from_at and e.at < k.to_at
    order by e.at desc, e.seq desc
    limit 1
  ) l
) s on true
left join lateral (
  select sum(e.units)::bigint as units
  from quotad.entry e
  where e.units < 0 and e.tenant_id = $1 and e.meter_id = $2 and e.at >= k.from_at and e.at < k.to_at
    and (k.subject_id = 0 or e.subject_id = k.subject_id)
) r on true
order by k.n`

// Usage returns the units of each range, in the order of the queries. It is below 0
// where more was given back than was used.
func (s *Store) Usage(ctx context.Context, tenantID int64, meterID int32, queries []UsageQuery) ([]int64, error) {
	n, subjectIDs := make([]int32, len(queries)), make([]int64, len(queries))
	froms, tos := make([]time.Time, len(queries)), make([]time.Time, len(queries))
	for i, q := range queries {
		n[i], subjectIDs[i], froms[i], tos[i] = int32(i), q.SubjectID, q.From, q.To
	}
	rows, err := s.db.Query(ctx, usageSQL, tenantID, meterID, n, subjectIDs, froms, tos)
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	units, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("read usage: %w", err)
	}
	return units, nil
}

// A UsageSubject is a subject that used a meter. Subject is "" for the whole tenant, and
// where its text is erased.
type UsageSubject struct {
	ID      int64
	Subject string
}

// index: meter_total_pkey, onwards from a subject; subject_pkey for each one's text.
// lock: none.
const usageSubjectsSQL = `
select t.subject_id, coalesce(s.subject, '')
from quotad.meter_total t
left join quotad.subject s on s.tenant_id = t.tenant_id and s.subject_id = t.subject_id
where t.tenant_id = $1 and t.meter_id = $2 and t.subject_id > $3 and t.last_at >= $4
order by t.subject_id
limit $5`

// UsageSubjects returns the subjects after one that used a meter at or since an instant,
// in the order in which the tenant first named them.
func (s *Store) UsageSubjects(
	ctx context.Context, tenantID int64, meterID int32, after int64, since time.Time, limit int,
) ([]UsageSubject, error) {
	rows, err := s.db.Query(ctx, usageSubjectsSQL, tenantID, meterID, after, since, limit)
	if err != nil {
		return nil, fmt.Errorf("list subjects: %w", err)
	}
	subjects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[UsageSubject])
	if err != nil {
		return nil, fmt.Errorf("list subjects: %w", err)
	}
	return subjects, nil
}
