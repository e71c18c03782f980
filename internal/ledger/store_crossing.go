package ledger

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// index: entry_window or entry_subject_window, and entry_correction; each step of the
// bisection is one descent, and there are at most log2 of the span's microseconds.
// lock: none. Invariant of a step: it is not reached at lo_us and is at hi_us. Without
// terms only an entry can be what reaches it, so the bisection may fall back to one.
const crossingsSQL = `
with recursive step as (
  select k.n, k.tenant_id, k.meter_id, k.subject_id, k.lo_us as from_us, k.lo_us, k.hi_us, k.now_us, k.seq, k.base, k.target,
         k.terms_at::bigint[] as terms_at, k.terms_units::bigint[] as terms_units
  from unnest($1::integer[], $2::bigint[], $3::integer[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
    $9::bigint[], $10::bigint[], $11::text[], $12::text[])
    as k(n, tenant_id, meter_id, subject_id, lo_us, hi_us, now_us, seq, base, target, terms_at, terms_units)
  union all
  select s.n, s.tenant_id, s.meter_id, s.subject_id, s.from_us,
         case when r.reached then s.lo_us else m.us end,
         case when not r.reached then s.hi_us
              when cardinality(s.terms_at) = 0 then least(m.us, coalesce(e.at_us, m.us))
              else m.us end,
         s.now_us, s.seq, s.base, s.target, s.terms_at, s.terms_units
  from step s
  cross join lateral (select s.lo_us + (s.hi_us - s.lo_us) / 2 as us) m
  left join lateral (
    select (extract(epoch from f.at) * 1000000)::bigint as at_us,
           case when s.subject_id = 0 then f.total else f.subject_total end as total
    from (
      (select t.at, t.seq, t.total, t.subject_total
       from quotad.entry t
       where s.subject_id = 0 and t.tenant_id = s.tenant_id and t.meter_id = s.meter_id and t.subject_id >= 0
         and t.at > timestamptz 'epoch' + s.from_us * interval '1 microsecond'
         and t.at <= timestamptz 'epoch' + least(m.us, s.now_us) * interval '1 microsecond' and t.seq <= s.seq
       order by t.at desc, t.seq desc
       limit 1)
      union all
      (select t.at, t.seq, t.total, t.subject_total
       from quotad.entry t
       where s.subject_id <> 0 and t.tenant_id = s.tenant_id and t.meter_id = s.meter_id
         and t.subject_id = s.subject_id and t.subject_id <> 0
         and t.at > timestamptz 'epoch' + s.from_us * interval '1 microsecond'
         and t.at <= timestamptz 'epoch' + least(m.us, s.now_us) * interval '1 microsecond' and t.seq <= s.seq
       order by t.at desc, t.seq desc
       limit 1)
    ) f
  ) e on true
  cross join lateral (
    select coalesce(-sum(c.units), 0)::bigint as units
    from quotad.entry c
    where c.units < 0 and c.tenant_id = s.tenant_id and c.meter_id = s.meter_id
      and c.at > timestamptz 'epoch' + m.us * interval '1 microsecond'
      and c.at <= timestamptz 'epoch' + s.now_us * interval '1 microsecond'
      and c.effective_at > timestamptz 'epoch' + m.us * interval '1 microsecond' and c.seq <= s.seq
      and (s.subject_id = 0 or c.subject_id = s.subject_id)
  ) c
  cross join lateral (
    select coalesce(sum(t.units), 0) as units
    from unnest(s.terms_at, s.terms_units) t(at_us, units)
    where t.at_us > m.us
  ) p
  cross join lateral (
    select case when e.total is null then s.base else e.total + c.units end >= s.target + p.units as reached
  ) r
  where s.hi_us - s.lo_us > 1
)
select s.n, s.hi_us from step s where s.hi_us - s.lo_us <= 1`

// A CrossingQuery asks for the first instant x at which
//
//	running total up to x + given back of what came after x ≥ Target + the terms after x
//
// which is where a window that begins behind x has room, knowing that x is after
// LoMicros and not after HiMicros.
type CrossingQuery struct {
	TenantID  int64
	MeterID   int32
	SubjectID int64 // 0 asks for the whole tenant
	LoMicros  int64 // where the window begins now
	HiMicros  int64
	NowMicros int64 // entries and corrections after it do not count,
	Seq       int64 // nor do those after this number
	Base      int64 // the left side at LoMicros
	Target    int64
	Terms     []Term
}

// A Term is units that stand in the way until an instant of x, itself excluded.
type Term struct {
	AtMicros int64
	Units    int64
}

// QueueCrossings queues finding the instants and calls got with the index of each query.
// It sees the entries that the same transaction has written before.
func QueueCrossings(b *pgx.Batch, queries []CrossingQuery, got func(i int, atMicros int64)) {
	if len(queries) == 0 {
		return
	}
	b.Queue(crossingsSQL, crossingArgs(queries)...).Query(func(rows pgx.Rows) error { return scanCrossings(rows, got) })
}

// Crossings finds the instant of each query, in their order.
func (s *Store) Crossings(ctx context.Context, queries []CrossingQuery) ([]int64, error) {
	instants := make([]int64, len(queries))
	if len(queries) == 0 {
		return instants, nil
	}
	rows, err := s.db.Query(ctx, crossingsSQL, crossingArgs(queries)...)
	if err != nil {
		return nil, fmt.Errorf("read crossings: %w", err)
	}
	return instants, scanCrossings(rows, func(i int, atMicros int64) { instants[i] = atMicros })
}

func scanCrossings(rows pgx.Rows, got func(i int, atMicros int64)) error {
	var i int32
	var atMicros int64
	_, err := pgx.ForEachRow(rows, []any{&i, &atMicros}, func() error {
		got(int(i), atMicros)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read crossings: %w", err)
	}
	return nil
}

func crossingArgs(queries []CrossingQuery) []any {
	size := len(queries)
	n, tenantIDs, meterIDs, subjectIDs := make([]int32, size), make([]int64, size), make([]int32, size), make([]int64, size)
	los, his, nows := make([]int64, size), make([]int64, size), make([]int64, size)
	seqs, bases, targets := make([]int64, size), make([]int64, size), make([]int64, size)
	termsAt, termsUnits := make([]string, size), make([]string, size)
	for i := range queries {
		q := &queries[i]
		n[i], tenantIDs[i], meterIDs[i], subjectIDs[i] = int32(i), q.TenantID, q.MeterID, q.SubjectID
		los[i], his[i], nows[i], seqs[i], bases[i], targets[i] = q.LoMicros, q.HiMicros, q.NowMicros, q.Seq, q.Base, q.Target
		ats, units := make([]int64, len(q.Terms)), make([]int64, len(q.Terms))
		for j, term := range q.Terms {
			ats[j], units[j] = term.AtMicros, term.Units
		}
		termsAt[i], termsUnits[i] = arrayLiteral(ats), arrayLiteral(units)
	}
	return []any{n, tenantIDs, meterIDs, subjectIDs, los, his, nows, seqs, bases, targets, termsAt, termsUnits}
}
