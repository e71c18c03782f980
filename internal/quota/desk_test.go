package quota

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
)

// A desk decides for one tenant over a list of every entry there ever was: what the
// engine reads from the ledger is summed from the first one each time.
type desk struct {
	snapshot *catalog.Snapshot
	rules    *rules
	status   catalog.Status
	entries  []deskEntry
	levels   map[keptLevel]level
	terms    []catalog.Terms
	versions []catalog.PlanVersion
}

type deskEntry struct {
	atMicros int64
	meter    string
	subject  string
	units    int64
}

// keptLevel names a level as its table does.
type keptLevel struct {
	limit   string
	subject string
}

// newDesk returns a desk whose tenant has a plan of these limits. There are the meters
// calls, tokens with the pools a and b, and spare.
func newDesk(limits ...catalog.Limit) *desk {
	d := &desk{status: catalog.StatusActive, levels: make(map[keptLevel]level)}
	d.plan(&catalog.Plan{Name: "pro", Version: 1, VersionID: 1, Limits: limits})
	return d
}

// plan gives the tenant another plan, or version of it.
func (d *desk) plan(plan *catalog.Plan) {
	for i := range plan.Limits {
		l := &plan.Limits[i]
		if l.Since == 0 {
			l.Since = 1
		}
		if l.Scope == "" {
			l.Scope = catalog.ScopeTenant
		}
		if l.Mode == "" {
			l.Mode = catalog.ModeEnforce
		}
	}
	d.snapshot = catalog.NewSnapshot(1, []*catalog.Meter{
		{ID: 1, Name: "calls", Unit: "call"},
		{ID: 2, Name: "tokens", Unit: "token", Weights: map[string]catalog.Weight{"a": 100_000, "b": 4 * catalog.WeightOne}},
		{ID: 3, Name: "spare", Unit: "unit"},
	}, []*catalog.Plan{plan})
	d.rules = compilePlan(plan, &calendar.Calendar{})
	d.terms = append(d.terms, catalog.Terms{AtMicros: d.lastAt(), Plan: plan.Name})
	if !slices.ContainsFunc(d.versions, func(v catalog.PlanVersion) bool { return v.VersionID == plan.VersionID }) {
		d.versions = append(d.versions, catalog.PlanVersion{Plan: *plan, CreatedAt: time.UnixMicro(d.lastAt())})
	}
}

// lastAt is the instant of the newest entry; the tenant's time never falls behind it.
func (d *desk) lastAt() (atMicros int64) {
	if len(d.entries) > 0 {
		atMicros = d.entries[len(d.entries)-1].atMicros
	}
	return atMicros
}

// book fills a book for a request, at what the clock says.
func (d *desk) book(clockMicros int64, r *Request) *book {
	b := newBook(d.rules, d.snapshot)
	b.status, b.clockMicros, b.nowMicros = d.status, clockMicros, max(clockMicros, d.lastAt())
	for _, c := range r.Charges {
		b.rules.needs(c.Meter, r.Subject, func(key meterKey) {
			b.totals[key] = d.total(key)
		}, func(key limitKey) {
			if key.limit.Algorithm.KeepsLevel() {
				kept := d.levels[keptLevel{key.limit.Name, key.subject}]
				if err := kept.carry(catalog.NewTimeline(d.terms, d.versions, nil), key.limit.Name, b.inForce()); err != nil {
					panic(err)
				}
				b.levels[key] = &kept
				return
			}
			var before []int64
			for _, edge := range key.limit.rule.Edges(b.nowMicros) {
				before = append(before, d.sum(meterKey{c.Meter, key.subject}, edge.AtMicros))
			}
			b.before[key] = before
		})
	}
	return b
}

func (e deskEntry) counts(key meterKey) bool {
	return e.meter == key.meter && (key.subject == "" || e.subject == key.subject)
}

func (d *desk) total(key meterKey) *total {
	t := &total{}
	for _, e := range d.entries {
		if !e.counts(key) {
			continue
		}
		t.units += e.units
		t.calls++
		if e.units > 0 {
			t.lastAtMicros = e.atMicros
		}
	}
	return t
}

// sum is the units before an instant.
func (d *desk) sum(key meterKey, beforeMicros int64) (units int64) {
	for _, e := range d.entries {
		if e.counts(key) && e.atMicros < beforeMicros {
			units += e.units
		}
	}
	return units
}

