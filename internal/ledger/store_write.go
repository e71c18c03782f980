package ledger

import (
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A Posting is an entry to append, with the identities its columns refer to.
type Posting struct {
	Entry
	TenantID int64
	MeterID  int32
	DimsSalt []byte
	DimsJSON []byte // canonical JSON; nil without dims
}

// A TotalRow is a running total to write. Levels are those of the limits that count by it: a
// JSON object that is opaque here, nil for none.
type TotalRow struct {
	TenantID  int64
	MeterID   int32
	SubjectID int64
	Total
	Levels []byte
}

// A NewSubject is a subject seen for the first time.
type NewSubject struct {
	TenantID  int64
	SubjectID int64
	Subject   string
	Salt      []byte
	Digest    []byte
}

// A Write is what a batch changes in the ledger.
type Write struct {
	Accounts []Account // with their new Seq, LastAt, HeadHash and SubjectSeq
	Subjects []NewSubject
	Totals   []TotalRow
	Postings []Posting
}

// QueueWrite queues the statements that make the changes of w. Everything in it must
// belong to accounts that this transaction has locked.
func QueueWrite(b *pgx.Batch, w *Write) {
	queueAccounts(b, w.Accounts)
	queueSubjects(b, w.Subjects)
	queueTotals(b, w.Totals)
	queueEntries(b, w.Postings)
	queueDims(b, w.Postings)
}

// index: account_pkey. lock: held already; no indexed column changes, so updates stay HOT.
const updateAccountsSQL = `
update quotad.account a
set seq = u.seq, last_at = u.last_at, head_hash = u.head_hash, subject_seq = u.subject_seq, open_holds = u.open_holds,
    room = null
from unnest($1::bigint[], $2::bigint[], $3::timestamptz[], $4::bytea[], $5::bigint[], $6::integer[])
  as u(tenant_id, seq, last_at, head_hash, subject_seq, open_holds)
where a.tenant_id = u.tenant_id`

func queueAccounts(b *pgx.Batch, accounts []Account) {
	if len(accounts) == 0 {
		return
	}
	ids, seqs := make([]int64, len(accounts)), make([]int64, len(accounts))
	lastAts, hashes := make([]time.Time, len(accounts)), make([][]byte, len(accounts))
	subjectSeqs, openHolds := make([]int64, len(accounts)), make([]int32, len(accounts))
	for i := range accounts {
		a := &accounts[i]
		ids[i], seqs[i], lastAts[i], hashes[i] = a.TenantID, a.Seq, a.LastAt, a.HeadHash[:]
		subjectSeqs[i], openHolds[i] = a.SubjectSeq, a.OpenHolds
	}
	b.Queue(updateAccountsSQL, ids, seqs, lastAts, hashes, subjectSeqs, openHolds)
}

// index: subject_pkey, subject_unique. lock: new rows only.
const insertSubjectsSQL = `
insert into quotad.subject (tenant_id, subject_id, subject, salt, digest)
select u.tenant_id, u.subject_id, u.subject, u.salt, u.digest
from unnest($1::bigint[], $2::bigint[], $3::text[], $4::bytea[], $5::bytea[])
  as u(tenant_id, subject_id, subject, salt, digest)`

func queueSubjects(b *pgx.Batch, subjects []NewSubject) {
	if len(subjects) == 0 {
		return
	}
	tenantIDs, ids := make([]int64, len(subjects)), make([]int64, len(subjects))
	texts, salts, digests := make([]string, len(subjects)), make([][]byte, len(subjects)), make([][]byte, len(subjects))
	for i, s := range subjects {
		tenantIDs[i], ids[i], texts[i], salts[i], digests[i] = s.TenantID, s.SubjectID, s.Subject, s.Salt, s.Digest
	}
	b.Queue(insertSubjectsSQL, tenantIDs, ids, texts, salts, digests)
}

// index: meter_total_pkey. lock: rows of accounts that are locked; updates stay HOT. An upsert
// locks the row that it finds before it updates it, which is written to the log, too: rows
// that are known to be there are only updated.
const (
	totalsOf = `unnest($1::bigint[], $2::integer[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
  $8::timestamptz[], $9::json[])
  as u(tenant_id, meter_id, subject_id, units, returned, held, calls, last_at, levels)`

	upsertTotalsSQL = `
insert into quotad.meter_total as t (tenant_id, meter_id, subject_id, units, returned, held, calls, last_at, levels)
select u.tenant_id, u.meter_id, u.subject_id, u.units, u.returned, u.held, u.calls, u.last_at, u.levels
from ` + totalsOf + `
on conflict (tenant_id, meter_id, subject_id) do update
set units = excluded.units, returned = excluded.returned, held = excluded.held, calls = excluded.calls, last_at = excluded.last_at,
    levels = excluded.levels, room = null`

	updateTotalsSQL = `
update quotad.meter_total t
set units = u.units, returned = u.returned, held = u.held, calls = u.calls, last_at = u.last_at, levels = u.levels,
    room = null
from ` + totalsOf + `
where t.tenant_id = u.tenant_id and t.meter_id = u.meter_id and t.subject_id = u.subject_id`
)

func queueTotals(b *pgx.Batch, totals []TotalRow) {
	for _, stored := range []bool{false, true} {
		n := 0
		for i := range totals {
			if totals[i].Stored == stored {
				n++
			}
		}
		if n == 0 {
			continue
		}
		tenantIDs, meterIDs, subjectIDs := make([]int64, 0, n), make([]int32, 0, n), make([]int64, 0, n)
		units, returned, held := make([]int64, 0, n), make([]int64, 0, n), make([]int64, 0, n)
		calls, lastAts, levels := make([]int64, 0, n), make([]time.Time, 0, n), make([][]byte, 0, n)
		for i := range totals {
			t := &totals[i]
			if t.Stored != stored {
				continue
			}
			tenantIDs, meterIDs, subjectIDs = append(tenantIDs, t.TenantID), append(meterIDs, t.MeterID), append(subjectIDs, t.SubjectID)
			units, returned, held = append(units, t.Units), append(returned, t.Returned), append(held, t.Held)
			calls, lastAts, levels = append(calls, t.Calls), append(lastAts, t.LastAt), append(levels, t.Levels)
		}
		sql := upsertTotalsSQL
		if stored {
			sql = updateTotalsSQL
		}
		b.Queue(sql, tenantIDs, meterIDs, subjectIDs, units, returned, held, calls, lastAts, levels)
	}
}

// index: entry_pkey, entry_window, entry_subject_window. lock: new rows only. An
// array per row cannot be unnested, so those of limits travel as text.
const insertEntriesSQL = `
insert into quotad.entry (
  tenant_id, seq, at, effective_at, kind, meter_id, subject_id, units, held, total, subject_total,
  request_id, batch_id, ref_seq, plan_version_id, override_set_id, limits_used, limits_held, dims_digest, hash)
select u.tenant_id, u.seq, u.at, u.effective_at, u.kind, u.meter_id, u.subject_id, u.units, u.held, u.total,
       u.subject_total, u.request_id, $16::uuid, u.ref_seq, u.plan_version_id, u.override_set_id, u.limits_used::bigint[],
       u.limits_held::bigint[], u.dims_digest, u.hash
from unnest(
  $1::bigint[], $2::bigint[], $3::timestamptz[], $4::timestamptz[], $5::text[], $6::integer[], $7::bigint[],
  $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::uuid[], $13::bigint[], $14::bigint[],
  $15::text[], $17::bytea[], $18::bytea[], $19::bigint[], $20::text[])
  as u(tenant_id, seq, at, effective_at, kind, meter_id, subject_id, units, held, total, subject_total,
       request_id, ref_seq, plan_version_id, limits_used, dims_digest, hash, override_set_id, limits_held)`

func queueEntries(b *pgx.Batch, postings []Posting) {
	if len(postings) == 0 {
		return
	}
	n := len(postings)
	tenantIDs, seqs, meterIDs, subjectIDs := make([]int64, n), make([]int64, n), make([]int32, n), make([]int64, n)
	ats, effectiveAts, kinds := make([]time.Time, n), make([]time.Time, n), make([]string, n)
	units, held, totals, subjectTotals := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	requestIDs, refSeqs, versions := make([]uuid.UUID, n), make([]int64, n), make([]int64, n)
	overrideSets, limitsUsed, limitsHeld := make([]int64, n), make([]string, n), make([]*string, n)
	dimsDigests, hashes := make([][]byte, n), make([][]byte, n)
	for i := range postings {
		p := &postings[i]
		tenantIDs[i], seqs[i], meterIDs[i], subjectIDs[i] = p.TenantID, p.Seq, p.MeterID, p.SubjectID
		ats[i], effectiveAts[i], kinds[i] = p.At, p.EffectiveAt, string(p.Kind)
		units[i], held[i], totals[i], subjectTotals[i] = p.Units, p.Held, p.Total, p.SubjectTotal
		requestIDs[i], refSeqs[i], versions[i] = p.RequestID, p.RefSeq, p.PlanVersionID
		overrideSets[i], limitsUsed[i], dimsDigests[i], hashes[i] = p.OverrideSetID, arrayLiteral(p.LimitsUsed), p.DimsDigest, p.Hash[:]
		if p.LimitsHeld != nil {
			held := arrayLiteral(p.LimitsHeld)
			limitsHeld[i] = &held
		}
	}
	b.Queue(insertEntriesSQL, tenantIDs, seqs, ats, effectiveAts, kinds, meterIDs, subjectIDs, units, held, totals,
		subjectTotals, requestIDs, refSeqs, versions, limitsUsed, [16]byte(postings[0].BatchID), dimsDigests, hashes, overrideSets, limitsHeld)
}

func arrayLiteral(values []int64) string {
	b := append(make([]byte, 0, 2+8*len(values)), '{')
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(append(b, '}'))
}

// index: entry_dims_pkey. lock: new rows only.
const insertDimsSQL = `
insert into quotad.entry_dims (tenant_id, seq, at, salt, dims)
select u.tenant_id, u.seq, u.at, u.salt, u.dims::json
from unnest($1::bigint[], $2::bigint[], $3::timestamptz[], $4::bytea[], $5::text[])
  as u(tenant_id, seq, at, salt, dims)`

func queueDims(b *pgx.Batch, postings []Posting) {
	var tenantIDs, seqs []int64
	var ats []time.Time
	var salts [][]byte
	var texts []string
	for i := range postings {
		p := &postings[i]
		if p.DimsJSON == nil {
			continue
		}
		tenantIDs, seqs, ats = append(tenantIDs, p.TenantID), append(seqs, p.Seq), append(ats, p.At)
		salts, texts = append(salts, p.DimsSalt), append(texts, string(p.DimsJSON))
	}
	if len(texts) > 0 {
		b.Queue(insertDimsSQL, tenantIDs, seqs, ats, salts, texts)
	}
}
