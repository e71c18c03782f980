package quota

import (
	"math"
	"sort"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
)

// A Simulator tells what a plan would have decided on past traffic. It runs the
// service's own decide on a ledger in memory and the trace's clock. What it keeps of
// a tenant is as long as its limits look back. It is not safe for concurrent use.
type Simulator struct {
	snapshot *catalog.Snapshot
	plan     *catalog.Plan
	known    map[string]catalog.Tenant   // for their calendars and overrides
	rules    map[calendar.Setting]*rules // compiled once for each calendar
	ledgers  map[string]*memoryLedger    // by tenant
}

// NewSimulator returns a simulator in which every tenant has the plan, and no usage.
// A tenant named in tenants keeps its time zone, billing anchor and overrides; the others have
// UTC and the first.
func NewSimulator(snapshot *catalog.Snapshot, plan *catalog.Plan, tenants []catalog.Tenant) *Simulator {
	s := &Simulator{
		snapshot: snapshot,
		plan:     plan,
		known:    make(map[string]catalog.Tenant, len(tenants)),
		rules:    make(map[calendar.Setting]*rules),
		ledgers:  make(map[string]*memoryLedger),
	}
	for _, t := range tenants {
		s.known[t.Name] = t
	}
	return s
}

// Decide answers a request made at an instant, and takes it from the tenant's limits
// if it is allowed. A tenant's clock never runs backwards: an instant before one it
// was asked at counts as that one. Errors are those of [Request.Validate] and of the
// service, an [*Error] that changed nothing.
func (s *Simulator) Decide(atMicros int64, r *Request) (Decision, error) {
	if err := r.Validate(); err != nil {
		return Decision{}, err
	}
	m, err := s.ledger(r.Tenant)
	if err != nil {
		return Decision{}, err
	}
	m.book.nowMicros = max(m.book.nowMicros, atMicros)
	m.book.clockMicros = m.book.nowMicros
	if err := s.chooseRules(m); err != nil {
		return Decision{}, err
	}
	for _, c := range r.Charges {
		if err := m.read(c.Meter, r.Subject); err != nil {
			return Decision{}, err
		}
	}
	v, err := decide(m.book, r, uuid.Nil)
	if err != nil {
		return Decision{}, err
	}
	if v.decision.Allowed && !r.DryRun {
		for _, c := range v.charges {
			m.post(meterKey{meter: c.meter.Name})
			if r.Subject != "" {
				m.post(meterKey{meter: c.meter.Name, subject: r.Subject})
			}
		}
	}
	v.settleWaits(m.book, func(w *wait) int64 {
		return m.series[meterKey{w.forecast.limit.Meter, w.subject}].reached(w.crossing().Target)
	})
	v.decision.DecidedAt = time.UnixMicro(m.book.nowMicros).UTC()
	return v.decision, nil
}

func (s *Simulator) ledger(tenant string) (*memoryLedger, error) {
	if m := s.ledgers[tenant]; m != nil {
		return m, nil
	}
	t, known := s.known[tenant]
	if !known {
		t = catalog.Tenant{Name: tenant, Timezone: "UTC", BillingAnchor: 1}
	}
	key := calendar.Setting{Timezone: t.Timezone, BillingAnchor: t.BillingAnchor}
	if s.rules[key] == nil {
		cal, err := calendar.New(key, nil, time.LoadLocation)
		if err != nil {
			return nil, err
		}
		s.rules[key] = compilePlan(s.plan, cal)
	}
	m := &memoryLedger{book: newBook(s.rules[key], s.snapshot), series: make(map[meterKey]*series), setting: key}
	if len(t.Overrides) > 0 {
		m.override(s.plan, &catalog.OverrideSet{ID: int64(len(s.ledgers) + 1), Overrides: t.Overrides})
	}
	s.ledgers[tenant] = m
	return m, nil
}

// override has the tenant's overrides stand beside the plan.
func (m *memoryLedger) override(plan *catalog.Plan, set *catalog.OverrideSet) {
	m.set = set
	m.timeline = catalog.NewTimeline(
		[]catalog.Terms{{AtMicros: math.MinInt64, Plan: plan.Name, OverrideSetID: set.ID}},
		[]catalog.PlanVersion{{Plan: *plan}}, map[int64]*catalog.OverrideSet{set.ID: set},
	)
}

