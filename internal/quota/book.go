package quota

import (
	"github.com/quotad/quotad/internal/catalog"
)

// book is what decisions about one tenant at one instant read and change: the rules
// in force, the running totals, the windows' edges and the levels. The engine fills
// one from the database under the account's lock, the simulator from memory; decide
// works on either.
type book struct {
	rules       *rules
	snapshot    *catalog.Snapshot
	status      catalog.Status
	nowMicros   int64 // the tenant's time: never runs backwards
	clockMicros int64 // the real clock, from which waits are told
	totals      map[meterKey]*total
	before      map[limitKey][]int64 // running total just before each edge of a windowed limit
	levels      map[limitKey]*level
}

// meterKey names a running total; subject "" is the whole tenant.
type meterKey struct {
	meter   string
	subject string
}

// limitKey names the count of one limit; subject "" for tenant scope.
type limitKey struct {
	limit   *limit
	subject string
}

// total is the newest running total of a meter.
type total struct {
	units        int64
	held         int64
	calls        int64
	lastAtMicros int64 // the newest entry that used units; 0 if none
	readUnits    int64 // units as read, before this batch's own entries
	changed      bool
}

// level is the kept state of a limit, and what was in force when it was written. In a book
// it is carried to what is in force there.
type level struct {
	State
	versionID     int64
	overrideSetID int64
	changed       bool
}

// spend takes cost units at an instant under l of plan, which the level is carried to, and
// reports whether it did. A shadow level that would have denied stays as it is, as if it had.
func (v *level) spend(l *limit, plan *catalog.Plan, nowMicros, held, cost int64) bool {
	view := View{NowMicros: nowMicros, State: v.State}
	if cost == 0 || l.Mode == catalog.ModeShadow && !l.admits(l.rule.Used(view), held, cost) {
		return false
	}
	*v = level{State: l.rule.Take(view, cost), versionID: plan.VersionID, overrideSetID: plan.OverrideSetID}
	return true
}

func newBook(r *rules, snapshot *catalog.Snapshot) *book {
	return &book{
		rules:    r,
		snapshot: snapshot,
		status:   catalog.StatusActive,
		totals:   make(map[meterKey]*total),
		before:   make(map[limitKey][]int64),
		levels:   make(map[limitKey]*level),
	}
}

// needs calls meter and limit for each total and each limit that a charge on the
// meter reads. Names may repeat.
func (r *rules) needs(meter, subject string, needMeter func(meterKey), needLimit func(limitKey)) {
	needMeter(meterKey{meter: meter})
	if subject != "" {
		needMeter(meterKey{meter: meter, subject: subject})
	}
	for _, l := range r.byMeter[meter] {
		if l.Scope == catalog.ScopeSubject && subject == "" {
			continue
		}
		needLimit(limitKey{limit: l, subject: l.subjectOf(subject)})
	}
}

// view is what l sees of its meter now.
func (b *book) view(l *limit, subject string) View {
	key := limitKey{limit: l, subject: l.subjectOf(subject)}
	t := b.totals[meterKey{meter: l.Meter, subject: key.subject}]
	v := View{NowMicros: b.nowMicros, Total: t.units, LastAtMicros: t.lastAtMicros}
	if l.Algorithm.KeepsLevel() {
		v.State = b.levels[key].State
	} else {
		v.Before = b.before[key]
	}
	return v
}

// held is what is set aside on the limit's meter.
func (b *book) held(l *limit, subject string) int64 {
	return b.totals[meterKey{meter: l.Meter, subject: l.subjectOf(subject)}].held
}

// take records that cost units of meter were consumed now: in the totals, and in the
// level of every limit that keeps one.
func (b *book) take(meter, subject string, cost int64) {
	for _, l := range b.rules.byMeter[meter] {
		if !l.Algorithm.KeepsLevel() {
			continue
		}
		kept := b.levels[limitKey{limit: l, subject: l.subjectOf(subject)}]
		if kept.spend(l, b.rules.plan, b.nowMicros, b.held(l, subject), cost) {
			kept.changed = true
		}
	}
	b.count(meterKey{meter: meter}, cost)
	if subject != "" {
		b.count(meterKey{meter: meter, subject: subject}, cost)
	}
}

func (b *book) count(key meterKey, cost int64) {
	t := b.totals[key]
	t.units += cost
	t.calls++
	t.changed = true
	if cost > 0 {
		t.lastAtMicros = b.nowMicros
	}
}
