package main

import (
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

// index: none. lock: none. Callers of the hot tenant wait for each other longer than a
// session of quotad would.
const lockTimeoutSQL = `set lock_timeout = '30s'`

// index: meter_unique, plan_pkey, plan_version_pkey. lock: none.
const planSQL = `
select m.meter_id, p.plan_version_id, sha256(convert_to(v.spec::text, 'UTF8'))
from quotad.meter m
cross join quotad.plan p
join quotad.plan_version v on v.plan_version_id = p.plan_version_id
where m.meter = $1 and p.plan = $2`

// knownPlan is what every entry says of the one meter and the one plan.
type knownPlan struct {
	meterID    int32
	versionID  int64
	specDigest [32]byte
}

func (p *knownPlan) scan(row pgx.Row) error {
	digest := p.specDigest[:]
	err := row.Scan(&p.meterID, &p.versionID, &digest)
	copy(p.specDigest[:], digest)
	return err
}

// index: account_tenant_unique. lock: the row, for update.
const lockSQL = `
select a.tenant_id, a.seq, a.head_hash
from quotad.account a
where a.tenant = $1
for update of a`

// A statement of its own after the lock, so that it sees what the last holder committed.
// index: account_tenant_unique, meter_total_pkey, entry_window; one descent each. lock:
// none, the account lock is held.
const standingSQL = `
select now.at, coalesce(t.units, 0), coalesce(t.calls, 0), e.before, (t.level ->> 2)::bigint,
       timestamptz 'epoch' + (t.level ->> 5)::bigint * interval '1 microsecond'
from quotad.account a
cross join lateral (
  select greatest(quotad.decision_clock(), a.last_at) as at
) now
left join lateral (
  select t.units, t.calls, t.levels -> $4::text as level
  from quotad.meter_total t
  where t.tenant_id = a.tenant_id and t.meter_id = $2 and t.subject_id = 0
  limit 1
) t on true
left join lateral (
  select e.total - e.units as before
  from quotad.entry e
  where e.tenant_id = a.tenant_id and e.meter_id = $2
    and e.at > now.at - $3::bigint * interval '1 microsecond' and e.at <= now.at
  order by e.at, e.seq
  limit 1
) e on true
where a.tenant = $1`

func queueStanding(b *pgx.Batch, tenant string, meterID int32, s *standing) {
	b.Queue(lockSQL, tenant).QueryRow(func(row pgx.Row) error {
		head := s.head[:]
		err := row.Scan(&s.tenantID, &s.seq, &head)
		copy(s.head[:], head)
		return err
	})
	b.Queue(standingSQL, tenant, meterID, limitSpan.Microseconds(), bucketName).QueryRow(func(row pgx.Row) error {
		return row.Scan(&s.at, &s.units, &s.calls, &s.before, &s.left, &s.leftAt)
	})
}

// index: meter_total_pkey. lock: a row of an account that is locked; updates stay HOT.
const upsertTotalSQL = `
insert into quotad.meter_total (tenant_id, meter_id, subject_id, units, held, calls, last_at, levels)
values ($1, $2, 0, $3, 0, $4, $5, json_build_object($6::text, json_build_array($7::bigint, 0, $8::bigint, 0, 1, $9::bigint)))
on conflict (tenant_id, meter_id, subject_id) do update
set units = excluded.units, held = excluded.held, calls = excluded.calls, last_at = excluded.last_at,
    levels = excluded.levels`

// index: entry_pkey, entry_window. lock: a new row only.
const insertEntrySQL = `
insert into quotad.entry (
  tenant_id, seq, at, effective_at, kind, meter_id, subject_id, units, held, total, subject_total,
  request_id, batch_id, ref_seq, plan_version_id, limits_used, dims_digest, hash)
values ($1, $2, $3, $3, $4, $5, 0, $6, 0, $7, 0, $8, $9, 0, $10, $11, null, $12)`

// index: account_pkey. lock: held already; no indexed column changes, so it stays HOT.
const updateAccountSQL = `
update quotad.account a
set seq = $2, last_at = $3, head_hash = $4
where a.tenant_id = $1`

func queuePosting(b *pgx.Batch, p *ledger.Posting, calls, left int64) {
	b.Queue(updateAccountSQL, p.TenantID, p.Seq, p.At, p.Hash[:])
	b.Queue(upsertTotalSQL, p.TenantID, p.MeterID, p.Total, calls, p.At,
		bucketName, p.PlanVersionID, left, p.At.UnixMicro())
	b.Queue(insertEntrySQL, p.TenantID, p.Seq, p.At, string(p.Kind), p.MeterID, p.Units, p.Total,
		p.RequestID, p.BatchID, p.PlanVersionID, p.LimitsUsed, p.Hash[:])
}

// index: none. lock: a new row only.
const commitSQL = `insert into public.bare_commit (n) values ($1)`

// Bare commits are measured beside the transactions, with their rights.
const (
	createBareCommitSQL = `create table public.bare_commit (n bigint not null)`
	grantBareCommitSQL  = `grant insert on public.bare_commit to quotad_service`
)

// So that none falls into a short measurement.
const checkpointSQL = `checkpoint`

// index: none. lock: none.
const extentSQL = `select pg_current_wal_flush_lsn()::text, pg_database_size(current_database())`

// index: none. lock: none.
const walSQL = `select pg_wal_lsn_diff($2::pg_lsn, $1::pg_lsn)::bigint`

// The extension of PostgreSQL that tells what is in the log, where it is installed.
const walInspectSQL = `
do $$
begin
  if exists (select from pg_available_extensions a where a.name = 'pg_walinspect') then
    create extension if not exists pg_walinspect schema public;
  end if;
end
$$`

// index: none, the log is read. lock: none.
const imagesSQL = `
select coalesce(sum(s.fpi_size), 0)::bigint
from public.pg_get_wal_stats($1::pg_lsn, $2::pg_lsn) s`

// index: none, all entries are read. lock: none.
const countsSQL = `
select coalesce(sum(t.entries), 0)::bigint, count(*) filter (where t.entries <> t.newest)
from (
  select count(*) as entries, max(e.seq) as newest
  from quotad.entry e
  group by e.tenant_id
) t`

// index: none. lock: none.
const settingsSQL = `
select s.name, current_setting(s.name)
from pg_settings s
where s.name = any($1)`

// index: account_tenant_unique. lock: none.
const accountsSQL = `
select a.tenant_id, a.tenant, a.head_hash
from quotad.account a
where a.tenant = any($1)
order by a.tenant_id`

// entryColumns are those of seeded entries, in the order of seeded.row.
func entryColumns() []string {
	return []string{
		"tenant_id", "seq", "at", "effective_at", "kind", "meter_id", "subject_id", "units", "held", "total", "subject_total",
		"request_id", "batch_id", "ref_seq", "plan_version_id", "limits_used", "dims_digest", "hash",
	}
}

// index: account_pkey. lock: the rows; nobody else is there yet.
const advanceAccountsSQL = `
update quotad.account a
set seq = u.seq, last_at = u.last_at, head_hash = u.head_hash
from unnest($1::bigint[], $2::bigint[], $3::timestamptz[], $4::bytea[]) as u(tenant_id, seq, last_at, head_hash)
where a.tenant_id = u.tenant_id`

// index: meter_total_pkey. lock: new rows only.
const seedTotalsSQL = `
insert into quotad.meter_total (tenant_id, meter_id, subject_id, units, held, calls, last_at, levels)
select u.tenant_id, $4, 0, u.calls * $5, 0, u.calls, u.last_at,
       json_build_object($6::text, json_build_array($7::bigint, 0, $8::bigint, 0, 1, (extract(epoch from u.last_at) * 1000000)::bigint))
from unnest($1::bigint[], $2::bigint[], $3::timestamptz[]) as u(tenant_id, calls, last_at)`

// What autovacuum does in its own time with a table that has grown.
const vacuumSQL = `vacuum (analyze) quotad.entry, quotad.account, quotad.meter_total`
