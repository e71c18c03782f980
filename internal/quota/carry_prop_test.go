package quota

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
)

// A history is what a tenant had, in lists that the naive model looks through from the start
// for every instant.
type history struct {
	terms    []catalog.Terms
	versions []catalog.PlanVersion
	set      *catalog.OverrideSet
}

const historyMicros = 60_000_000

func drawHistory(t *rapid.T) history {
	var h history
	instants := func(n int, label string) []int64 {
		at := rapid.SliceOfN(rapid.Int64Range(0, historyMicros), n, n).Draw(t, label)
		slices.Sort(at)
		return at
	}
	for _, plan := range []string{"a", "b"} {
		for i, at := range instants(rapid.IntRange(1, 4).Draw(t, "versions"), "made at") {
			p := catalog.Plan{Name: plan, Version: int32(i + 1), VersionID: int64(len(h.versions) + 1)}
			if rapid.IntRange(0, 5).Draw(t, "has the limit") > 0 {
				l := bucketLimit("pool", "calls", rapid.Int64Range(0, 50).Draw(t, "capacity"), catalog.Rate{
					Units: rapid.Int64Range(0, 9).Draw(t, "units"), PerMicros: rapid.SampledFrom([]int64{700_000, 1_000_000, 3_333_333}).Draw(t, "per"),
				})
				l.Scope, l.Since = catalog.ScopeTenant, 1
				p.Limits = []catalog.Limit{l}
			}
			h.versions = append(h.versions, catalog.PlanVersion{Plan: p, CreatedAt: time.UnixMicro(at)})
		}
	}
	for _, at := range instants(rapid.IntRange(1, 4).Draw(t, "terms"), "changed at") {
		terms := catalog.Terms{AtMicros: at, Plan: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "plan")}
		if rapid.Bool().Draw(t, "switches") {
			terms.NextPlan, terms.NextPlanAtMicros = map[string]string{"a": "b", "b": "a"}[terms.Plan], rapid.Int64Range(0, historyMicros).Draw(t, "switches at")
		}
		if rapid.Bool().Draw(t, "overrides") {
			terms.OverrideSetID = 1
		}
		h.terms = append(h.terms, terms)
	}
	h.set = &catalog.OverrideSet{ID: 1, Overrides: drawOverrides(t, instants(4, "overridden at"))}
	return h
}

// drawOverrides draws what overrides the limit between pairs of instants.
func drawOverrides(t *rapid.T, at []int64) []catalog.Override {
	instant := func(micros int64) string { return time.UnixMicro(micros).UTC().Format(time.RFC3339Nano) }
	var specs []catalog.OverrideSpec
	for i := 0; i < len(at); i += 2 {
		if at[i] == 0 || at[i] == at[i+1] {
			continue
		}
		spec := catalog.OverrideSpec{Name: "pool", From: instant(at[i]), Until: instant(at[i+1]), Reason: "r"}
		if capacity := rapid.Int64Range(0, 60).Draw(t, "overridden capacity"); rapid.Bool().Draw(t, "overrides the capacity") {
			spec.Capacity = &capacity
		} else {
			spec.Refill = rapid.SampledFrom([]string{"0/1s", "5/1s", "7/3s"}).Draw(t, "overridden refill")
		}
		specs = append(specs, spec)
	}
	config := catalog.Config{
		Meters:  map[string]catalog.MeterSpec{"calls": {Unit: "call"}},
		Plans:   map[string]catalog.PlanSpec{"p": {Limits: []catalog.LimitSpec{bucketLimit("pool", "calls", 1, perSecond(1)).Spec()}}},
		Tenants: map[string]catalog.TenantSpec{"t": {Plan: "p", Overrides: specs}},
	}
	_, tenants, err := config.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return tenants[0].Overrides
}

