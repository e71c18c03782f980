package catalog

import (
	"math"
	"slices"
	"sort"
)

// Terms is what a tenant has from an instant of its own time on, until it is changed.
type Terms struct {
	AtMicros         int64
	Plan             string // until NextPlanAtMicros, if there is a next one
	NextPlan         string // "" for none
	NextPlanAtMicros int64
	OverrideSetID    int64 // 0 for none
}

// PlanAt is the plan in force at an instant.
func (t *Terms) PlanAt(atMicros int64) string {
	if t.NextPlan != "" && atMicros >= t.NextPlanAtMicros {
		return t.NextPlan
	}
	return t.Plan
}

// Steady reports whether these terms, with their set of overrides, were in force from one
// instant until another and did not change by themselves meanwhile.
func (t *Terms) Steady(set *OverrideSet, fromMicros, toMicros int64) bool {
	if t.AtMicros > fromMicros || t.NextPlan != "" && fromMicros < t.NextPlanAtMicros && t.NextPlanAtMicros <= toMicros {
		return false
	}
	return set.Active(fromMicros) == set.Active(toMicros) && len(set.bounds(fromMicros, toMicros)) == 0
}

// bounds returns the instants between two others at which an override begins or ends, in
// order.
func (s *OverrideSet) bounds(fromMicros, toMicros int64) (bounds []int64) {
	if s == nil {
		return nil
	}
	for i := range s.Overrides {
		for _, at := range []int64{s.Overrides[i].FromMicros, s.Overrides[i].UntilMicros} {
			if at > fromMicros && at < toMicros {
				bounds = append(bounds, at)
			}
		}
	}
	slices.Sort(bounds)
	return slices.Compact(bounds)
}

// InForce is what something was decided under: a version of a plan and a set of overrides,
// at an instant.
type InForce struct {
	AtMicros      int64
	VersionID     int64
	OverrideSetID int64 // 0 for none
}

// A Timeline is every change of what a tenant has since an instant. It is immutable.
type Timeline struct {
	terms    []Terms                   // in order; the first was in force at that instant
	versions map[string][]*PlanVersion // of the plans in terms, in order
	byID     map[int64]*PlanVersion    // these, and those that levels name
	sets     map[int64]*OverrideSet    // of terms
}

// NewTimeline makes a timeline of terms, in order, of the versions of their plans, in order,
// and of their sets of overrides.
func NewTimeline(terms []Terms, versions []PlanVersion, sets map[int64]*OverrideSet) *Timeline {
	t := &Timeline{
		terms: terms, versions: make(map[string][]*PlanVersion), byID: make(map[int64]*PlanVersion, len(versions)), sets: sets,
	}
	for i := range versions {
		v := &versions[i]
		t.versions[v.Name] = append(t.versions[v.Name], v)
		t.byID[v.VersionID] = v
	}
	return t
}

// A Piece is a stretch of time in which a tenant's limits did not change. It ends where the
// next one begins.
type Piece struct {
	FromMicros int64
	Plan       *Plan // without overrides
	Set        *OverrideSet
	Active     uint16
}

// Limit returns the limit of a name as it was in the piece; nil if there was none.
func (p *Piece) Limit(name string) *Limit {
	l := p.Plan.limit(name)
	if l == nil || p.Active == 0 {
		return l
	}
	over := p.Set.over(*l, p.Active)
	return &over
}

// At returns the terms that were in force at an instant.
func (t *Timeline) At(atMicros int64) Terms {
	later := sort.Search(len(t.terms), func(i int) bool { return t.terms[i].AtMicros > atMicros })
	return t.terms[max(0, later-1)] // the first also of an instant before: the clock fell back since
}

// Set returns a set of overrides of the terms; nil for none.
func (t *Timeline) Set(id int64) *OverrideSet { return t.sets[id] }

