package quota

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
)

var words = []catalog.Calendar{
	catalog.CalendarHour, catalog.CalendarDay, catalog.CalendarWeek, catalog.CalendarMonth, catalog.CalendarYear,
}

// drawPlan draws a plan of a few small limits of any algorithm, scope and mode on one
// meter.
func drawPlan(t *rapid.T) *catalog.Plan {
	plan := &catalog.Plan{Name: "p", Version: 1, VersionID: 1}
	for i := range rapid.IntRange(1, 4).Draw(t, "limits") {
		units := rapid.Int64Range(0, 8).Draw(t, "units")
		rate := catalog.Rate{Units: rapid.Int64Range(1, 9).Draw(t, "rate"), PerMicros: drawSpan(t, "per")}
		l := catalog.Limit{
			Name: fmt.Sprint("l", i), Meter: "m", Since: 1,
			Algorithm: rapid.SampledFrom([]catalog.Algorithm{
				catalog.SlidingLog, catalog.SlidingCounter, catalog.FixedWindow,
				catalog.TokenBucket, catalog.GCRA, catalog.LeakyBucket,
			}).Draw(t, "algorithm"),
			Scope: rapid.SampledFrom([]catalog.Scope{catalog.ScopeTenant, catalog.ScopeTenant, catalog.ScopeSubject}).Draw(t, "scope"),
			Mode:  rapid.SampledFrom([]catalog.Mode{catalog.ModeEnforce, catalog.ModeEnforce, catalog.ModeShadow, catalog.ModeOff}).Draw(t, "mode"),
		}
		switch l.Algorithm {
		case catalog.TokenBucket:
			l.Capacity, l.Refill = units, rate
		case catalog.GCRA:
			l.Burst, l.Rate = units, rate
		case catalog.LeakyBucket:
			l.Queue, l.Rate = units, rate
		default:
			l.Limit, l.Window = units, catalog.Window{DurationMicros: drawSpan(t, "window")}
			if l.Algorithm == catalog.FixedWindow && rapid.Bool().Draw(t, "calendar") {
				l.Window = catalog.Window{Calendar: rapid.SampledFrom(words).Draw(t, "word")}
			}
			if l.Unlimited = rapid.IntRange(0, 9).Draw(t, "unlimited") == 0; l.Unlimited {
				l.Limit = 0
			}
		}
		plan.Limits = append(plan.Limits, l)
	}
	return plan
}

// drawSpan draws mostly spans that a few pauses fill.
func drawSpan(t *rapid.T, label string) int64 {
	return rapid.OneOf(
		rapid.Int64Range(second, 10*second), rapid.Int64Range(1000, 20*second), rapid.SampledFrom([]int64{second, 10 * second, minute}),
	).Draw(t, label)
}

func newTestSimulator(plan *catalog.Plan) *Simulator {
	meter := &catalog.Meter{ID: 1, Name: "m", Unit: "unit"}
	return NewSimulator(catalog.NewSnapshot(1, []*catalog.Meter{meter}, []*catalog.Plan{plan}), plan, nil)
}

func spend(subject string, cost int64) *Request {
	return &Request{Tenant: "acme", Subject: subject, Charges: []Charge{{Meter: "m", Cost: cost}}}
}

// Waiting exactly as long as a denial says makes the same request pass; a millisecond
// less does not. What a limit calls remaining fits, and one more does not.
func TestSimulatedWaitsAndRemaindersAreWhatTheNextCallExperiences(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newTestSimulator(drawPlan(t))
		now := rapid.Int64Range(0, 60*years).Draw(t, "start")
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 5*second), rapid.Int64Range(second/2, 2*second)).Draw(t, "pause")
			r := spend(rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "subject"), rapid.Int64Range(0, 9).Draw(t, "cost"))
			d := decideAt(t, s, now, r)
			checkRemaining(t, s, now, r, d)
			if d.Allowed || d.RetryMS == nil {
				continue
			}
			if *d.RetryMS < 1 {
				t.Fatalf("retry after %d ms", *d.RetryMS)
			}
			r.DryRun = true
			if *d.RetryMS > 1 && decideAt(t, s, now+(*d.RetryMS-1)*1000, r).Allowed {
				t.Fatalf("%+v: allowed a millisecond before its wait of %d ms", d, *d.RetryMS)
			}
			now += *d.RetryMS * 1000
			if again := decideAt(t, s, now, r); !again.Allowed {
				t.Fatalf("%+v: denied after its wait of %d ms: %+v", d, *d.RetryMS, again)
			}
		}
	})
}

func decideAt(t *rapid.T, s *Simulator, now int64, r *Request) Decision {
	d, err := s.Decide(now, r)
	if err != nil {
		t.Fatalf("Decide(%d, %+v): %v", now, r, err)
	}
	return d
}

func checkRemaining(t *rapid.T, s *Simulator, now int64, r *Request, d Decision) {
	if d.Remaining == nil {
		return
	}
	if *d.Remaining < 0 {
		t.Fatalf("remaining %d", *d.Remaining)
	}
	probe := spend(r.Subject, *d.Remaining)
	probe.DryRun = true
	blocked := slices.ContainsFunc(d.Limits, func(l LimitResult) bool {
		return l.Mode == catalog.ModeEnforce && l.Limit == 0 && !l.Unlimited
	})
	if got := decideAt(t, s, now, probe); got.Allowed == blocked {
		t.Fatalf("%+v: the remaining %d is allowed = %v: %+v", d, *d.Remaining, got.Allowed, got)
	}
	probe.Charges[0].Cost++
	if got := decideAt(t, s, now, probe); got.Allowed {
		t.Fatalf("%+v: one more than the remaining %d is allowed", d, *d.Remaining)
	}
}

// A denial, a dry run and an error change nothing: without them, every other decision
// is the same.
func TestSimulatedDenialsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		plan := drawPlan(t)
		all, allowedOnly := newTestSimulator(plan), newTestSimulator(plan)
		var now int64
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 5*second), rapid.Int64Range(second/2, 2*second)).Draw(t, "pause")
			r := spend(rapid.SampledFrom([]string{"ann", "bob"}).Draw(t, "subject"), rapid.Int64Range(0, 9).Draw(t, "cost"))
			r.DryRun = rapid.IntRange(0, 3).Draw(t, "dry run") == 0
			d := decideAt(t, all, now, r)
			if r.DryRun || !d.Allowed {
				continue
			}
			if diff := cmp.Diff(decideAt(t, allowedOnly, now, r), d); diff != "" {
				t.Fatalf("at %d: decision (-without denials +with):\n%s", now, diff)
			}
		}
	})
}

// What a tenant keeps is what its windows can still look at, however long the trace.
func TestSimulatorForgetsWhatNoWindowReaches(t *testing.T) {
	t.Parallel()
	plan := &catalog.Plan{Name: "p", Limits: []catalog.Limit{{
		Name: "l", Meter: "m", Algorithm: catalog.SlidingLog, Limit: 1000, Mode: catalog.ModeEnforce,
		Scope: catalog.ScopeTenant, Window: catalog.Window{DurationMicros: 100 * second},
	}}}
	s := newTestSimulator(plan)
	for i := range int64(10_000) {
		if d, err := s.Decide(i*second, spend("", 1)); err != nil || !d.Allowed || d.Limits[0].Used != min(i+1, 100) {
			t.Fatalf("call %d: %+v, %v", i, d, err)
		}
	}
	if kept := len(s.ledgers["acme"].series[meterKey{meter: "m"}].entries); kept > 250 {
		t.Errorf("%d entries kept, a window holds 100", kept)
	}
}
