package catalog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// One statement, so that versions, meters, plans and settings are of one database
// snapshot. Takes no lock. meter_catalog_version and plan_catalog_version find what is
// newer than $1; when nothing is, that is two rows and two empty index scans.
const snapshotSQL = `
select c.version, x.kind, x.name, x.id, x.number, x.body, x.removed
from quotad.catalog_version c
left join (
  select 'meter' as kind, m.meter as name, m.meter_id::bigint as id, 0 as number,
         jsonb_build_object('unit', m.unit, 'weights', m.weights, 'on_expiry', m.on_expiry) as body, m.removed
  from quotad.meter m
  where m.catalog_version > $1
  union all
  select 'plan', p.plan, v.plan_version_id, v.version, v.spec, p.removed
  from quotad.plan p
  join quotad.plan_version v on v.plan_version_id = p.plan_version_id
  where p.catalog_version > $1
  union all
  select 'settings', '', 0, 0,
         jsonb_build_object('default_plan', coalesce(s.default_plan, ''), 'default_plan_rate', s.default_plan_rate), false
  from quotad.setting s
  where s.catalog_version > $1
) x on true`

// Snapshot returns the configuration as the database has it now, reading only what
// is newer than known and sharing the rest with it; known itself when nothing is.
// known may be nil. It runs one statement on q, which may be inside a transaction.
func (s *Store) Snapshot(ctx context.Context, q Querier, known *Snapshot) (*Snapshot, error) {
	fresh, err := readSnapshot(ctx, q, known)
	if errors.Is(err, errVersionFell) {
		// The database was restored to an earlier state: nothing known can be trusted.
		fresh, err = readSnapshot(ctx, q, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	return fresh, nil
}

// Newest returns the configuration as Snapshot does, outside of any transaction.
func (s *Store) Newest(ctx context.Context, known *Snapshot) (*Snapshot, error) {
	return s.Snapshot(ctx, s.pool, known)
}

var errVersionFell = errors.New("the configuration's version fell")

func readSnapshot(ctx context.Context, q Querier, known *Snapshot) (*Snapshot, error) {
	since := int64(-1)
	fresh := &Snapshot{meters: map[string]*Meter{}, plans: map[string]*Plan{}}
	if known != nil {
		since = known.Version
	}
	rows, err := q.Query(ctx, snapshotSQL, since)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for first := true; rows.Next(); first = false {
		var row snapshotRow
		if err := rows.Scan(&fresh.Version, &row.kind, &row.name, &row.id, &row.number, &row.body, &row.removed); err != nil {
			return nil, err
		}
		switch {
		case fresh.Version < since:
			return nil, errVersionFell
		case fresh.Version == since:
			fresh = known
			continue // there are no more rows; reading on to the end keeps the connection usable
		case first && known != nil && row.kind == nil: // only tenants have changed
			fresh.meters, fresh.plans, fresh.settings = known.meters, known.plans, known.settings
		case first && known != nil:
			fresh.meters, fresh.plans, fresh.settings = maps.Clone(known.meters), maps.Clone(known.plans), known.settings
		}
		if err := row.into(fresh); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return fresh, nil
}

// A snapshotRow is one row of snapshotSQL; kind is nil when nothing is new.
type snapshotRow struct {
	kind    *string
	name    *string
	id      *int64
	number  *int32
	body    []byte
	removed *bool
}

func (r snapshotRow) into(s *Snapshot) error {
	switch {
	case r.kind == nil:
		return nil
	case *r.kind == "meter" && *r.removed:
		delete(s.meters, *r.name)
	case *r.kind == "meter":
		meter, err := decodeMeter(*r.name, int32(*r.id), r.body)
		if err != nil {
			return err
		}
		s.meters[*r.name] = meter
	case *r.kind == "settings":
		var spec SettingsSpec
		if err := json.Unmarshal(r.body, &spec); err != nil {
			return fmt.Errorf("stored settings: %w", err)
		}
		s.settings = spec.over(Settings{}, true)
	case *r.removed:
		delete(s.plans, *r.name)
	default:
		plan, err := decodeStored(*r.name, *r.number, *r.id, r.body)
		if err != nil {
			return err
		}
		s.plans[*r.name] = plan
	}
	return nil
}

// The primary key finds the row; no lock, rows never change.
const planVersionSQL = `
select plan_version_id, plan, version, spec
from quotad.plan_version
where plan_version_id = $1`

// Reads the whole table, for verify; no lock, rows never change.
const planVersionsSQL = `
select plan_version_id, plan, version, spec
from quotad.plan_version`

// PlanVersion returns one version of a plan, current or not, by its VersionID.
// It returns [ErrNotFound] if there is none.
func (s *Store) PlanVersion(ctx context.Context, q Querier, versionID int64) (*Plan, error) {
	plan, err := one(ctx, q, scanPlan, planVersionSQL, versionID)
	if err != nil {
		return nil, fmt.Errorf("read plan version %d: %w", versionID, err)
	}
	return plan, nil
}

// PlanVersions returns every version that any plan ever had, by VersionID.
func (s *Store) PlanVersions(ctx context.Context, q Querier) (map[int64]*Plan, error) {
	plans, err := collect(ctx, q, scanPlan, planVersionsSQL)
	if err != nil {
		return nil, fmt.Errorf("read plan versions: %w", err)
	}
	byID := make(map[int64]*Plan, len(plans))
	for _, p := range plans {
		byID[p.VersionID] = p
	}
	return byID, nil
}

// The primary key finds the rows; no lock, rows never change.
const overrideSetsSQL = `
select override_set_id, overrides
from quotad.override_set
where override_set_id = any($1)`

// OverrideSets returns sets of overrides by their ids. Those that there are not are left
// out.
func (s *Store) OverrideSets(ctx context.Context, q Querier, ids []int64) (map[int64]*OverrideSet, error) {
	sets, err := collect(ctx, q, scanOverrideSet, overrideSetsSQL, ids)
	if err != nil {
		return nil, fmt.Errorf("read override sets: %w", err)
	}
	byID := make(map[int64]*OverrideSet, len(sets))
	for _, set := range sets {
		byID[set.ID] = set
	}
	return byID, nil
}

func scanOverrideSet(row pgx.CollectableRow) (*OverrideSet, error) {
	var (
		id   int64
		text []byte
	)
	if err := row.Scan(&id, &text); err != nil {
		return nil, err
	}
	return decodeOverrides(id, text)
}

func scanPlan(row pgx.CollectableRow) (*Plan, error) {
	var (
		versionID int64
		name      string
		version   int32
		spec      []byte
	)
	if err := row.Scan(&versionID, &name, &version, &spec); err != nil {
		return nil, err
	}
	return decodeStored(name, version, versionID, spec)
}

// collect runs a query and scans each row.
func collect[T any](ctx context.Context, q Querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := q.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

// Meters returns the meters of the snapshot, sorted by name.
func (s *Snapshot) Meters() []*Meter {
	return slices.SortedFunc(maps.Values(s.meters), func(a, b *Meter) int { return strings.Compare(a.Name, b.Name) })
}

// Plans returns the current plans of the snapshot, sorted by name.
func (s *Snapshot) Plans() []*Plan {
	return slices.SortedFunc(maps.Values(s.plans), func(a, b *Plan) int { return strings.Compare(a.Name, b.Name) })
}
