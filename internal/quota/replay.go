package quota

import (
	"context"
	"errors"
	"slices"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// versions finds the rules of plan versions and keeps them. It is not safe for
// concurrent use.
type versions struct {
	catalog *catalog.Store
	byID    map[int64]*rules // nil for one that does not exist
}

func newVersions(store *catalog.Store) versions {
	return versions{catalog: store, byID: make(map[int64]*rules)}
}

// rulesOf returns the rules of a plan version, without a calendar: levels follow none.
// It returns nil if there is no such version.
func (v *versions) rulesOf(ctx context.Context, db ledger.Querier, versionID int64) (*rules, error) {
	if r, known := v.byID[versionID]; known {
		return r, nil
	}
	plan, err := v.catalog.PlanVersion(ctx, db, versionID)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		v.byID[versionID] = nil
	case err != nil:
		return nil, err
	default:
		v.byID[versionID] = compilePlan(plan, &calendar.Calendar{})
	}
	return v.byID[versionID], nil
}

// replayEntries bounds how far back a level is followed. One that was never full since
// is then known to less than a unit.
const replayEntries = 1000

// A pastLevel is a level as entries leave it.
type pastLevel struct {
	level
	approximate bool // what it has used may be one unit less
}

// A posted is an entry as one of its meter's levels saw it.
type posted struct {
	limit *limit
	plan  string
	kind  ledger.Kind
	used  int64 // what the limit had used before, as the entry says
	held  int64 // what was set aside of it before
	at    int64 // µs
	units int64
}

// replay follows the level of the limit called name through the newest entries of its
// meter, at most replayEntries, which come newest first. It begins at the newest one
// that found the level full: what was before does not matter.
func (v *versions) replay(ctx context.Context, db ledger.Querier, entries []ledger.PastEntry, meter, name string) (pastLevel, error) {
	var kept pastLevel
	var since []posted
	full := false
	for i := range entries {
		p, err := v.posted(ctx, db, &entries[i], meter, name)
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
	if kept.approximate = !full && len(entries) == replayEntries && len(since) > 0; kept.approximate {
		p := &since[0]
		kept.level = level{
			State: p.limit.rule.Take(View{NowMicros: p.at}, p.used), algorithm: p.limit.Algorithm, plan: p.plan, since: p.limit.Since,
		}
	}
	for _, p := range since {
		kept.spend(p.limit, p.plan, p.kind, p.at, p.held, p.units)
	}
	return kept, nil
}

// posted returns what an entry that used units says of a limit; no limit where its plan
// version has none of that name that keeps a level.
func (v *versions) posted(ctx context.Context, db ledger.Querier, e *ledger.PastEntry, meter, name string) (posted, error) {
	r, err := v.rulesOf(ctx, db, e.PlanVersionID)
	if r == nil || err != nil || e.Units == 0 {
		return posted{}, err
	}
	limits := r.byMeter[meter]
	i := slices.IndexFunc(limits, func(l *limit) bool { return l.Name == name })
	if i < 0 || i >= len(e.LimitsUsed) || !limits[i].Algorithm.KeepsLevel() {
		return posted{}, nil
	}
	p := posted{
		limit: limits[i], plan: r.plan.Name, kind: e.Kind, used: e.LimitsUsed[i], at: e.At.UnixMicro(), units: e.Units,
	}
	if e.LimitsHeld != nil {
		p.held = e.LimitsHeld[i]
	}
	return p, nil
}
