package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A PastQuery asks for the entries of a meter up to an instant, the newest first.
type PastQuery struct {
	TenantID  int64
	Meter     string
	SubjectID int64     // 0 for the whole tenant; -1 for a subject that has no entry
	At        time.Time // the newest instant
	BeforeSeq int64     // only entries before this one
	Limit     int
}

// A Past is what the newest entries of a meter say.
type Past struct {
	Entries []PastEntry
	UsedAt  time.Time // the newest entry that used units, also one behind Entries; zero if none
}

// A PastEntry is what a limit's state follows from.
type PastEntry struct {
	Seq           int64
	At            time.Time
	Kind          Kind
	SubjectID     int64
	Units         int64
	Total         int64 // running total of the tenant, or of the subject that was asked about
	PlanVersionID int64
	OverrideSetID int64
	LimitsUsed    []int64
	LimitsHeld    []int64 // nil where nothing was held
}

// index: entry_window, or entry_subject_window for a subject, backwards from the entry
// through as many partitions as it takes; on the way to used_at, entries of cost 0 are
// passed over. lock: none.
const (
	pastOfTenantSQL = `
select e.seq, e.at, e.kind, e.subject_id, e.units, e.total, e.plan_version_id, e.override_set_id, e.limits_used, e.limits_held, (
  select f.at
  from quotad.entry f
  where f.tenant_id = $1 and f.meter_id = (select m.meter_id from quotad.meter m where m.meter = $2)
    and f.subject_id >= 0 and f.at <= $3 and (f.at, f.seq) < ($3, $4) and f.units > 0
  order by f.at desc, f.seq desc
  limit 1)
from quotad.entry e
where e.tenant_id = $1 and e.meter_id = (select m.meter_id from quotad.meter m where m.meter = $2)
  and e.subject_id >= 0 and e.at <= $3 and (e.at, e.seq) < ($3, $4)
order by e.at desc, e.seq desc
limit $5`
	pastOfSubjectSQL = `
select e.seq, e.at, e.kind, e.subject_id, e.units, e.subject_total, e.plan_version_id, e.override_set_id, e.limits_used, e.limits_held, (
  select f.at
  from quotad.entry f
  where f.tenant_id = $1 and f.meter_id = (select m.meter_id from quotad.meter m where m.meter = $2)
    and f.subject_id <> 0 and f.subject_id = $6 and f.at <= $3 and (f.at, f.seq) < ($3, $4) and f.units > 0
  order by f.at desc, f.seq desc
  limit 1)
from quotad.entry e
where e.tenant_id = $1 and e.meter_id = (select m.meter_id from quotad.meter m where m.meter = $2)
  and e.subject_id <> 0 and e.subject_id = $6 and e.at <= $3 and (e.at, e.seq) < ($3, $4)
order by e.at desc, e.seq desc
limit $5`
)

// Past returns the newest entries of a meter up to an instant.
func (s *Store) Past(ctx context.Context, q PastQuery) (Past, error) {
	sql, args := pastOfTenantSQL, []any{q.TenantID, q.Meter, q.At, q.BeforeSeq, q.Limit}
	if q.SubjectID != 0 {
		sql, args = pastOfSubjectSQL, append(args, q.SubjectID)
	}
	rows, err := s.db.Query(ctx, sql, args...)
	if err != nil {
		return Past{}, fmt.Errorf("read past entries: %w", err)
	}
	var past Past
	past.Entries, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e PastEntry, err error) {
		var usedAt *time.Time
		err = row.Scan(&e.Seq, &e.At, &e.Kind, &e.SubjectID, &e.Units, &e.Total, &e.PlanVersionID, &e.OverrideSetID,
			&e.LimitsUsed, &e.LimitsHeld, &usedAt)
		if usedAt != nil {
			past.UsedAt = *usedAt
		}
		return e, err
	})
	if err != nil {
		return Past{}, fmt.Errorf("read past entries: %w", err)
	}
	return past, nil
}

// index: entry_hold, one range of instants. lock: none.
const holdEntriesSQL = `
select e.seq, e.at, e.effective_at, e.kind, m.meter, e.subject_id, e.units, e.held, e.request_id, e.ref_seq
from quotad.entry e
join quotad.meter m on m.meter_id = e.meter_id
where e.tenant_id = $1 and e.at > $2 and e.at <= $3
  and e.kind in ('hold', 'extend', 'settle', 'release', 'expire')
order by e.at, e.seq`

// HoldEntries returns what happened to holds after one instant and up to another, in
// order.
func (s *Store) HoldEntries(ctx context.Context, tenantID int64, after, until time.Time) ([]Entry, error) {
	rows, err := s.db.Query(ctx, holdEntriesSQL, tenantID, after, until)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	entries, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Entry, err error) {
		err = row.Scan(&e.Seq, &e.At, &e.EffectiveAt, &e.Kind, &e.Meter, &e.SubjectID, &e.Units, &e.Held, &e.RequestID, &e.RefSeq)
		return e, err
	})
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	return entries, nil
}

// index: entry_window, one descent per meter of the tenant, forwards from the instant.
// lock: none.
const versionFromSQL = `
select f.plan_version_id
from quotad.meter m
cross join lateral (
  select e.seq, e.plan_version_id
  from quotad.entry e
  where e.tenant_id = $1 and e.meter_id = m.meter_id and e.subject_id >= 0 and e.at >= $2
  order by e.at, e.seq
  limit 1
) f
where exists (
  select from quotad.meter_total t
  where t.tenant_id = $1 and t.meter_id = m.meter_id and t.subject_id = 0)
order by f.seq
limit 1`

// VersionFrom returns the plan version that a tenant's first entry at or after an instant
// was decided under; [ErrNotFound] if there is no such entry.
func (s *Store) VersionFrom(ctx context.Context, tenantID int64, at time.Time) (versionID int64, err error) {
	rows, err := s.db.Query(ctx, versionFromSQL, tenantID, at)
	if err != nil {
		return 0, fmt.Errorf("read a plan version: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	switch {
	case err != nil:
		return 0, fmt.Errorf("read a plan version: %w", err)
	case len(found) == 0:
		return 0, ErrNotFound
	}
	return found[0], nil
}
