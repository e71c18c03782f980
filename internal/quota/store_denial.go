package quota

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pg"
)

// index: denial_count_pkey. lock: the rows, in the order of the key, which is the same
// in every instance.
const upsertDenialCountsSQL = `
insert into quotad.denial_count as c (tenant_id, minute, limit_name, reason, denials)
select u.tenant_id, u.minute, u.limit_name, u.reason, u.denials
from unnest($1::bigint[], $2::timestamptz[], $3::text[], $4::text[], $5::bigint[])
  as u(tenant_id, minute, limit_name, reason, denials)
on conflict (tenant_id, minute, limit_name, reason) do update
set denials = c.denials + excluded.denials`

// index: denial_pkey. lock: new rows only.
const insertDenialsSQL = `
insert into quotad.denial (
  tenant_id, at, request_id, after_seq, plan_version_id, override_set_id, reason, subject, limit_names, meters, decision)
select r.tenant_id, r.at, r.request_id, r.after_seq, r.plan_version_id, r.override_set_id, r.reason, r.subject, r.limit_names, r.meters,
       r.decision
from json_to_recordset($1::json) as r(
  tenant_id bigint, at timestamptz, request_id uuid, after_seq bigint, plan_version_id bigint, override_set_id bigint,
  reason text, subject text, limit_names text[], meters text[], decision json)
on conflict (tenant_id, at, request_id) do nothing`

// index: denial_pkey, walked backwards to the oldest that is kept. lock: the rows that
// go; the tenants come in order, behind their counts, so that instances do not cross.
const trimDenialsSQL = `
delete from quotad.denial d
using unnest($1::bigint[]) as k(tenant_id)
cross join lateral (
  select o.at, o.request_id
  from quotad.denial o
  where o.tenant_id = k.tenant_id
  order by o.at desc, o.request_id desc
  offset $2
  limit 1
) newest
where d.tenant_id = k.tenant_id and (d.at, d.request_id) <= (newest.at, newest.request_id)`

// denialRecord is a row of denial as json_to_recordset reads it.
type denialRecord struct {
	TenantID      int64     `json:"tenant_id"`
	At            time.Time `json:"at"`
	RequestID     uuid.UUID `json:"request_id"`
	AfterSeq      int64     `json:"after_seq"`
	PlanVersionID int64     `json:"plan_version_id"`
	OverrideSetID int64     `json:"override_set_id"`
	Reason        Reason    `json:"reason"`
	Subject       *string   `json:"subject"`
	LimitNames    []string  `json:"limit_names"`
	Meters        []string  `json:"meters"`
	Decision      *Decision `json:"decision"`
}

// queueDenials queues writing all that was gathered.
func queueDenials(b *pgx.Batch, g *gatheredDenials) error {
	queueDenialCounts(b, g.counts)
	if len(g.last) == 0 {
		return nil
	}
	records := make([]denialRecord, 0, g.size)
	tenantIDs := make([]int64, 0, len(g.last))
	for tenantID, denials := range g.last {
		tenantIDs = append(tenantIDs, tenantID)
		for i := range denials {
			records = append(records, newDenialRecord(tenantID, denials[i]))
		}
	}
	slices.Sort(tenantIDs)
	text, err := json.Marshal(records)
	if err != nil {
		return fmt.Errorf("encode denials: %w", err)
	}
	b.Queue(insertDenialsSQL, text)
	b.Queue(trimDenialsSQL, tenantIDs, denialsKept)
	return nil
}

func newDenialRecord(tenantID int64, denied deniedCall) denialRecord {
	d := denied.decision // a copy: the caller's keeps its subject
	record := denialRecord{
		TenantID: tenantID, At: d.DecidedAt, RequestID: d.RequestID, AfterSeq: denied.afterSeq,
		PlanVersionID: denied.plan.VersionID, OverrideSetID: denied.plan.OverrideSetID, Reason: d.Reason,
		LimitNames: []string{}, Meters: []string{}, Decision: &d,
	}
	if d.Subject != "" {
		subject := d.Subject
		record.Subject, d.Subject = &subject, ""
	}
	for i := range d.Limits {
		if d.Limits[i].Violated {
			record.LimitNames = append(record.LimitNames, d.Limits[i].Name)
		}
	}
	for i := range d.Charges {
		record.Meters = append(record.Meters, d.Charges[i].Meter)
	}
	return record
}

