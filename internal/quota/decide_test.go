package quota

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

func TestTheReasonIsTheOneFurthestFromPassing(t *testing.T) {
	t.Parallel()
	d := newDesk(
		slidingLimit("ten", "calls", 10, hours),
		slidingLimit("none", "tokens", 0, hours),
		slidingLimit("many", "tokens", 1000, hours),
	)
	d.entries = []deskEntry{{noon, "calls", "", 8}, {noon, "tokens", "", 999}}
	over, tooMuch := Charge{Meter: "calls", Cost: 3}, Charge{Meter: "calls", Cost: 11}
	blocked, notInPlan := Charge{Meter: "tokens", Cost: 1001}, Charge{Meter: "spare", Cost: 1}
	for _, c := range []struct {
		name    string
		status  catalog.Status
		charges []Charge
		want    Reason
	}{
		{"suspended", catalog.StatusSuspended, []Charge{over, blocked, notInPlan}, ReasonTenantSuspended},
		{"closed", catalog.StatusClosed, []Charge{{Meter: "calls", Cost: 1}}, ReasonTenantSuspended},
		{"not in the plan", catalog.StatusActive, []Charge{tooMuch, notInPlan, blocked}, ReasonMeterNotInPlan},
		{"blocked", catalog.StatusActive, []Charge{tooMuch, blocked}, ReasonBlocked},
		{"could never fit", catalog.StatusActive, []Charge{tooMuch}, ReasonCostExceedsLimit},
		{"used up", catalog.StatusActive, []Charge{over}, ReasonQuotaExceeded},
	} {
		d.status = c.status
		back := slices.Clone(c.charges)
		slices.Reverse(back)
		for _, r := range []Request{charging(c.charges...), charging(back...)} {
			got := d.must(t, noon, r)
			if got.Allowed || got.Reason != c.want {
				t.Errorf("%s: got %+v, want denied as %s", c.name, got, c.want)
			}
			if (got.RetryMS != nil) != (c.want == ReasonQuotaExceeded) {
				t.Errorf("%s: got a wait of %v; only what fits later has one", c.name, got.RetryMS)
			}
			d.wantUnchanged(t, noon, r)
		}
	}
}

// A denial that no limit has to do with blames none, whatever does not fit beside it, in
// shadow mode neither: who raises a limit would be denied all the same.
func TestLimitsAreBlamedOnlyForReasonsOfLimits(t *testing.T) {
	t.Parallel()
	d := newDesk(
		slidingLimit("ten", "calls", 10, hours), slidingLimit("none", "calls", 0, hours),
		inMode(catalog.ModeShadow, slidingLimit("shadow", "calls", 1, hours)), slidingLimit("fits", "tokens", 9, hours),
	)
	over, notInPlan, fits := Charge{Meter: "calls", Cost: 11}, Charge{Meter: "spare", Cost: 1}, Charge{Meter: "tokens", Cost: 1}
	for _, c := range []struct {
		status  catalog.Status
		charges []Charge
		want    Reason
		blamed  []string
	}{
		{catalog.StatusSuspended, []Charge{over, fits}, ReasonTenantSuspended, nil},
		{catalog.StatusClosed, []Charge{over, notInPlan}, ReasonTenantSuspended, nil},
		{catalog.StatusActive, []Charge{over, notInPlan, fits}, ReasonMeterNotInPlan, nil},
		{catalog.StatusActive, []Charge{over, fits}, ReasonBlocked, []string{"ten", "none", "shadow"}},
	} {
		d.status = c.status
		back := slices.Clone(c.charges)
		slices.Reverse(back)
		for _, r := range []Request{charging(c.charges...), dry(charging(c.charges...)), charging(back...)} {
			got := d.must(t, noon, r)
			var blamed []string
			for _, l := range got.Limits {
				if l.Violated || l.WouldDeny {
					blamed = append(blamed, l.Name)
				}
			}
			if diff := cmp.Diff(c.blamed, blamed); got.Allowed || got.Reason != c.want || diff != "" {
				t.Errorf("%s of %+v: got %+v, want denied as %s; blamed (-want +got):\n%s", c.status, r.Charges, got, c.want, diff)
			}
		}
	}
}

