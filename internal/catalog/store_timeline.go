package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// A TimelineQuery asks for the timeline of a tenant.
type TimelineQuery struct {
	TenantID   int64
	Since      time.Time // zero for all of it
	VersionIDs []int64   // plan versions that it must know, whatever plan they are of
}

// terms_of_tenant finds the terms in force before the instant and walks those after it. No
// lock: rows never change, and those of a tenant come under its account's lock.
const timelineTermsSQL = `
select k.n, t.at, t.plan, coalesce(t.next_plan, ''), t.next_plan_at, t.override_set_id
from unnest($1::integer[], $2::bigint[], $3::timestamptz[]) as k(n, tenant_id, since)
cross join lateral (
  (select t.*
  from quotad.terms t
  where t.tenant_id = k.tenant_id and t.at < k.since
  order by t.at desc, t.terms_id desc
  limit 1)
  union all
  (select t.*
  from quotad.terms t
  where t.tenant_id = k.tenant_id and t.at >= k.since)
) t
order by k.n, t.at, t.terms_id`

// plan_version_unique and plan_version_pkey find the rows. No lock, rows never change.
const timelineVersionsSQL = `
select v.plan_version_id, v.plan, v.version, v.spec, v.created_at, v.created_by
from quotad.plan_version v
where v.plan = any($1)
  and (v.created_at >= $2 or v.version = (
    select max(o.version)
    from quotad.plan_version o
    where o.plan = v.plan and o.created_at < $2))
union
select v.plan_version_id, v.plan, v.version, v.spec, v.created_at, v.created_by
from quotad.plan_version v
where v.plan_version_id = any($3)
order by plan, version`

// Timelines returns the timeline of each query. It runs a few statements on q, which may be
// inside a transaction.
func (s *Store) Timelines(ctx context.Context, q Querier, queries []TimelineQuery) ([]*Timeline, error) {
	terms, err := readTerms(ctx, q, queries)
	if err != nil {
		return nil, fmt.Errorf("read timelines: %w", err)
	}
	var setIDs, versionIDs []int64
	plans := make(map[string]bool)
	since := queries[0].Since
	for i := range queries {
		if queries[i].Since.Before(since) {
			since = queries[i].Since
		}
		versionIDs = append(versionIDs, queries[i].VersionIDs...)
		for _, t := range terms[i] {
			plans[t.Plan], plans[t.NextPlan] = true, true
			setIDs = append(setIDs, t.OverrideSetID)
		}
	}
	versions, err := collect(ctx, q, scanPlanVersion, timelineVersionsSQL, slices.Sorted(maps.Keys(plans)), since, versionIDs)
	if err != nil {
		return nil, fmt.Errorf("read timelines: %w", err)
	}
	sets, err := s.OverrideSets(ctx, q, setIDs)
	if err != nil {
		return nil, err
	}
	shared := NewTimeline(nil, versions, sets)
	timelines := make([]*Timeline, len(queries))
	for i := range queries {
		if len(terms[i]) == 0 {
			return nil, fmt.Errorf("read timelines: tenant number %d has no terms", queries[i].TenantID)
		}
		timelines[i] = &Timeline{terms[i], shared.versions, shared.byID, shared.sets}
	}
	return timelines, nil
}

// readTerms returns the terms of each query, in order.
func readTerms(ctx context.Context, q Querier, queries []TimelineQuery) ([][]Terms, error) {
	n, tenantIDs, sinces := make([]int32, len(queries)), make([]int64, len(queries)), make([]time.Time, len(queries))
	for i := range queries {
		n[i], tenantIDs[i], sinces[i] = int32(i), queries[i].TenantID, queries[i].Since
	}
	rows, err := q.Query(ctx, timelineTermsSQL, n, tenantIDs, sinces)
	if err != nil {
		return nil, err
	}
	terms := make([][]Terms, len(queries))
	var (
		i          int32
		at         time.Time
		nextPlanAt *time.Time
		row        Terms
	)
	_, err = pgx.ForEachRow(rows, []any{&i, &at, &row.Plan, &row.NextPlan, &nextPlanAt, &row.OverrideSetID}, func() error {
		t := row
		t.AtMicros = at.UnixMicro()
		if nextPlanAt != nil {
			t.NextPlanAtMicros = nextPlanAt.UnixMicro()
		}
		terms[i] = append(terms[i], t)
		return nil
	})
	return terms, err
}
