package ledger

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// An Account is a tenant's row as it was locked.
type Account struct {
	TenantID      int64
	Tenant        string
	Plan          string
	Status        string
	Timezone      string
	BillingAnchor int
	CalendarPast  []byte // JSON; nil when the calendar never changed
	NextPlan      string // "" for none
	NextPlanAt    time.Time
	OverrideSetID int64     // 0 for none
	TermsAt       time.Time // when plan, next plan or overrides were last changed
	Seq           int64
	LastAt        time.Time
	HeadHash      [32]byte
	SubjectSeq    int64
	OpenHolds     int32
}

// index: account_tenant_unique. lock: the rows, for update; the first statement skips
// rows that someone else holds, the second waits for one row in the server's fair queue
// and must be the only lock of its transaction.
const (
	accountColumns = `
select a.tenant_id, a.tenant, a.plan, a.status, a.timezone, a.billing_anchor, a.calendar_past,
       coalesce(a.next_plan, ''), coalesce(a.next_plan_at, '1970-01-01 00:00:00+00'), a.override_set_id, a.terms_at,
       a.seq, a.last_at, a.head_hash, a.subject_seq, a.open_holds
from quotad.account a
where a.tenant = any($1::text[])`
	lockWaitSQL = accountColumns + `
for update of a`
	lockSkipSQL = lockWaitSQL + ` skip locked`
)

// QueueLock queues locking the accounts of tenants and calls got for each one locked.
// With wait false, accounts that another transaction holds are left out, as are
// tenants that do not exist. With wait true there must be exactly one tenant.
func QueueLock(b *pgx.Batch, tenants []string, wait bool, got func(Account)) {
	sql := lockSkipSQL
	if wait {
		sql = lockWaitSQL
	}
	queueAccountRows(b, sql, tenants, got)
}

// QueueAccounts queues reading the accounts of tenants without locking them, and calls got
// for each one there is.
func QueueAccounts(b *pgx.Batch, tenants []string, got func(Account)) {
	queueAccountRows(b, accountColumns, tenants, got)
}

func queueAccountRows(b *pgx.Batch, sql string, tenants []string, got func(Account)) {
	b.Queue(sql, tenants).Query(func(rows pgx.Rows) error {
		var a Account // one for all rows: each sets every field
		var hash pgtype.DriverBytes
		for rows.Next() {
			if err := rows.Scan(&a.TenantID, &a.Tenant, &a.Plan, &a.Status, &a.Timezone, &a.BillingAnchor,
				&a.CalendarPast, &a.NextPlan, &a.NextPlanAt, &a.OverrideSetID, &a.TermsAt,
				&a.Seq, &a.LastAt, &hash, &a.SubjectSeq, &a.OpenHolds); err != nil {
				return fmt.Errorf("read account: %w", err)
			}
			copy(a.HeadHash[:], hash)
			got(a)
		}
		return rows.Err()
	})
}

// A Total is the newest running total of a meter, of a tenant or of one subject.
type Total struct {
	Units    int64 // running total: what was used, without what was given back
	Returned int64 // what was given back
	Held     int64
	Calls    int64
	LastAt   time.Time // the newest entry that used units; zero if none
	Stored   bool      // there is a row of it, for sure while the account is locked
}

// A TotalQuery asks for the total of (TenantID, MeterID, Subject); Subject "" is the
// whole tenant.
type TotalQuery struct {
	TenantID int64
	MeterID  int32
	Subject  string
}

// A SubjectRow is a subject as the ledger knows it; ID 0 means it is not known yet.
type SubjectRow struct {
	ID     int64
	Digest []byte
}

// index: subject_unique, meter_total_pkey; one descent each. lock: none, the account
// lock is held.
const totalsSQL = `
select k.n, coalesce(s.subject_id, 0), s.digest, t.units, t.returned, t.held, t.calls, t.last_at, t.levels
from unnest($1::integer[], $2::bigint[], $3::integer[], $4::text[]) as k(n, tenant_id, meter_id, subject)
left join lateral (
  select s.subject_id, s.digest
  from quotad.subject s
  where k.subject <> '' and s.tenant_id = k.tenant_id and s.subject = k.subject
  limit 1
) s on true
left join lateral (
  select t.units, t.returned, t.held, t.calls, t.last_at, t.levels
  from quotad.meter_total t
  where t.tenant_id = k.tenant_id and t.meter_id = k.meter_id
    and t.subject_id = case when k.subject = '' then 0 else s.subject_id end
  limit 1
) t on true`

