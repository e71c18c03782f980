package quota

import (
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

// A holdQuery asks for one hold of a tenant, or with a zero id for all that are open.
type holdQuery struct {
	tenantID int64
	id       uuid.UUID
}

// A storedHold is a hold as it is read, and its subject as the ledger names it.
type storedHold struct {
	hold
	tenantID      int64
	subjectID     int64
	subjectDigest []byte
}

const (
	holdColumns = `
select h.tenant_id, h.hold_id, h.state, h.subject_id, coalesce(s.subject, ''), s.digest, m.meters, h.meter_ids, h.units,
       h.expired_seq, h.charged, h.first_seq, h.started_at, h.expires_at, h.resolved_at, h.resolution_hash, h.answer`
	holdTexts = `
left join lateral (
  select s.subject, s.digest
  from quotad.subject s
  where s.tenant_id = h.tenant_id and s.subject_id = h.subject_id
  limit 1
) s on true
cross join lateral (
  select array_agg(m.meter order by u.n) as meters
  from unnest(h.meter_ids) with ordinality u(meter_id, n)
  join quotad.meter m on m.meter_id = u.meter_id
) m`
)

// index: hold_open, at most HoldsOpenMax rows a tenant, and hold_pkey for those that are
// named. lock: none, the account lock is held.
const holdsSQL = holdColumns + `
from unnest($1::bigint[]) as k(tenant_id)
cross join lateral (
  select h.*
  from quotad.hold h
  where h.tenant_id = k.tenant_id and h.state = 'open'
  order by h.expires_at, h.hold_id
) h` + holdTexts + `
union all` + holdColumns + `
from unnest($2::bigint[], $3::uuid[]) as k(tenant_id, hold_id)
cross join lateral (
  select h.*
  from quotad.hold h
  where h.tenant_id = k.tenant_id and h.hold_id = k.hold_id
  limit 1
) h` + holdTexts

// queueHolds queues reading holds and calls got for each one. One that is open and named
// comes twice.
func queueHolds(b *pgx.Batch, queries []holdQuery, got func(storedHold)) {
	if len(queries) == 0 {
		return
	}
	var allOf, tenantIDs []int64
	var ids []uuid.UUID
	for _, q := range queries {
		if q.id == uuid.Nil {
			allOf = append(allOf, q.tenantID)
		} else {
			tenantIDs, ids = append(tenantIDs, q.tenantID), append(ids, q.id)
		}
	}
	b.Queue(holdsSQL, allOf, tenantIDs, ids).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			h, err := scanHold(rows)
			if err != nil {
				return fmt.Errorf("read holds: %w", err)
			}
			got(h)
		}
		return rows.Err()
	})
}

func scanHold(row pgx.CollectableRow) (storedHold, error) {
	var h storedHold
	var meters []string
	var meterIDs []int32
	var units, charged []int64
	var expiredSeq *int64
	var startedAt, expiresAt time.Time
	var resolvedAt *time.Time
	var resolution []byte
	err := row.Scan(&h.tenantID, &h.id, &h.state, &h.subjectID, &h.subject, &h.subjectDigest, &meters, &meterIDs, &units,
		&expiredSeq, &charged, &h.firstSeq, &startedAt, &expiresAt, &resolvedAt, &resolution, &h.answer)
	if err != nil {
		return h, err
	}
	h.startedMicros, h.expiresMicros, h.expired = startedAt.UnixMicro(), expiresAt.UnixMicro(), charged != nil
	if resolvedAt != nil {
		h.resolvedAt = resolvedAt.UnixMicro()
	}
	if expiredSeq != nil {
		h.expiredSeq = *expiredSeq
	}
	copy(h.resolution[:], resolution)
	for i := range meterIDs {
		c := heldCharge{meter: meters[i], meterID: meterIDs[i], units: units[i]}
		if h.expired {
			c.charged = charged[i]
		}
		h.charges = append(h.charges, c)
	}
	return h, nil
}

type holdRow struct {
	tenantID  int64
	subjectID int64
	*hold
}

// index: hold_pkey; hold_open, hold_expiring and hold_resolved_at follow. lock: rows of
// accounts that are locked. An array per row cannot be unnested, so arrays travel as text.
const upsertHoldsSQL = `
insert into quotad.hold as h (
  tenant_id, hold_id, subject_id, state, meter_ids, units, first_seq, started_at, expires_at, resolved_at, charged,
  resolution_hash, answer, expired_seq)
select u.tenant_id, u.hold_id, u.subject_id, u.state, u.meter_ids::integer[], u.units::bigint[], u.first_seq, u.started_at,
       u.expires_at, u.resolved_at, u.charged::bigint[], u.resolution_hash, u.answer, u.expired_seq
from unnest($1::bigint[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::timestamptz[],
  $9::timestamptz[], $10::timestamptz[], $11::text[], $12::bytea[], $13::bytea[], $14::bigint[])
  as u(tenant_id, hold_id, subject_id, state, meter_ids, units, first_seq, started_at, expires_at, resolved_at, charged,
       resolution_hash, answer, expired_seq)
on conflict (tenant_id, hold_id) do update
set state = excluded.state, expires_at = excluded.expires_at, resolved_at = excluded.resolved_at, charged = excluded.charged,
    resolution_hash = excluded.resolution_hash, answer = excluded.answer, expired_seq = excluded.expired_seq`

