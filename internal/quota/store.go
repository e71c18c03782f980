package quota

import (
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// keyRetention is how long an idempotency key gives the same answer again.
const keyRetention = "35 days"

// keptAnswer is what an idempotency key is bound to.
type keptAnswer struct {
	requestHash [32]byte
	answer      []byte
}

type keyQuery struct {
	tenantID int64
	key      string
}

// index: idempotency_pkey, one descent per weekly partition from the oldest that is
// kept to the tenant's now. lock: none, the account lock makes a key's first use and
// its retries serial.
const keysSQL = `
with clock as materialized (
  select quotad.decision_clock() as at
)
select k.n, i.request_hash, i.answer
from clock c
cross join unnest($1::integer[], $2::bigint[], $3::text[]) as k(n, tenant_id, key)
cross join lateral (
  select greatest(c.at, a.last_at) as at
  from quotad.account a
  where a.tenant_id = k.tenant_id
  limit 1
) now
cross join lateral (
  select i.request_hash, i.answer
  from quotad.idempotency i
  where i.tenant_id = k.tenant_id and i.key = k.key
    and i.created_at > c.at - interval '` + keyRetention + `' and i.created_at <= now.at
  order by i.created_at desc
  limit 1
) i`

// queueKeys queues looking idempotency keys up and calls got for each one that is kept.
func queueKeys(b *pgx.Batch, queries []keyQuery, got func(i int, kept keptAnswer)) {
	if len(queries) == 0 {
		return
	}
	n, tenantIDs, keys := make([]int32, len(queries)), make([]int64, len(queries)), make([]string, len(queries))
	for i, q := range queries {
		n[i], tenantIDs[i], keys[i] = int32(i), q.tenantID, q.key
	}
	b.Queue(keysSQL, n, tenantIDs, keys).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var i int32
			var hash []byte
			var kept keptAnswer
			if err := rows.Scan(&i, &hash, &kept.answer); err != nil {
				return fmt.Errorf("read idempotency keys: %w", err)
			}
			copy(kept.requestHash[:], hash)
			got(int(i), kept)
		}
		return rows.Err()
	})
}

type keyRow struct {
	tenantID int64
	key      string
	at       time.Time
	firstSeq int64
	keptAnswer
}

// index: idempotency_pkey. lock: new rows only.
const insertKeysSQL = `
insert into quotad.idempotency (tenant_id, key, created_at, request_hash, first_seq, answer)
select u.tenant_id, u.key, u.created_at, u.request_hash, u.first_seq, u.answer
from unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::bytea[], $5::bigint[], $6::bytea[])
  as u(tenant_id, key, created_at, request_hash, first_seq, answer)`

func queueWriteKeys(b *pgx.Batch, rows []keyRow) {
	if len(rows) == 0 {
		return
	}
	size := len(rows)
	tenantIDs, keys, ats := make([]int64, size), make([]string, size), make([]time.Time, size)
	hashes, firstSeqs, answers := make([][]byte, size), make([]int64, size), make([][]byte, size)
	for i := range rows {
		r := &rows[i]
		tenantIDs[i], keys[i], ats[i] = r.tenantID, r.key, r.at
		hashes[i], firstSeqs[i], answers[i] = r.requestHash[:], r.firstSeq, r.answer
	}
	b.Queue(insertKeysSQL, tenantIDs, keys, ats, hashes, firstSeqs, answers)
}