// QueueTotals queues reading totals and calls got with the index of each query. levels is
// what was kept beside the total, see [TotalRow].
func QueueTotals(b *pgx.Batch, queries []TotalQuery, got func(i int, t Total, levels []byte, s SubjectRow)) {
	if len(queries) == 0 {
		return
	}
	n, tenantIDs := make([]int32, len(queries)), make([]int64, len(queries))
	meterIDs, subjects := make([]int32, len(queries)), make([]string, len(queries))
	for i, q := range queries {
		n[i], tenantIDs[i], meterIDs[i], subjects[i] = int32(i), q.TenantID, q.MeterID, q.Subject
	}
	b.Queue(totalsSQL, n, tenantIDs, meterIDs, subjects).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var i int32
			var s SubjectRow
			var units, returned, held, calls *int64
			var lastAt *time.Time
			var levels []byte
			if err := rows.Scan(&i, &s.ID, &s.Digest, &units, &returned, &held, &calls, &lastAt, &levels); err != nil {
				return fmt.Errorf("read totals: %w", err)
			}
			var t Total
			if units != nil {
				t = Total{Units: *units, Returned: *returned, Held: *held, Calls: *calls, LastAt: *lastAt, Stored: true}
			}
			got(int(i), t, levels, s)
		}
		return rows.Err()
	})
}

// An EdgeQuery asks for the running total just before a window begins. The window
// starts at Start, or, where Start is zero, Lookback before now.
type EdgeQuery struct {
	TenantID int64
	MeterID  int32
	Subject  string // "" counts the whole tenant
	Start    time.Time
	Lookback time.Duration
}

// An Edge answers an EdgeQuery: the first entry in the window, if there is one.
type Edge struct {
	Found    bool
	At       time.Time // of that entry
	Before   int64     // running total before it
	Returned int64     // units given back of what is in the window
}

// The clock is read once per batch, after the locks; the first row is the clock's own.
// A window is bounded on both sides so that only its partitions are opened. A correction
// is younger than what it corrects, so those of a window's entries are in it, too.
// index: entry_window or entry_subject_window, one descent each; entry_correction;
// catalog_version_pkey. lock: none.
const edgesSQL = `
with clock as materialized (
  select coalesce($1::timestamptz, quotad.decision_clock()) as at,
         (select v.version from quotad.catalog_version v where v.single) as catalog_version
)
select c.at, c.catalog_version, k.n, coalesce(t.before, s.before), coalesce(t.at, s.at), coalesce(r.units, 0)
from clock c
left join unnest($2::integer[], $3::bigint[], $4::integer[], $5::text[], $6::timestamptz[], $7::bigint[])
  as k(n, tenant_id, meter_id, subject, start_at, lookback_us) on true
left join lateral (
  select greatest(c.at, a.last_at) as at
  from quotad.account a
  where a.tenant_id = k.tenant_id
) now on true
left join lateral (
  select coalesce(k.start_at, now.at - k.lookback_us * interval '1 microsecond') as at
) start on true
left join lateral (
  select e.at, e.total - greatest(e.units, 0) as before
  from quotad.entry e
  where k.subject = '' and e.tenant_id = k.tenant_id and e.meter_id = k.meter_id and e.subject_id >= 0
    and e.at >= start.at and e.at <= now.at
  order by e.at, e.seq
  limit 1
) t on true
left join lateral (
  select e.at, e.subject_total - greatest(e.units, 0) as before
  from quotad.entry e
  where k.subject <> '' and e.tenant_id = k.tenant_id and e.meter_id = k.meter_id
    and e.subject_id <> 0
    and e.subject_id = (
      select u.subject_id from quotad.subject u where u.tenant_id = k.tenant_id and u.subject = k.subject)
    and e.at >= start.at and e.at <= now.at
  order by e.at, e.seq
  limit 1
) s on true
left join lateral (
  select -sum(e.units)::bigint as units
  from quotad.entry e
  where e.units < 0 and e.tenant_id = k.tenant_id and e.meter_id = k.meter_id
    and e.at >= start.at and e.at <= now.at and e.effective_at >= start.at
    and (k.subject = '' or e.subject_id = (
      select u.subject_id from quotad.subject u where u.tenant_id = k.tenant_id and u.subject = k.subject))
) r on true`

