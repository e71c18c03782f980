package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pg"
)

// A BeforeQuery asks what the running total of a meter was just before an entry, or, with
// an Edge, just before the first entry from that instant on that comes before it.
type BeforeQuery struct {
	TenantID  int64
	Meter     string
	SubjectID int64     // 0 for the whole tenant; -1 for a subject that has no entry
	At        time.Time // the instant of the entry
	BeforeSeq int64     // its number
	Edge      time.Time // zero asks for the total itself
}

// index: entry_window or entry_subject_window, one descent each: forwards from the edge,
// bounded by it, or backwards from the entry, through as many partitions as the meter was
// idle. Numbers and instants of a tenant rise together, so one comparison of both is
// enough; the instant alone tells which partitions. entry_correction for what was given
// back of a window. lock: none.
const totalsBeforeSQL = `
select coalesce(t.total, s.total, 0), coalesce(t.total, s.total) is not null, coalesce(r.units, 0)
from unnest($1::integer[], $2::bigint[], $3::text[], $4::bigint[], $5::timestamptz[], $6::bigint[], $7::timestamptz[])
  as k(n, tenant_id, meter, subject_id, at, before_seq, edge)
left join lateral (
  select m.meter_id from quotad.meter m where m.meter = k.meter limit 1
) m on true
left join lateral (
  (select e.total - greatest(e.units, 0) as total
   from quotad.entry e
   where k.subject_id = 0 and k.edge is not null and e.tenant_id = k.tenant_id and e.meter_id = m.meter_id
     and e.subject_id >= 0 and e.at >= k.edge and e.at <= k.at and (e.at, e.seq) < (k.at, k.before_seq)
   order by e.at, e.seq
   limit 1)
  union all
  (select e.total
   from quotad.entry e
   where k.subject_id = 0 and k.edge is null and e.tenant_id = k.tenant_id and e.meter_id = m.meter_id
     and e.subject_id >= 0 and e.at <= k.at and (e.at, e.seq) < (k.at, k.before_seq)
   order by e.at desc, e.seq desc
   limit 1)
  limit 1
) t on true
left join lateral (
  (select e.subject_total - greatest(e.units, 0) as total
   from quotad.entry e
   where k.subject_id > 0 and k.edge is not null and e.tenant_id = k.tenant_id and e.meter_id = m.meter_id
     and e.subject_id <> 0 and e.subject_id = k.subject_id
     and e.at >= k.edge and e.at <= k.at and (e.at, e.seq) < (k.at, k.before_seq)
   order by e.at, e.seq
   limit 1)
  union all
  (select e.subject_total
   from quotad.entry e
   where k.subject_id > 0 and k.edge is null and e.tenant_id = k.tenant_id and e.meter_id = m.meter_id
     and e.subject_id <> 0 and e.subject_id = k.subject_id
     and e.at <= k.at and (e.at, e.seq) < (k.at, k.before_seq)
   order by e.at desc, e.seq desc
   limit 1)
  limit 1
) s on true
left join lateral (
  select -sum(e.units)::bigint as units
  from quotad.entry e
  where k.edge is not null and e.units < 0 and e.tenant_id = k.tenant_id and e.meter_id = m.meter_id
    and e.at >= k.edge and e.at <= k.at and (e.at, e.seq) < (k.at, k.before_seq) and e.effective_at >= k.edge
    and (k.subject_id = 0 or e.subject_id = k.subject_id)
) r on true
order by k.n`

// A BeforeTotal answers a BeforeQuery. Found is false where there is no such entry.
type BeforeTotal struct {
	Total    int64
	Found    bool
	Returned int64 // with an Edge: units given back of what came from it on
}

// TotalsBefore answers each query, in their order.
func (s *Store) TotalsBefore(ctx context.Context, queries []BeforeQuery) ([]BeforeTotal, error) {
	size := len(queries)
	n, tenantIDs, subjectIDs, seqs := make([]int32, size), make([]int64, size), make([]int64, size), make([]int64, size)
	meters, ats, edges := make([]string, size), make([]time.Time, size), make([]*time.Time, size)
	for i, q := range queries {
		n[i], tenantIDs[i], subjectIDs[i], seqs[i] = int32(i), q.TenantID, q.SubjectID, q.BeforeSeq
		meters[i], ats[i], edges[i] = q.Meter, q.At, pg.OrNull(q.Edge)
	}
	rows, err := s.db.Query(ctx, totalsBeforeSQL, n, tenantIDs, meters, subjectIDs, ats, seqs, edges)
	if err != nil {
		return nil, fmt.Errorf("read past totals: %w", err)
	}
	totals, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (BeforeTotal, error) {
		var t BeforeTotal
		err := row.Scan(&t.Total, &t.Found, &t.Returned)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read past totals: %w", err)
	}
	return totals, nil
}

// index: entry_window, one range of instants per meter of the tenant. lock: none.
const requestSeqSQL = `
select e.seq
from quotad.account a
cross join quotad.meter m
cross join lateral (
  select e.seq
  from quotad.entry e
  where e.tenant_id = a.tenant_id and e.meter_id = m.meter_id and e.subject_id >= 0 and e.at >= $2 and e.at <= $3 and e.request_id = $4
  order by e.at, e.seq
  limit 1
) e
where a.tenant = $1
order by e.seq
limit 1`

// requestSpread is how far an entry's instant may be from the one in its request's id,
// which an instance's clock wrote.
const requestSpread = 2 * time.Minute

// RequestSeq returns the number of the first entry of a request, which is looked for
// around the instant in its id; [ErrNotFound] if there is none.
func (s *Store) RequestSeq(ctx context.Context, tenant string, id [16]byte, at time.Time) (int64, error) {
	rows, err := s.db.Query(ctx, requestSeqSQL, tenant, at.Add(-requestSpread), at.Add(requestSpread), id)
	if err != nil {
		return 0, fmt.Errorf("find a request: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	switch {
	case err != nil:
		return 0, fmt.Errorf("find a request: %w", err)
	case len(found) == 0:
		return 0, ErrNotFound
	}
	return found[0], nil
}