// Nothing of a limit that admits nothing ever comes back, even if it was lowered to 0 with
// something used: waiting for it is no use.
func TestABlockedLimitNeverResets(t *testing.T) {
	t.Parallel()
	for _, l := range []catalog.Limit{
		slidingLimit("l", "calls", 0, hours), bucketLimit("l", "calls", 0, perSecond(1)), leakyLimit("l", "calls", 5, perSecond(0)),
		inMode(catalog.ModeShadow, slidingLimit("l", "calls", 0, hours)),
	} {
		d := newDesk(l)
		for _, used := range []int64{0, 3} {
			d.entries = []deskEntry{{noon, "calls", "", used}}
			for _, cost := range []int64{0, 1} {
				if got := d.must(t, noon, dry(spending("calls", cost))).Limits[0]; !got.NeverResets || got.ResetMS != 0 || got.Remaining != 0 {
					t.Errorf("%s with %d used and a cost of %d: got %+v, want no reset", l.Algorithm, used, cost, got)
				}
			}
			r := dry(spending("calls", 0))
			if stand := d.book(noon, &r).stand("acme", "").decision; !stand.Limits[0].NeverResets {
				t.Errorf("%s with %d used stands as %+v, want no reset", l.Algorithm, used, stand.Limits[0])
			}
		}
	}
	d := newDesk(unlimited(slidingLimit("l", "calls", 0, hours)))
	if got := d.must(t, noon, spending("calls", 1)).Limits[0]; got.NeverResets || got.ResetMS != hours/1000 {
		t.Errorf("an unlimited limit: got %+v, want it reset in an hour", got)
	}
}

func TestAllChargesAreAdmittedOrNone(t *testing.T) {
	t.Parallel()
	d := newDesk(
		slidingLimit("ten", "calls", 10, hours), bucketLimit("pool", "tokens", 100, perSecond(1)),
		leakyLimit("turns", "tokens", 1000, perSecond(10)),
	)
	both := charging(Charge{Meter: "calls", Cost: 6}, Charge{Meter: "tokens", Cost: 60})
	if got := d.must(t, noon, both); !got.Allowed {
		t.Fatalf("got %+v, want allowed", got)
	}
	got := d.must(t, noon, both)
	violated := make(map[string]bool)
	for _, l := range got.Limits {
		violated[l.Name] = l.Violated
	}
	want := map[string]bool{"ten": true, "pool": true, "turns": false}
	if diff := cmp.Diff(want, violated); got.Allowed || diff != "" {
		t.Errorf("violated (-want +got):\n%s", diff)
	}
	d.wantUnchanged(t, noon, both)
	d.wantUnchanged(t, noon, charging(Charge{Meter: "calls", Cost: 1}, Charge{Meter: "tokens", Cost: 41}))
	if got := d.must(t, noon, charging(Charge{Meter: "calls", Cost: 4}, Charge{Meter: "tokens", Cost: 40})); !got.Allowed {
		t.Errorf("exactly what is left: got %+v, want allowed", got)
	}
	d.wantUnchanged(t, noon, dry(charging(Charge{Meter: "calls"}, Charge{Meter: "tokens"})))
}

func TestShadowNeverDeniesAndNeverHidesAnotherLimit(t *testing.T) {
	t.Parallel()
	d := newDesk(
		inMode(catalog.ModeShadow, slidingLimit("shadow", "calls", 3, hours)),
		slidingLimit("ten", "calls", 10, hours),
		inMode(catalog.ModeShadow, slidingLimit("shadow of none", "calls", 0, hours)),
		inMode(catalog.ModeShadow, bucketLimit("shadow pool", "calls", 4, perSecond(1))),
	)
	d.must(t, noon, spending("calls", 3))
	got := d.must(t, noon, spending("calls", 5))
	type line struct {
		used, remaining int64
		violated, would bool
	}
	lines := func(d Decision) (lines []line) {
		for _, l := range d.Limits {
			lines = append(lines, line{l.Used, l.Remaining, l.Violated, l.WouldDeny})
		}
		return lines
	}
	want := []line{{8, 0, false, true}, {8, 2, false, false}, {8, 0, false, true}, {3, 1, false, true}}
	if diff := cmp.Diff(want, lines(got), cmp.AllowUnexported(line{})); !got.Allowed || *got.Remaining != 2 || diff != "" {
		t.Errorf("got %+v, want allowed with 2 left; limits (-want +got):\n%s", got, diff)
	}
	got = d.must(t, noon, spending("calls", 3))
	want = []line{{8, 0, false, true}, {8, 2, true, false}, {8, 0, false, true}, {3, 1, false, true}}
	if diff := cmp.Diff(want, lines(got), cmp.AllowUnexported(line{})); got.Allowed || diff != "" {
		t.Errorf("got %+v, want denied by the enforcing limit; limits (-want +got):\n%s", got, diff)
	}
	if got.Reason != ReasonQuotaExceeded || *got.RetryMS != hours/1000 {
		t.Errorf("got reason %s and a wait of %d ms, want the enforcing limit's", got.Reason, *got.RetryMS)
	}
}

