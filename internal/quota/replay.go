package quota

import (
	"context"
	"errors"
	"slices"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// entryInForce is what an entry was decided under.
func entryInForce(e *ledger.Entry) catalog.InForce {
	return catalog.InForce{AtMicros: e.At.UnixMicro(), VersionID: e.PlanVersionID, OverrideSetID: e.OverrideSetID}
}

// versions finds the rules that were in force and keeps them. It is not safe for
// concurrent use.
type versions struct {
	catalog *catalog.Store
	plans   map[int64]*catalog.Plan        // nil for one that does not exist
	sets    map[int64]*catalog.OverrideSet // nil for one that does not exist
	rules   map[rulesKey]*rules

	timeline *catalog.Timeline // of the tenant that is looked at
}

func newVersions(store *catalog.Store) versions {
	return versions{
		catalog: store, plans: make(map[int64]*catalog.Plan), sets: map[int64]*catalog.OverrideSet{0: nil},
		rules: make(map[rulesKey]*rules),
	}
}

// follow loads everything that a tenant ever had.
func (v *versions) follow(ctx context.Context, db ledger.Querier, tenantID int64) error {
	v.timeline = nil
	timelines, err := v.catalog.Timelines(ctx, db, []catalog.TimelineQuery{{TenantID: tenantID}})
	if err != nil {
		return err
	}
	v.timeline = timelines[0]
	return nil
}

// planOf returns a plan version; nil if there is none.
func (v *versions) planOf(ctx context.Context, db ledger.Querier, versionID int64) (*catalog.Plan, error) {
	if plan, known := v.plans[versionID]; known {
		return plan, nil
	}
	plan, err := v.catalog.PlanVersion(ctx, db, versionID)
	if err != nil && !errors.Is(err, catalog.ErrNotFound) {
		return nil, err
	}
	v.plans[versionID] = plan
	return plan, nil
}

// setOf returns a set of overrides; nil if there is none.
func (v *versions) setOf(ctx context.Context, db ledger.Querier, id int64) (*catalog.OverrideSet, error) {
	if set, known := v.sets[id]; known {
		return set, nil
	}
	sets, err := v.catalog.OverrideSets(ctx, db, []int64{id})
	if err != nil {
		return nil, err
	}
	v.sets[id] = sets[id]
	return sets[id], nil
}

// rulesOf returns the rules that were in force, without a calendar: levels follow none.
// It returns nil if there is no such version or set.
func (v *versions) rulesOf(ctx context.Context, db ledger.Querier, f catalog.InForce) (*rules, error) {
	plan, err := v.planOf(ctx, db, f.VersionID)
	if plan == nil || err != nil {
		return nil, err
	}
	set, err := v.setOf(ctx, db, f.OverrideSetID)
	if err != nil || set == nil && f.OverrideSetID != 0 {
		return nil, err
	}
	key := rulesKey{versionID: f.VersionID, overrideSetID: f.OverrideSetID, active: set.Active(f.AtMicros)}
	if v.rules[key] == nil {
		v.rules[key] = compilePlan(plan.Under(set, f.AtMicros), &calendar.Calendar{})
	}
	return v.rules[key], nil
}

// replayEntries bounds how far back a level is followed. One that was never full since
// is then known to less than a unit.
const replayEntries = 1000

// A pastLevel is a level as entries leave it.
type pastLevel struct {
	level
	approximate bool // what it has used may be one unit less
	begunAnew   bool // it may have been removed since
}

// A posted is an entry as one of its meter's levels saw it.
type posted struct {
	limit   *limit
	plan    *catalog.Plan
	inForce catalog.InForce
	kind    ledger.Kind
	used    int64 // what the limit had used before, as the entry says; -1 where it does not
	held    int64 // what was set aside of it before
	units   int64
}

// replay follows the level of the limit called name through the newest entries of its
// meter, at most replayEntries, which come newest first, and carries it to what is in force
// in the end. It begins at the newest entry that found the level full: what was before does
// not matter.
func (v *versions) replay(
	ctx context.Context, db ledger.Querier, entries []ledger.PastEntry, of levelName, end catalog.InForce,
) (pastLevel, error) {
	var kept pastLevel
	var since []posted
	full := false
	for i := range entries {
		p, err := v.posted(ctx, db, &entries[i], of)
		if err != nil {
			return kept, err
		}
		if p.limit == nil {
			continue
		}
		since = append(since, p)
		if full = p.used == 0 && p.limit.admits(0, p.held, p.units); full {
			break
		}
	}
	slices.Reverse(since)
	whole := full || len(entries) < replayEntries
	since = since[max(0, slices.IndexFunc(since, func(p posted) bool { return whole || p.used >= 0 })):]
	if kept.approximate = !whole && len(since) > 0; kept.approximate {
		p := &since[0]
		kept.level = level{
			State:     p.limit.rule.Take(View{NowMicros: p.inForce.AtMicros}, p.used),
			versionID: p.plan.VersionID, overrideSetID: p.plan.OverrideSetID,
		}
	}
	for i := range since {
		p := &since[i]
		if err := kept.carry(v.timeline, of.limit, p.inForce); err != nil {
			return kept, err
		}
		kept.spend(p.limit, p.plan, p.kind, p.inForce.AtMicros, p.held, p.units)
	}
	kept.begunAnew = kept.mayBeGone(v.timeline, of.limit, end)
	return kept, kept.carry(v.timeline, of.limit, end)
}

// levelName names a level by its meter and limit.
type levelName struct{ meter, limit string }

// posted returns what an entry that used units says of a limit; no limit where its plan
// version has none of that name that keeps a level.
func (v *versions) posted(ctx context.Context, db ledger.Querier, e *ledger.PastEntry, of levelName) (posted, error) {
	inForce := catalog.InForce{AtMicros: e.At.UnixMicro(), VersionID: e.PlanVersionID, OverrideSetID: e.OverrideSetID}
	r, err := v.rulesOf(ctx, db, inForce)
	if r == nil || err != nil || e.Units == 0 {
		return posted{}, err
	}
	limits := r.byMeter[of.meter]
	i := slices.IndexFunc(limits, func(l *limit) bool { return l.Name == of.limit })
	if i < 0 || !limits[i].Algorithm.KeepsLevel() {
		return posted{}, nil
	}
	p := posted{limit: limits[i], plan: r.plan, inForce: inForce, kind: e.Kind, used: -1, units: e.Units}
	if i < len(e.LimitsUsed) {
		p.used = e.LimitsUsed[i]
	}
	if i < len(e.LimitsHeld) {
		p.held = e.LimitsHeld[i]
	}
	return p, nil
}