// crossing is the instant of the first entry with which a total reached what w waits for.
func (d *desk) crossing(w *wait) int64 {
	key, target := meterKey{w.forecast.limit.Meter, w.subject}, w.crossing().Target
	var units int64
	for _, e := range d.entries {
		if e.counts(key) {
			units += e.units
		}
		if units >= target {
			return e.atMicros
		}
	}
	panic("asked for a total that was never reached")
}

// decide decides as the engine does, and enters what was allowed.
func (d *desk) decide(clockMicros int64, r Request) (Decision, error) {
	if r.Tenant == "" {
		r.Tenant = "acme"
	}
	b := d.book(clockMicros, &r)
	v, err := decide(b, &r, uuid.Nil)
	if err != nil {
		return Decision{}, err
	}
	if v.decision.Allowed && !r.DryRun {
		for _, c := range v.charges {
			d.entries = append(d.entries, deskEntry{b.nowMicros, c.meter.Name, r.Subject, c.cost})
		}
		for key, kept := range b.levels {
			if kept.changed {
				d.levels[keptLevel{key.limit.Name, key.subject}] = *kept
			}
		}
	}
	v.settleWaits(b, d.crossing)
	return v.decision, nil
}

// must decides or fails the test.
func (d *desk) must(t *testing.T, clockMicros int64, r Request) Decision {
	t.Helper()
	decision, err := d.decide(clockMicros, r)
	if err != nil {
		t.Fatalf("decide(%+v) ended in %v", r, err)
	}
	return decision
}

// wantUnchanged checks that a denied, refused or dry request left the book as it was.
func (d *desk) wantUnchanged(t *testing.T, clockMicros int64, r Request) {
	t.Helper()
	b, want := d.book(clockMicros, &r), d.book(clockMicros, &r)
	if v, err := decide(b, &r, uuid.Nil); err == nil && v.decision.Allowed && !r.DryRun {
		t.Fatalf("%+v was allowed", r)
	}
	for _, diff := range []string{
		cmp.Diff(want.totals, b.totals, cmp.AllowUnexported(total{}, meterKey{})),
		cmp.Diff(want.before, b.before, cmp.AllowUnexported(limitKey{}), cmp.Comparer(sameLimit)),
		cmp.Diff(want.levels, b.levels, cmp.AllowUnexported(level{}, limitKey{}), cmp.Comparer(sameLimit)),
	} {
		if diff != "" {
			t.Errorf("%+v changed the book (-before +after):\n%s", r, diff)
		}
	}
}

func sameLimit(a, b *limit) bool { return a == b }

// spending is a request of one charge.
func spending(meter string, cost int64) Request {
	return Request{Tenant: "acme", Charges: []Charge{{Meter: meter, Cost: cost}}}
}

// charging is a request of several.
func charging(charges ...Charge) Request { return Request{Tenant: "acme", Charges: charges} }

// by is the request of a subject.
func by(subject string, r Request) Request {
	r.Subject = subject
	return r
}

// dry is the request as a dry run.
func dry(r Request) Request {
	r.DryRun = true
	return r
}

func slidingLimit(name, meter string, units, windowMicros int64) catalog.Limit {
	return catalog.Limit{
		Name: name, Meter: meter, Algorithm: catalog.SlidingLog, Limit: units, Window: catalog.Window{DurationMicros: windowMicros},
	}
}

func bucketLimit(name, meter string, capacity int64, refill catalog.Rate) catalog.Limit {
	return catalog.Limit{Name: name, Meter: meter, Algorithm: catalog.TokenBucket, Capacity: capacity, Refill: refill}
}

func leakyLimit(name, meter string, queue int64, rate catalog.Rate) catalog.Limit {
	return catalog.Limit{Name: name, Meter: meter, Algorithm: catalog.LeakyBucket, Queue: queue, Rate: rate}
}

func unlimited(l catalog.Limit) catalog.Limit {
	l.Limit, l.Unlimited = 0, true
	return l
}

func inMode(mode catalog.Mode, l catalog.Limit) catalog.Limit {
	l.Mode = mode
	return l
}

func perSubject(l catalog.Limit) catalog.Limit {
	l.Scope = catalog.ScopeSubject
	return l
}

// noon is when decisions of these tests happen.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