func queueDenialCounts(b *pgx.Batch, counts map[denialCountKey]int64) {
	keys := make([]denialCountKey, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b denialCountKey) int {
		return cmp.Or(cmp.Compare(a.tenantID, b.tenantID), cmp.Compare(a.minuteMicros, b.minuteMicros),
			cmp.Compare(a.limit, b.limit), cmp.Compare(a.reason, b.reason))
	})
	size := len(keys)
	tenantIDs, minutes, denials := make([]int64, size), make([]time.Time, size), make([]int64, size)
	limits, reasons := make([]string, size), make([]string, size)
	for i, key := range keys {
		tenantIDs[i], minutes[i], denials[i] = key.tenantID, time.UnixMicro(key.minuteMicros).UTC(), counts[key]
		limits[i], reasons[i] = key.limit, string(key.reason)
	}
	b.Queue(upsertDenialCountsSQL, tenantIDs, minutes, limits, reasons, denials)
}

// index: denial_at and denial_count_minute, from their oldest end. lock: the rows that go.
const (
	pruneDenialsSQL = `
delete from quotad.denial d
where d.ctid = any (array(
  select o.ctid
  from quotad.denial o
  where o.at < quotad.decision_clock() - $1::interval
  order by o.at
  limit $2))`
	pruneDenialCountsSQL = `
delete from quotad.denial_count c
where c.ctid = any (array(
  select o.ctid
  from quotad.denial_count o
  where o.minute < quotad.decision_clock() - $1::interval
  order by o.minute
  limit $2))`
)

// queuePruneDenials queues deleting some of what is past its retention, and adds how
// many rows there were.
func queuePruneDenials(b *pgx.Batch, deleted *int64) {
	for _, sql := range []string{pruneDenialsSQL, pruneDenialCountsSQL} {
		b.Queue(sql, denialsRetention, denialsPruneStep).Exec(func(tag pgconn.CommandTag) error {
			*deleted += tag.RowsAffected()
			return nil
		})
	}
}

// A DenialStore reads what was denied. It is safe for concurrent use if its Querier is.
type DenialStore struct {
	db ledger.Querier
}

// NewDenialStore returns a store that reads from db.
func NewDenialStore(db ledger.Querier) *DenialStore { return &DenialStore{db: db} }

// DenialsPageMax bounds one page of denials or of their counts.
const DenialsPageMax = 1001

// A DenialQuery selects kept denials of one tenant, the newest first. Zero fields
// select everything.
type DenialQuery struct {
	Tenant    string
	BeforeAt  time.Time // with BeforeID: only older ones
	BeforeID  uuid.UUID
	RequestID uuid.UUID
	Meter     string
	Subject   string
	LimitName string
	Reason    Reason
	From      time.Time // inclusive
	To        time.Time // exclusive
	Limit     int       // 1 to DenialsPageMax
}

// index: account_tenant_unique, then denial_pkey backwards within the tenant, which has
// about a thousand rows at most. lock: none.
const denialsSQL = `
select d.at, d.request_id, d.after_seq, d.plan_version_id, d.override_set_id, p.plan, p.version, d.reason, coalesce(d.subject, ''), d.limit_names, d.decision
from quotad.account a
cross join lateral (
  select d.*
  from quotad.denial d
  where d.tenant_id = a.tenant_id
    and ($2::timestamptz is null or (d.at, d.request_id) < ($2, $3::uuid))
    and ($4::uuid is null or d.request_id = $4)
    and ($5 = '' or $5 = any (d.meters))
    and ($6 = '' or d.subject = $6)
    and ($7 = '' or $7 = any (d.limit_names))
    and ($8 = '' or d.reason = $8)
    and ($9::timestamptz is null or d.at >= $9)
    and ($10::timestamptz is null or d.at < $10)
  order by d.at desc, d.request_id desc
  limit $11
) d
join quotad.plan_version p on p.plan_version_id = d.plan_version_id
where a.tenant = $1
order by d.at desc, d.request_id desc`