// at is what is in force at an instant, by definition.
func (h history) at(micros int64) (version *catalog.PlanVersion, limit *catalog.Limit, overrideSetID int64) {
	terms := h.terms[0]
	for _, candidate := range h.terms {
		if candidate.AtMicros <= micros {
			terms = candidate
		}
	}
	name := terms.Plan
	if terms.NextPlan != "" && micros >= terms.NextPlanAtMicros {
		name = terms.NextPlan
	}
	for i := range h.versions {
		v := &h.versions[i]
		if v.Name == name && (version == nil || v.CreatedAt.UnixMicro() <= micros) {
			version = v
		}
	}
	plan := &version.Plan
	if terms.OverrideSetID != 0 {
		plan = plan.Under(h.set, micros)
	}
	if len(plan.Limits) > 0 {
		limit = &plan.Limits[0]
	}
	return version, limit, terms.OverrideSetID
}

// naive carries a level in fractions, from one instant at which anything may change to the
// next. A fraction that the new rate cannot express is rounded down where the rate changes.
func (h history) naive(s State, from, to int64) *big.Rat {
	cuts := []int64{from, to}
	for _, terms := range h.terms {
		cuts = append(cuts, terms.AtMicros, terms.NextPlanAtMicros)
	}
	for _, v := range h.versions {
		cuts = append(cuts, v.CreatedAt.UnixMicro())
	}
	for _, o := range h.set.Overrides {
		cuts = append(cuts, o.FromMicros, o.UntilMicros)
	}
	slices.Sort(cuts)
	level := new(big.Rat).Add(new(big.Rat).SetInt64(s.Units), big.NewRat(s.Remainder, s.Denominator))
	in := func(l *catalog.Limit) {
		_, per := lowestTerms(l.Refill)
		scaled := new(big.Rat).Mul(level, new(big.Rat).SetInt64(per))
		floor := new(big.Int).Div(scaled.Num(), scaled.Denom())
		level.SetFrac(floor, big.NewInt(per))
		if full := new(big.Rat).SetInt64(l.Capacity); level.Cmp(full) > 0 {
			level.Set(full)
		}
	}
	for i := range cuts[1:] {
		start, end := max(cuts[i], from), min(cuts[i+1], to)
		if start >= end {
			continue
		}
		_, l, _ := h.at(start)
		if l == nil {
			continue
		}
		in(l)
		if l.Refill.Units > 0 {
			gained := big.NewRat(l.Refill.Units, l.Refill.PerMicros)
			level.Add(level, gained.Mul(gained, new(big.Rat).SetInt64(end-start)))
		}
		in(l)
	}
	_, l, _ := h.at(to)
	in(l)
	return level
}

// A level that is carried through everything that a tenant had is what a step-by-step model
// in fractions says, and it makes no difference at how many instants it was looked at between.
func TestCarryingALevelEqualsANaiveModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := drawHistory(t)
		timeline := catalog.NewTimeline(h.terms, h.versions, map[int64]*catalog.OverrideSet{1: h.set})
		inForce := func(micros int64) (catalog.InForce, *catalog.Limit) {
			version, limit, set := h.at(micros)
			return catalog.InForce{AtMicros: micros, VersionID: version.VersionID, OverrideSetID: set}, limit
		}
		instants := rapid.SliceOfN(rapid.Int64Range(0, historyMicros), 2, 2).Draw(t, "from and to")
		slices.Sort(instants)
		from, before := inForce(instants[0])
		to, after := inForce(instants[1])
		if before == nil || after == nil {
			return // there is no level there
		}
		bucket := newTokenBucket(*before)
		written := bucket.level(View{NowMicros: from.AtMicros, State: State{
			Units: rapid.Int64Range(-20, 60).Draw(t, "units"), Remainder: rapid.Int64Range(0, bucket.refillMicros-1).Draw(t, "remainder"),
			Denominator: bucket.refillMicros, AtMicros: from.AtMicros,
		}})
		v := level{State: written, versionID: from.VersionID, overrideSetID: from.OverrideSetID}
		if err := v.carry(timeline, "pool", to); err != nil {
			t.Fatal(err)
		}
		got := newTokenBucket(*after).level(View{NowMicros: to.AtMicros, State: v.State})
		have := new(big.Rat).Add(new(big.Rat).SetInt64(got.Units), big.NewRat(got.Remainder, got.Denominator))
		if want := h.naive(written, from.AtMicros, to.AtMicros); have.Cmp(want) != 0 {
			t.Fatalf("%+v from %d to %d: carried to %s, want %s", written, from.AtMicros, to.AtMicros, have, want)
		}
	})
}