// A Clock is what the edge read says of the whole batch.
type Clock struct {
	At             time.Time // decision_clock()
	CatalogVersion int64
}

// QueueEdges queues reading the clock and the edges, and calls gotEdge with the index
// of each query. at is nil to read the clock, or the instant an earlier read returned;
// then nothing is queued without queries.
func QueueEdges(b *pgx.Batch, at *time.Time, queries []EdgeQuery, gotClock func(Clock), gotEdge func(i int, e Edge)) {
	if len(queries) == 0 {
		if at == nil {
			queueClock(b, gotClock)
		}
		return
	}
	n, tenantIDs := make([]int32, len(queries)), make([]int64, len(queries))
	meterIDs, subjects := make([]int32, len(queries)), make([]string, len(queries))
	starts, lookbacks := make([]*time.Time, len(queries)), make([]int64, len(queries))
	for i, q := range queries {
		n[i], tenantIDs[i], meterIDs[i], subjects[i] = int32(i), q.TenantID, q.MeterID, q.Subject
		lookbacks[i] = q.Lookback.Microseconds()
		if !q.Start.IsZero() {
			starts[i] = &queries[i].Start
		}
	}
	b.Queue(edgesSQL, at, n, tenantIDs, meterIDs, subjects, starts, lookbacks).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var clock Clock
			var i *int32
			var before *int64
			var at *time.Time
			var edge Edge
			if err := rows.Scan(&clock.At, &clock.CatalogVersion, &i, &before, &at, &edge.Returned); err != nil {
				return fmt.Errorf("read window edges: %w", err)
			}
			gotClock(clock)
			if i == nil {
				continue
			}
			if edge.Found = before != nil; edge.Found {
				edge.Before, edge.At = *before, at.UTC()
			}
			gotEdge(int(*i), edge)
		}
		return rows.Err()
	})
}

// index: catalog_version_pkey: the row has as many dead versions as changes of the last minute,
// which a scan would read. lock: none.
const clockSQL = `select quotad.decision_clock(), (select v.version from quotad.catalog_version v where v.single)`

// queueClock queues reading the clock where there is no edge to read.
func queueClock(b *pgx.Batch, got func(Clock)) {
	b.Queue(clockSQL).QueryRow(func(row pgx.Row) error {
		var clock Clock
		if err := row.Scan(&clock.At, &clock.CatalogVersion); err != nil {
			return fmt.Errorf("read the clock: %w", err)
		}
		got(clock)
		return nil
	})
}

// index: account_pkey. lock: the row, for update: it waits for whoever is
// writing this account, so what it then reads is final.
const lockForResolveSQL = `select a.tenant_id from quotad.account a where a.tenant_id = $1 for update`

// index: entry_pkey. lock: none.
const batchIDSQL = `select e.batch_id from quotad.entry e where e.tenant_id = $1 and e.seq = $2 and e.at = $3`

// QueueResolve queues the question whether the posting is in the ledger, asked under
// the account's lock so that a transaction still in flight ends first. got is called
// with the batch id found at the posting's place, if any.
func QueueResolve(b *pgx.Batch, p *Posting, got func(batchID uuid.UUID)) {
	b.Queue(lockForResolveSQL, p.TenantID)
	b.Queue(batchIDSQL, p.TenantID, p.Seq, p.At).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id uuid.UUID
			if err := rows.Scan(&id); err != nil {
				return fmt.Errorf("read batch id: %w", err)
			}
			got(id)
		}
		return rows.Err()
	})
}

// index: account_tenant_unique. lock: none.
const existingSQL = `select a.tenant from quotad.account a where a.tenant = any($1::text[])`

// QueueExisting queues asking which of tenants have an account.
func QueueExisting(b *pgx.Batch, tenants []string, got func(tenant string)) {
	b.Queue(existingSQL, tenants).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var tenant string
			if err := rows.Scan(&tenant); err != nil {
				return fmt.Errorf("read accounts: %w", err)
			}
			got(tenant)
		}
		return rows.Err()
	})
}

// index: none needed. lock: see the function; at most 5 s for it.
const ensurePartitionsSQL = `
select quotad.ensure_partitions($1::timestamptz - interval '1 day', $1::timestamptz + interval '2 months')`

// QueueEnsurePartitions queues making the partitions from just before at to two months
// after it.
func QueueEnsurePartitions(b *pgx.Batch, at time.Time) {
	b.Queue(ensurePartitionsSQL, at)
}