// A shadow bucket answers what it would if it enforced: what it would have denied, it
// did not lose.
func TestAShadowLevelKeepsWhatItWouldHaveDenied(t *testing.T) {
	t.Parallel()
	d := newDesk(inMode(catalog.ModeShadow, bucketLimit("pool", "calls", 10, perSecond(1))))
	for _, c := range []struct {
		cost, used int64
		would      bool
	}{{6, 6, false}, {5, 6, true}, {4, 10, false}, {1, 10, true}, {0, 10, false}} {
		got := d.must(t, noon, spending("calls", c.cost))
		if l := got.Limits[0]; !got.Allowed || got.Remaining != nil || l.Used != c.used || l.WouldDeny != c.would {
			t.Errorf("cost %d: got %+v, want used %d, would deny %t", c.cost, got, c.used, c.would)
		}
	}
}

func TestLimitsThatAreOffAreNotLookedAt(t *testing.T) {
	t.Parallel()
	off := inMode(catalog.ModeOff, perSubject(slidingLimit("off", "calls", 0, hours)))
	got := newDesk(off).must(t, noon, spending("calls", 5))
	if !got.Allowed || len(got.Limits) != 0 || got.Remaining != nil {
		t.Errorf("the plan's one limit on the meter is off: got %+v, want allowed without a limit", got)
	}
	got = newDesk(off, slidingLimit("ten", "calls", 10, hours)).must(t, noon, spending("calls", 5))
	if !got.Allowed || len(got.Limits) != 1 || *got.Remaining != 5 {
		t.Errorf("beside another: got %+v, want allowed with 5 left", got)
	}
}

func TestUnlimitedCountsAndNeverDenies(t *testing.T) {
	t.Parallel()
	d := newDesk(unlimited(slidingLimit("counted", "calls", 0, hours)))
	d.must(t, noon, spending("calls", catalog.UnitsMax-1))
	got := d.must(t, noon, spending("calls", 1))
	l := got.Limits[0]
	if !got.Allowed || got.Remaining != nil || l.Used != catalog.UnitsMax || l.Remaining != 0 || !l.Unlimited {
		t.Errorf("got %+v, want allowed, all counted, nothing said to remain", got)
	}
}

func TestCostZeroFitsWhereverTheLimitIsNotBlocked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		limit catalog.Limit
		want  Reason
	}{
		{"lowered below its usage", slidingLimit("l", "calls", 5, hours), ""},
		{"limit 0", slidingLimit("l", "calls", 0, hours), ReasonBlocked},
		{"capacity 0", bucketLimit("l", "calls", 0, perSecond(1)), ReasonBlocked},
		{"rate 0", leakyLimit("l", "calls", 5, perSecond(0)), ReasonBlocked},
		{"in shadow", inMode(catalog.ModeShadow, slidingLimit("l", "calls", 0, hours)), ""},
	} {
		d := newDesk(c.limit)
		d.entries = []deskEntry{{noon, "calls", "", 8}}
		if got := d.must(t, noon, spending("calls", 0)); got.Allowed != (c.want == "") || got.Reason != c.want {
			t.Errorf("%s: cost 0: got %+v, want reason %q", c.name, got, c.want)
		}
	}
	d := newDesk(slidingLimit("l", "calls", 5, hours))
	d.entries = []deskEntry{{noon, "calls", "", 8}}
	got := d.must(t, noon+minute, spending("calls", 1))
	if got.Allowed || *got.Remaining != 0 || *got.RetryMS != (hours-minute)/1000 {
		t.Errorf("cost 1 on a lowered limit: got %+v, want 0 remaining and a wait for the entry to leave", got)
	}
}

