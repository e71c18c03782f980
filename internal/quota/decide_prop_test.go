package quota

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
)

// drawDesk draws a plan of one to four limits of any algorithm, scope and mode, on one
// meter or two.
func drawDesk(t *rapid.T) *desk {
	d := newDesk()
	plan := drawPlan(t)
	for i := range plan.Limits {
		plan.Limits[i].Meter = rapid.SampledFrom([]string{"calls", "calls", "tokens"}).Draw(t, "meter")
	}
	d.plan(plan)
	return d
}

func drawRequest(t *rapid.T) Request {
	charge := rapid.Custom(func(t *rapid.T) Charge {
		c := Charge{Meter: rapid.SampledFrom([]string{"calls", "calls", "tokens"}).Draw(t, "meter")}
		if c.Meter == "tokens" && rapid.Bool().Draw(t, "pools") {
			c.Pools = map[string]int64{"a": rapid.Int64Range(0, 30).Draw(t, "a"), "b": rapid.Int64Range(0, 1).Draw(t, "b")}
			return c
		}
		c.Cost = rapid.Int64Range(0, 9).Draw(t, "cost")
		return c
	})
	return by(rapid.SampledFrom([]string{"ann", "ann", "bob"}).Draw(t, "subject"),
		charging(rapid.SliceOfN(charge, 1, 3).Draw(t, "charges")...))
}

// drawTick draws what the clock says next. It is set back now and then; the tenant's
// time then stands still.
func drawTick(t *rapid.T, clock int64) int64 {
	return max(0, clock+rapid.OneOf(
		rapid.Just(int64(0)), rapid.Just(int64(1)), rapid.Int64Range(0, 5*second), rapid.Int64Range(second/2, 2*second),
		rapid.Int64Range(-3*second, 0),
	).Draw(t, "pause"))
}

// What a decision says of the next one is what the next one finds, for any plan and any
// history. Nothing is written down of denials, so probes leave nothing behind.
func TestADecisionTellsWhatTheNextOneFinds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := drawDesk(t)
		clock := rapid.Int64Range(0, 60*years).Draw(t, "start")
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			clock = drawTick(t, clock)
			r := drawRequest(t)
			now := max(clock, d.lastAt())
			got, err := d.decide(clock, r)
			if err != nil {
				t.Fatalf("decide(%+v): %v", r, err)
			}
			checkWait(t, d, clock, r, got)
			checkRemainders(t, d, clock, r, got)
			checkTrailing(t, d)
			if got.Allowed != (got.Reason == "") || (got.Allowed && now != d.lastAt()) {
				t.Fatalf("%+v at %d", got, now)
			}
		}
	})
}

// checkWait checks that a denied request passes after its wait and not a millisecond
// earlier, and that only one that can ever pass has a wait.
func checkWait(t *rapid.T, d *desk, clock int64, r Request, got Decision) {
	probe := dry(r)
	if got.Allowed || got.RetryMS == nil {
		if got.RetryMS == nil && got.Reason == ReasonQuotaExceeded {
			t.Fatalf("%+v: denied for now without a wait", got)
		}
		if got.Allowed && got.RetryMS != nil {
			t.Fatalf("%+v: allowed with a wait", got)
		}
		if later, err := d.decide(clock+100*years, probe); !got.Allowed && (err != nil || later.Allowed) {
			t.Fatalf("%+v: no wait is told, and a hundred years later it is allowed: %+v, %v", got, later, err)
		}
		return
	}
	wait := *got.RetryMS
	if wait < 1 || got.Reason != ReasonQuotaExceeded {
		t.Fatalf("%+v: a wait of %d ms", got, wait)
	}
	if early, err := d.decide(clock+(wait-1)*1000, probe); wait > 1 && (err != nil || early.Allowed) {
		t.Fatalf("%+v: a millisecond before its wait of %d ms: %+v, %v", got, wait, early, err)
	}
	if later, err := d.decide(clock+wait*1000, probe); err != nil || !later.Allowed {
		t.Fatalf("%+v: after its wait of %d ms: %+v, %v", got, wait, later, err)
	}
}

// checkRemainders checks, for each limit and for the whole decision, that the
// remaining cost fits now and one more does not.
func checkRemainders(t *rapid.T, d *desk, clock int64, r Request, got Decision) {
	var tightest *int64
	for _, said := range got.Limits {
		if said.Unlimited {
			continue
		}
		for more := range int64(2) {
			found := probeLimit(t, d, clock, by(r.Subject, spending(said.Meter, said.Remaining+more)), said.Name)
			fits := !found.Violated && !found.WouldDeny
			blocked := d.limit(said.Name).blocked
			if fits != (more == 0 && !blocked) {
				t.Fatalf("%+v: of the remaining %d and %d more, fits = %t: %+v", said, said.Remaining, more, fits, found)
			}
		}
		if said.Mode == catalog.ModeEnforce && (tightest == nil || said.Remaining < *tightest) {
			tightest = &said.Remaining
		}
	}
	if diff := cmp.Diff(tightest, got.Remaining); diff != "" {
		t.Fatalf("%+v: remaining (-smallest of the enforcing limits +got):\n%s", got, diff)
	}
}

func probeLimit(t *rapid.T, d *desk, clock int64, r Request, name string) LimitResult {
	found, err := d.decide(clock, dry(r))
	if err != nil {
		t.Fatalf("decide(%+v): %v", r, err)
	}
	return found.Limits[slices.IndexFunc(found.Limits, func(l LimitResult) bool { return l.Name == name })]
}

func (d *desk) limit(name string) *limit {
	for _, limits := range d.rules.byMeter {
		for _, l := range limits {
			if l.Name == name {
				return l
			}
		}
	}
	return nil
}

// checkTrailing checks every window that ends with an entry: no sliding log that
// enforces ever let more through, whatever stood beside it.
func checkTrailing(t *rapid.T, d *desk) {
	for _, l := range d.rules.plan.Limits {
		if l.Algorithm != catalog.SlidingLog || l.Mode != catalog.ModeEnforce || l.Unlimited {
			continue
		}
		for _, last := range d.entries {
			key := meterKey{meter: l.Meter}
			if l.Scope == catalog.ScopeSubject {
				key.subject = last.subject
			}
			used := d.sum(key, last.atMicros+1) - d.sum(key, last.atMicros-l.Window.DurationMicros+1)
			if used > l.Limit {
				t.Fatalf("limit %s of %d: %d used in the window that ends at %d", l.Name, l.Limit, used, last.atMicros)
			}
		}
	}
}

// A denial, a dry run and an error change nothing: what was allowed is all there is.
func TestOnlyAllowedRequestsChangeTheBook(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		d := drawDesk(rt)
		clock := rapid.Int64Range(0, 60*years).Draw(rt, "start")
		for range rapid.IntRange(1, 15).Draw(rt, "steps") {
			clock = drawTick(rt, clock)
			r := drawRequest(rt)
			if probe, err := d.decide(clock, dry(r)); err != nil || !probe.Allowed {
				d.wantUnchanged(t, clock, r)
			}
			d.wantUnchanged(t, clock, dry(r))
			if _, err := d.decide(clock, r); err != nil {
				rt.Fatal(err)
			}
			if t.Failed() {
				rt.FailNow()
			}
		}
	})
}
