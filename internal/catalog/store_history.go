package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// A Record is one line of the configuration's history. Records are never changed, and
// never hold a secret.
type Record struct {
	ID     int64           `json:"id"`
	At     time.Time       `json:"at"`
	By     string          `json:"by"`
	Object Object          `json:"object"`
	Name   string          `json:"name"`
	Before json.RawMessage `json:"before"` // null if there was none
	After  json.RawMessage `json:"after"`  // null if there is none
}

// A RecordQuery selects lines of the history. Zero fields select everything, the
// newest first.
type RecordQuery struct {
	Object    Object
	Name      string
	By        string
	From      time.Time // inclusive
	To        time.Time // exclusive
	Ascending bool      // the oldest first
	AfterAt   time.Time // the last line of the page before; zero for the first page
	AfterID   int64
	Limit     int // 1 to PageItemsMax; 0 for PageItems
}

// Walked in the order of time from the cursor: config_change_at, or by what is asked
// for config_change_name, config_change_object or config_change_by. No lock.
const (
	recordsSQL = `
select change_id, changed_at, changed_by, object, name, before, after
from quotad.config_change
where true`
	recordsOfObjectSQL = ` and object = $n`
	recordsOfNameSQL   = ` and name = $n`
	recordsBySQL       = ` and changed_by = $n`
	recordsFromSQL     = ` and changed_at >= $n`
	recordsToSQL       = ` and changed_at < $n`
	recordsAfterSQL    = ` and (changed_at, change_id) > ($n::timestamptz, $n::bigint)`
	recordsBeforeSQL   = ` and (changed_at, change_id) < ($n::timestamptz, $n::bigint)`
	recordsUpSQL       = `
order by changed_at, change_id
limit $n`
	recordsDownSQL = `
order by changed_at desc, change_id desc
limit $n`
)

func (q RecordQuery) list() *list {
	l := &list{}
	l.add(recordsSQL)
	l.when(q.Object != "", recordsOfObjectSQL, string(q.Object))
	l.when(q.Name != "", recordsOfNameSQL, q.Name)
	l.when(q.By != "", recordsBySQL, q.By)
	l.when(!q.From.IsZero(), recordsFromSQL, q.From)
	l.when(!q.To.IsZero(), recordsToSQL, q.To)
	l.when(!q.AfterAt.IsZero() && q.Ascending, recordsAfterSQL, q.AfterAt, q.AfterID)
	l.when(!q.AfterAt.IsZero() && !q.Ascending, recordsBeforeSQL, q.AfterAt, q.AfterID)
	page := recordsDownSQL
	if q.Ascending {
		page = recordsUpSQL
	}
	l.add(page, Page{Limit: q.Limit}.limit()+1)
	return l
}

// Records returns one page of the configuration's history, and whether there is more.
func (s *Store) Records(ctx context.Context, q RecordQuery) (records []Record, more bool, err error) {
	records, err = collectList(ctx, s.pool, scanRecord, q.list())
	if err != nil {
		return nil, false, fmt.Errorf("read the configuration's history: %w", err)
	}
	if limit := (Page{Limit: q.Limit}).limit(); len(records) > limit {
		return records[:limit], true, nil
	}
	return records, false, nil
}

func scanRecord(row pgx.CollectableRow) (Record, error) {
	var r Record
	err := row.Scan(&r.ID, &r.At, &r.By, &r.Object, &r.Name, (*[]byte)(&r.Before), (*[]byte)(&r.After))
	r.At = r.At.UTC()
	return r, err
}

// A PlanVersion is one version of a plan, and who made it when.
type PlanVersion struct {
	Plan
	CreatedAt time.Time
	CreatedBy string
}

// plan_version_unique finds the row; no lock, rows never change.
const planVersionOfSQL = `
select plan_version_id, plan, version, spec, created_at, created_by
from quotad.plan_version
where plan = $1 and version = $2`

// plan_version_unique is walked backwards from the cursor; no lock.
const planVersionsOfSQL = `
select plan_version_id, plan, version, spec, created_at, created_by
from quotad.plan_version
where plan = $1 and version < $2
order by version desc
limit $3`

// PlanVersionOf returns a version of a plan by its number, also of a plan that was
// removed. It returns [ErrNotFound] if there is none.
func (s *Store) PlanVersionOf(ctx context.Context, plan string, version int32) (PlanVersion, error) {
	v, err := one(ctx, s.pool, scanPlanVersion, planVersionOfSQL, plan, version)
	if err != nil {
		return PlanVersion{}, fmt.Errorf("version %d of plan %s: %w", version, plan, err)
	}
	return v, nil
}

// PlanVersionsOf returns the versions of a plan, the newest first, below a version or,
// with 0, all; and whether there are more. A plan that never was has none.
func (s *Store) PlanVersionsOf(ctx context.Context, plan string, below int32, limit int) (versions []PlanVersion, more bool, err error) {
	if below <= 0 {
		below = 1<<31 - 1
	}
	limit = Page{Limit: limit}.limit()
	versions, err = collect(ctx, s.pool, scanPlanVersion, planVersionsOfSQL, plan, below, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("list the versions of plan %s: %w", plan, err)
	}
	if len(versions) > limit {
		return versions[:limit], true, nil
	}
	return versions, false, nil
}

func scanPlanVersion(row pgx.CollectableRow) (PlanVersion, error) {
	var v PlanVersion
	var (
		versionID int64
		name      string
		version   int32
		spec      []byte
	)
	if err := row.Scan(&versionID, &name, &version, &spec, &v.CreatedAt, &v.CreatedBy); err != nil {
		return v, err
	}
	plan, err := decodeStored(name, version, versionID, spec)
	if err != nil {
		return v, err
	}
	v.Plan, v.CreatedAt = *plan, v.CreatedAt.UTC()
	return v, nil
}