func TestChargesOnOneMeterAreSummedInTheOrderOfFirstMention(t *testing.T) {
	t.Parallel()
	d := newDesk(slidingLimit("ten", "calls", 10, hours), slidingLimit("many", "tokens", 100, hours))
	// Weights are rounded up once for each charge: 1.1 and 1.1 tokens are 2 and 2.
	r := charging(
		Charge{Meter: "tokens", Pools: map[string]int64{"a": 11}}, Charge{Meter: "calls", Cost: 6},
		Charge{Meter: "tokens", Pools: map[string]int64{"a": 11}}, Charge{Meter: "calls", Cost: 4},
	)
	got := d.must(t, noon, r)
	want := []ChargeResult{{Meter: "tokens", Cost: 4}, {Meter: "calls", Cost: 10}}
	if diff := cmp.Diff(want, got.Charges); !got.Allowed || diff != "" {
		t.Errorf("got %+v; charges (-want +got):\n%s", got, diff)
	}
	d.entries = nil
	r.Charges[3].Cost = 5
	if got := d.must(t, noon, r); got.Allowed || got.Reason != ReasonCostExceedsLimit {
		t.Errorf("6 and 5 on a limit of 10: got %+v, want denied", got)
	}
}

func TestWhatCannotBeDecidedNamesItsField(t *testing.T) {
	t.Parallel()
	const most = catalog.UnitsMax
	d := newDesk(
		unlimited(slidingLimit("counted", "calls", 0, hours)),
		perSubject(slidingLimit("each", "tokens", 10, hours)),
	)
	d.entries = []deskEntry{{noon, "calls", "ann", most - 1}}
	for _, c := range []struct {
		name  string
		r     Request
		code  Code
		field string
		says  string
	}{
		{"an unknown meter", charging(Charge{Meter: "calls"}, Charge{Meter: "nothing", Path: "charges[1]"}), CodeMeterNotFound, "charges[1].meter", "configured"},
		{
			"an unknown pool", by("ann", charging(Charge{Meter: "tokens", Pools: map[string]int64{"c": 1}})),
			CodeInvalidRequest, "pools.c", "tokens",
		},
		{"no subject", spending("tokens", 1), CodeInvalidRequest, "subject", `limit "each" on meter "tokens"`},
		{
			"a sum too large", charging(Charge{Meter: "spare", Cost: most}, Charge{Meter: "spare", Cost: 1, Path: "charges[1]"}),
			CodeInvalidRequest, "charges[1].cost", "sum",
		},
		{"a running total too large", spending("calls", 2), CodeAmountOverflow, "cost", "running total"},
	} {
		_, err := d.decide(noon, c.r)
		got := wantCode(t, err, c.code)
		if len(got.Faults) != 1 || got.Faults[0].Field != c.field || !strings.Contains(got.Faults[0].Rule, c.says) {
			t.Errorf("%s: got %+v, want the field %s and %q", c.name, got.Faults, c.field, c.says)
		}
		d.wantUnchanged(t, noon, c.r)
	}
	if got := d.must(t, noon, spending("calls", 1)); !got.Allowed {
		t.Errorf("exactly up to the largest total: got %+v, want allowed", got)
	}
}

func TestLimitsPerSubjectCountTheirSubjectAlone(t *testing.T) {
	t.Parallel()
	d := newDesk(
		perSubject(slidingLimit("each", "calls", 3, hours)), slidingLimit("all", "calls", 5, hours),
		perSubject(bucketLimit("pool", "calls", 3, perSecond(1))),
	)
	for _, c := range []struct {
		subject    string
		cost       int64
		allowed    bool
		each, pool int64
	}{{"ann", 3, true, 3, 3}, {"ann", 1, false, 3, 3}, {"bob", 2, true, 2, 2}, {"cid", 1, false, 0, 0}} {
		got := d.must(t, noon, by(c.subject, spending("calls", c.cost)))
		if got.Allowed != c.allowed || got.Limits[0].Used != c.each || got.Limits[2].Used != c.pool {
			t.Errorf("%s spends %d: got %+v, want allowed %t", c.subject, c.cost, got, c.allowed)
		}
	}
	if got := d.must(t, noon, by("cid", dry(spending("calls", 0)))); got.Limits[1].Used != 5 {
		t.Errorf("the tenant's own limit: got %+v, want 5 used", got.Limits[1])
	}
}