// Denials returns one page of kept denials, the newest first. An unknown tenant has
// none.
func (s *DenialStore) Denials(ctx context.Context, q DenialQuery) ([]Denial, error) {
	if q.Limit < 1 || q.Limit > DenialsPageMax {
		return nil, fmt.Errorf("read denials: limit must be 1 to %d", DenialsPageMax)
	}
	var requestID *uuid.UUID
	if q.RequestID != uuid.Nil {
		requestID = &q.RequestID
	}
	rows, err := s.db.Query(ctx, denialsSQL, q.Tenant, pg.OrNull(q.BeforeAt), q.BeforeID, requestID, q.Meter, q.Subject,
		q.LimitName, string(q.Reason), pg.OrNull(q.From), pg.OrNull(q.To), q.Limit)
	if err != nil {
		return nil, fmt.Errorf("read denials: %w", err)
	}
	denials, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Denial, error) {
		var d Denial
		var decision []byte
		err := row.Scan(&d.At, &d.RequestID, &d.AfterSeq, &d.PlanVersionID, &d.OverrideSetID, &d.Plan, &d.PlanVersion, &d.Reason,
			&d.Subject, &d.LimitNames, &decision)
		if err == nil {
			err = json.Unmarshal(decision, &d.Decision)
		}
		d.At, d.Decision.Subject = d.At.UTC(), d.Subject
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("read denials: %w", err)
	}
	return denials, nil
}

// ErrDenialNotFound says that no denial of that request is kept.
var ErrDenialNotFound = errors.New("no such denial is kept")

// Denial returns the kept denial of a request, or [ErrDenialNotFound].
func (s *DenialStore) Denial(ctx context.Context, tenant string, requestID uuid.UUID) (Denial, error) {
	denials, err := s.Denials(ctx, DenialQuery{Tenant: tenant, RequestID: requestID, Limit: 1})
	switch {
	case err != nil:
		return Denial{}, err
	case len(denials) == 0:
		return Denial{}, ErrDenialNotFound
	}
	return denials[0], nil
}

// A DenialCountQuery selects counts of one tenant, the newest minute first. Zero fields
// select everything, but LimitName: "" selects whole requests and AllLimits every row.
type DenialCountQuery struct {
	Tenant    string
	After     *DenialCount // only rows behind this one
	LimitName string
	AllLimits bool
	Reason    Reason
	From      time.Time // inclusive
	To        time.Time // exclusive
	Limit     int       // 1 to DenialsPageMax
}

// index: account_tenant_unique, then denial_count_pkey backwards. lock: none.
const denialCountsSQL = `
select c.minute, c.limit_name, c.reason, c.denials
from quotad.account a
cross join lateral (
  select c.*
  from quotad.denial_count c
  where c.tenant_id = a.tenant_id
    and ($2::timestamptz is null or (c.minute, c.limit_name, c.reason) < ($2, $3, $4))
    and ($5 or c.limit_name = $6)
    and ($7 = '' or c.reason = $7)
    and ($8::timestamptz is null or c.minute >= $8)
    and ($9::timestamptz is null or c.minute < $9)
  order by c.minute desc, c.limit_name desc, c.reason desc
  limit $10
) c
where a.tenant = $1
order by c.minute desc, c.limit_name desc, c.reason desc`

// Counts returns one page of denials per minute, the newest first.
func (s *DenialStore) Counts(ctx context.Context, q DenialCountQuery) ([]DenialCount, error) {
	if q.Limit < 1 || q.Limit > DenialsPageMax {
		return nil, fmt.Errorf("count denials: limit must be 1 to %d", DenialsPageMax)
	}
	var after DenialCount
	if q.After != nil {
		after = *q.After
	}
	rows, err := s.db.Query(ctx, denialCountsSQL, q.Tenant, pg.OrNull(after.Minute), after.LimitName, string(after.Reason),
		q.AllLimits, q.LimitName, string(q.Reason), pg.OrNull(q.From), pg.OrNull(q.To), q.Limit)
	if err != nil {
		return nil, fmt.Errorf("count denials: %w", err)
	}
	counts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (DenialCount, error) {
		var c DenialCount
		err := row.Scan(&c.Minute, &c.LimitName, &c.Reason, &c.Denials)
		c.Minute = c.Minute.UTC()
		return c, err
	})
	if err != nil {
		return nil, fmt.Errorf("count denials: %w", err)
	}
	return counts, nil
}