// Piece returns what something was decided under as a piece; ok is false if its plan
// version is not known.
func (t *Timeline) Piece(f InForce) (piece Piece, ok bool) {
	version := t.byID[f.VersionID]
	if version == nil {
		return Piece{}, false
	}
	set := t.sets[f.OverrideSetID]
	return Piece{f.AtMicros, &version.Plan, set, set.Active(f.AtMicros)}, true
}

// Steady reports whether a tenant's limits were the same at two instants and all the time
// between them.
func (t *Timeline) Steady(from, to InForce) bool {
	terms := t.At(to.AtMicros)
	return from.VersionID == to.VersionID && from.OverrideSetID == to.OverrideSetID &&
		terms.Steady(t.sets[to.OverrideSetID], from.AtMicros, to.AtMicros)
}

// Pieces cuts the time between two decisions where the tenant's limits changed. Which
// versions of a plan there were is what configuration says, but for what is known better:
// a change is dated before it is committed, and until then decisions go on under what was
// before. So no version counts that is older than the one of the first decision, or newer
// than that of the last.
func (t *Timeline) Pieces(from, to InForce) []Piece {
	var pieces []Piece
	for _, s := range t.stretches(from.AtMicros, to.AtMicros) {
		versions := t.versions[s.plan]
		if lowest := t.byID[from.VersionID]; s.fromMicros == from.AtMicros && lowest != nil && lowest.Name == s.plan {
			versions = slices.DeleteFunc(slices.Clone(versions), func(v *PlanVersion) bool { return v.Version < lowest.Version })
		}
		if highest := t.byID[to.VersionID]; s.untilMicros == to.AtMicros && highest != nil && highest.Name == s.plan {
			versions = slices.DeleteFunc(slices.Clone(versions), func(v *PlanVersion) bool { return v.Version > highest.Version })
		}
		pieces = append(pieces, s.pieces(versions, t.sets[s.overrideSetID])...)
	}
	return pieces
}

// A stretch is a span of time, not empty, in which a tenant had one plan and one set of
// overrides.
type stretch struct {
	fromMicros, untilMicros int64
	plan                    string
	overrideSetID           int64
}

// stretches cuts the time between two instants where the tenant got another plan or other
// overrides.
func (t *Timeline) stretches(fromMicros, untilMicros int64) (stretches []stretch) {
	add := func(from, until int64, plan string, overrideSetID int64) {
		if from, until = max(from, fromMicros), min(until, untilMicros); from < until {
			stretches = append(stretches, stretch{from, until, plan, overrideSetID})
		}
	}
	for i := range t.terms {
		terms := &t.terms[i]
		from, until := terms.AtMicros, int64(math.MaxInt64)
		if i == 0 {
			from = math.MinInt64
		}
		if i+1 < len(t.terms) {
			until = t.terms[i+1].AtMicros
		}
		if terms.NextPlan == "" {
			add(from, until, terms.Plan, terms.OverrideSetID)
			continue
		}
		add(from, min(until, terms.NextPlanAtMicros), terms.Plan, terms.OverrideSetID)
		add(max(from, terms.NextPlanAtMicros), until, terms.NextPlan, terms.OverrideSetID)
	}
	return stretches
}

// pieces cuts a stretch where a newer version of the plan was made and where an override
// begins or ends. The first of versions was there before the stretch.
func (s stretch) pieces(versions []*PlanVersion, set *OverrideSet) (pieces []Piece) {
	until := s.untilMicros
	for i := len(versions) - 1; i >= 0 && until > s.fromMicros; i-- {
		v := versions[i]
		from := max(s.fromMicros, v.CreatedAt.UnixMicro())
		if i == 0 {
			from = s.fromMicros
		}
		if from >= until {
			continue // a newer one is dated before it
		}
		starts := append([]int64{from}, set.bounds(from, until)...)
		for _, at := range slices.Backward(starts) {
			pieces = append(pieces, Piece{at, &v.Plan, set, set.Active(at)})
		}
		until = from
	}
	slices.Reverse(pieces)
	return pieces
}