// chooseRules has the book follow the overrides that are active now: levels go on, and
// windows are read again.
func (s *Simulator) chooseRules(m *memoryLedger) error {
	if m.set == nil || m.book.rules.plan.OverrideSetID == m.set.ID && m.active == m.set.Active(m.book.nowMicros) {
		return nil
	}
	cal, err := calendar.New(m.setting, nil, time.LoadLocation)
	if err != nil {
		return err
	}
	m.active = m.set.Active(m.book.nowMicros)
	fresh := newBook(compilePlan(s.plan.Under(m.set, m.book.nowMicros), cal), s.snapshot)
	fresh.nowMicros, fresh.clockMicros, fresh.totals, fresh.holds = m.book.nowMicros, m.book.clockMicros, m.book.totals, m.book.holds
	for key, v := range m.book.levels {
		for _, l := range fresh.rules.byMeter[key.limit.Meter] {
			if l.Name == key.limit.Name {
				fresh.levels[limitKey{limit: l, subject: key.subject}] = v
			}
		}
	}
	m.book = fresh
	return nil
}

// A memoryLedger is one tenant's: the book that decisions read, and the entries that
// its windows may still look at.
type memoryLedger struct {
	book   *book
	series map[meterKey]*series // of those meters that windows count

	setting  calendar.Setting
	set      *catalog.OverrideSet // nil without overrides; timeline and active are theirs
	active   uint16
	timeline *catalog.Timeline
}

// read brings what a charge on the meter needs into the book.
func (m *memoryLedger) read(meter, subject string) (err error) {
	oldest := map[*series]int64{} // edge by series
	m.book.rules.needs(meter, subject, func(key meterKey) {
		t := m.book.totals[key]
		if t == nil {
			t = &total{}
			m.book.totals[key] = t
		}
	}, func(key limitKey) {
		if key.limit.Algorithm.KeepsLevel() {
			if m.book.levels[key] == nil {
				m.book.levels[key] = &level{}
			}
			if m.set != nil && err == nil {
				err = m.book.levels[key].carry(m.timeline, key.limit.Name, m.book.inForce())
			}
			return
		}
		entries := m.seriesOf(meterKey{meter: meter, subject: key.subject})
		before := m.book.before[key][:0]
		for _, edge := range key.limit.rule.Edges(m.book.nowMicros) {
			before = append(before, entries.before(edge.AtMicros))
			if at, seen := oldest[entries]; !seen || edge.AtMicros < at {
				oldest[entries] = edge.AtMicros
			}
		}
		m.book.before[key] = before
	})
	for entries, edge := range oldest {
		entries.forget(edge)
	}
	return err
}

func (m *memoryLedger) seriesOf(key meterKey) *series {
	if m.series[key] == nil {
		m.series[key] = &series{}
	}
	return m.series[key]
}

// post enters the meter's newest total, if a window counts it.
func (m *memoryLedger) post(key meterKey) {
	if entries := m.series[key]; entries != nil {
		entries.add(m.book.nowMicros, m.book.totals[key].units)
	}
}

// A series is the running total of a meter after each of its entries, oldest first;
// those of one instant are one. Edges only move forward, so what no edge will reach
// again is forgotten, all but the total it came to.
type series struct {
	entries   []runningTotal
	forgotten int64 // running total before the first entry
}

type runningTotal struct {
	atMicros int64
	units    int64 // this entry's own included
}

func (s *series) add(atMicros, units int64) {
	if last := len(s.entries) - 1; last >= 0 && s.entries[last].atMicros == atMicros {
		s.entries[last].units = units
		return
	}
	s.entries = append(s.entries, runningTotal{atMicros, units})
}

// before returns the running total just before an instant.
func (s *series) before(atMicros int64) int64 {
	if i := s.firstFrom(atMicros); i > 0 {
		return s.entries[i-1].units
	}
	return s.forgotten
}

// firstFrom returns the index of the first entry at or after an instant.
func (s *series) firstFrom(atMicros int64) int {
	return sort.Search(len(s.entries), func(i int) bool { return s.entries[i].atMicros >= atMicros })
}

// reached returns the instant of the first entry whose running total is at least
// units. The newest one's is.
func (s *series) reached(units int64) int64 {
	i := sort.Search(len(s.entries), func(i int) bool { return s.entries[i].units >= units })
	return s.entries[i].atMicros
}

// forget drops the entries before an instant. Once they are half of all, the rest
// moves to the front of the same array, so every entry moves about once.
func (s *series) forget(beforeMicros int64) {
	n := s.firstFrom(beforeMicros)
	if n == 0 || n < len(s.entries)/2 {
		return
	}
	s.forgotten = s.entries[n-1].units
	s.entries = s.entries[:copy(s.entries, s.entries[n:])]
}