func queueWriteHolds(b *pgx.Batch, rows []holdRow) {
	if len(rows) == 0 {
		return
	}
	size := len(rows)
	tenantIDs, ids, subjectIDs, firstSeqs := make([]int64, size), make([]uuid.UUID, size), make([]int64, size), make([]int64, size)
	states, meterIDs, units := make([]string, size), make([]string, size), make([]string, size)
	startedAts, expiresAts, resolvedAts := make([]time.Time, size), make([]time.Time, size), make([]*time.Time, size)
	charged, resolutions, answers := make([]*string, size), make([][]byte, size), make([][]byte, size)
	expiredSeqs := make([]*int64, size)
	for i, r := range rows {
		tenantIDs[i], ids[i], subjectIDs[i], firstSeqs[i] = r.tenantID, r.id, r.subjectID, r.firstSeq
		states[i] = string(r.state)
		startedAts[i], expiresAts[i] = time.UnixMicro(r.startedMicros).UTC(), time.UnixMicro(r.expiresMicros).UTC()
		if r.resolvedAt != 0 {
			at := time.UnixMicro(r.resolvedAt).UTC()
			resolvedAts[i] = &at
		}
		meterIDs[i] = arrayText(r.charges, func(c heldCharge) int64 { return int64(c.meterID) })
		units[i] = arrayText(r.charges, func(c heldCharge) int64 { return c.units })
		if r.expired {
			text := arrayText(r.charges, func(c heldCharge) int64 { return c.charged })
			charged[i], expiredSeqs[i] = &text, &r.expiredSeq
		}
		if r.answer != nil {
			resolutions[i], answers[i] = r.resolution[:], r.answer
		}
	}
	b.Queue(upsertHoldsSQL, tenantIDs, ids, subjectIDs, states, meterIDs, units, firstSeqs, startedAts, expiresAts, resolvedAts,
		charged, resolutions, answers, expiredSeqs)
}

// arrayText is an array of PostgreSQL as text.
func arrayText(charges []heldCharge, value func(heldCharge) int64) string {
	b := []byte{'{'}
	for i, c := range charges {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, value(c), 10)
	}
	return string(append(b, '}'))
}

type originalQuery struct {
	tenantID int64
	seq      int64
}

// index: entry_pkey, one descent per partition, and entry_corrected for what was given back
// of it; entry_pkey and hold_pkey for the hold of an expiry, whose id is that of the request
// that made it. lock: none, the account lock is held.
const originalsSQL = `
select k.n, e.seq, e.kind, m.meter, e.meter_id, coalesce(s.subject, ''), e.subject_id, s.digest, e.units, e.at,
       coalesce(r.units, 0), h.awaited is not null
from unnest($1::integer[], $2::bigint[], $3::bigint[]) as k(n, tenant_id, seq)
cross join lateral (
  select e.seq, e.kind, e.meter_id, e.subject_id, e.units, e.at, e.ref_seq
  from quotad.entry e
  where e.tenant_id = k.tenant_id and e.seq = k.seq
  limit 1
) e
join quotad.meter m on m.meter_id = e.meter_id
left join lateral (
  select s.subject, s.digest
  from quotad.subject s
  where s.tenant_id = k.tenant_id and s.subject_id = e.subject_id
  limit 1
) s on true
left join lateral (
  select -sum(r.units)::bigint as units
  from quotad.entry r
  where r.units < 0 and r.ref_seq > 0 and r.tenant_id = k.tenant_id and r.ref_seq = k.seq and r.at >= e.at
) r on true
left join lateral (
  select true as awaited
  from quotad.entry o
  join quotad.hold h on h.tenant_id = o.tenant_id and h.hold_id = o.request_id
  where e.kind = 'expire' and o.tenant_id = k.tenant_id and o.seq = e.ref_seq and h.state = 'expired'
  limit 1
) h on true`

// queueOriginals queues reading the entries that reversals are of, and calls got with the
// index of each one that is there.
func queueOriginals(b *pgx.Batch, queries []originalQuery, got func(i int, o original, s ledger.SubjectRow)) {
	if len(queries) == 0 {
		return
	}
	n, tenantIDs, seqs := make([]int32, len(queries)), make([]int64, len(queries)), make([]int64, len(queries))
	for i, q := range queries {
		n[i], tenantIDs[i], seqs[i] = int32(i), q.tenantID, q.seq
	}
	b.Queue(originalsSQL, n, tenantIDs, seqs).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var i int32
			var o original
			var s ledger.SubjectRow
			var at time.Time
			err := rows.Scan(&i, &o.seq, &o.kind, &o.meter, &o.meterID, &o.subject, &s.ID, &s.Digest, &o.units, &at, &o.returned, &o.awaited)
			if err != nil {
				return fmt.Errorf("read entries to give back from: %w", err)
			}
			o.atMicros = at.UnixMicro()
			got(int(i), o, s)
		}
		return rows.Err()
	})
}
