package quota

import (
	"fmt"
	"iter"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
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
	beganMicros int64 // when what is in force now began, if a hold ended before now; else 0
	totals      map[meterKey]*total
	before      map[limitKey][]int64 // as [View.Before], of a windowed limit
	levels      map[limitKey]*level
	holds       []*hold // the open ones
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
	meterID      int32
	units        int64 // without what was given back
	returned     int64 // what was given back
	held         int64
	calls        int64
	lastAtMicros int64      // the newest entry that used units; 0 if none
	stored       bool       // there is a row of it
	sealed       []byte     // what the row says of levels, until they are opened
	kept         keptLevels // as the row has them; those that change, in the end
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

// spend takes what an entry of a kind used at an instant under l of plan, which the level
// is carried to, and reports whether it did. A shadow level that would have denied stays as
// it is, as if it had. What is recorded and was not decided cannot be denied; a leaky
// bucket, which hands out departures, has nothing to do with it.
func (v *level) spend(l *limit, plan *catalog.Plan, kind ledger.Kind, nowMicros, held, units int64) bool {
	decided := kind == ledger.KindConsume
	if units == 0 || !decided && l.Algorithm == catalog.LeakyBucket {
		return false
	}
	view := View{NowMicros: nowMicros, State: v.State}
	if decided && l.Mode == catalog.ModeShadow && !l.admits(l.rule.Used(view), held, units) {
		return false
	}
	*v = level{State: l.rule.Take(view, units), versionID: plan.VersionID, overrideSetID: plan.OverrideSetID}
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

// openLevels gives each limit that counts by one of the totals its level.
func (b *book) openLevels() error {
	for key, t := range b.totals {
		if t.sealed != nil {
			kept, err := decodeLevels(t.sealed)
			if err != nil {
				return fmt.Errorf("meter %q: %w", key.meter, err)
			}
			t.kept, t.sealed = kept, nil
		}
		for limit := range b.rules.levelsOf(key) {
			if b.levels[limit] == nil {
				v := t.kept.of(limit.limit.Name)
				b.levels[limit] = &v
			}
		}
	}
	return nil
}

// keepLevels returns the levels as the row of a total has them from now on.
func (b *book) keepLevels(key meterKey) []byte {
	t := b.totals[key]
	for limit := range b.rules.levelsOf(key) {
		if v := b.levels[limit]; v != nil && v.changed {
			t.kept.put(limit.limit.Name, *v)
		}
	}
	return t.kept.encode()
}

// levelsOf goes through the limits whose levels stand in the row of a total.
func (r *rules) levelsOf(key meterKey) iter.Seq[limitKey] {
	return func(yield func(limitKey) bool) {
		for _, l := range r.byMeter[key.meter] {
			bySubject := l.Scope == catalog.ScopeSubject
			if l.Algorithm.KeepsLevel() && bySubject == (key.subject != "") && !yield(limitKey{l, key.subject}) {
				return
			}
		}
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
		if !l.counts(subject) || l.Algorithm == catalog.Concurrency {
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
	switch {
	case l.Algorithm == catalog.Concurrency:
		v.OpenHolds = b.openHolds(l, subject)
	case l.Algorithm.KeepsLevel():
		v.State = b.levels[key].State
	default:
		v.Before = b.before[key]
	}
	return v
}

// held is what is set aside of the limit. To one of concurrency an open hold is one that
// is used.
func (b *book) held(l *limit, subject string) int64 {
	if !l.Algorithm.CountsHolds() || l.Algorithm == catalog.Concurrency {
		return 0
	}
	return b.totals[meterKey{meter: l.Meter, subject: l.subjectOf(subject)}].held
}

// room is how many units the running total of a meter can still take.
func (b *book) room(meter string) int64 {
	return catalog.UnitsMax - b.totals[meterKey{meter: meter}].units
}

// standing is what each limit on a meter has used, and what is held of it; held is nil
// where nothing is. A limit that counts per subject has nothing of a request without one.
func (b *book) standing(meter, subject string) (used, held []int64) {
	limits := b.rules.byMeter[meter]
	used = make([]int64, len(limits))
	for i, l := range limits {
		if !l.counts(subject) {
			continue
		}
		used[i] = l.rule.Used(b.view(l, subject))
		if units := b.held(l, subject); units != 0 {
			if held == nil {
				held = make([]int64, len(limits))
			}
			held[i] = units
		}
	}
	return used, held
}

// A line is what will be one entry: a change of one meter.
type line struct {
	kind            ledger.Kind
	meter           string
	meterID         int32
	subject         string
	units           int64
	held            int64
	refSeq          int64 // the entry it answers; 0 for none
	atMicros        int64 // now, but for an expiry that nobody has noticed yet
	effectiveMicros int64

	// What enter finds and makes.
	limitsUsed, limitsHeld []int64 // before it
	total, subjectTotal    int64   // behind it
}

// enter makes a change: in the totals, in the level of every limit that keeps one, and,
// where it counts from before now, in the windows. What limits had used is told of now
// alone: an expiry, which nobody decided, does not say it.
func (b *book) enter(e *line) {
	if e.limitsUsed == nil && e.kind != ledger.KindExpire {
		e.limitsUsed, e.limitsHeld = b.standing(e.meter, e.subject)
	}
	for _, l := range b.rules.byMeter[e.meter] {
		if !l.counts(e.subject) || l.Algorithm == catalog.Concurrency {
			continue
		}
		key := limitKey{limit: l, subject: l.subjectOf(e.subject)}
		if !l.Algorithm.KeepsLevel() {
			b.shift(key, e)
			continue
		}
		kept := b.levels[key]
		if kept.spend(l, b.rules.plan, e.kind, e.atMicros, b.held(l, e.subject), e.units) {
			kept.changed = true
		}
	}
	e.total = b.count(meterKey{meter: e.meter}, e)
	if e.subject != "" {
		e.subjectTotal = b.count(meterKey{meter: e.meter, subject: e.subject}, e)
	}
}

// shift lets units that are given back count from the instant they were used, and those of
// an expiry from its end.
func (b *book) shift(key limitKey, e *line) {
	if e.units >= 0 && e.atMicros == b.nowMicros {
		return
	}
	before := b.before[key]
	for i, edge := range key.limit.rule.Edges(b.nowMicros) {
		if given := e.units < 0; given && edge.AtMicros <= e.effectiveMicros || !given && edge.AtMicros > e.atMicros {
			before[i] += max(e.units, -e.units)
		}
	}
}

// count adds e to a total and returns its units.
func (b *book) count(key meterKey, e *line) int64 {
	t := b.totals[key]
	if e.units > 0 {
		t.lastAtMicros = e.atMicros
	}
	t.units += max(0, e.units)
	t.returned += max(0, -e.units)
	t.held += e.held
	if e.kind.Uses() {
		t.calls++
	}
	t.changed = true
	return t.units
}

// enterAll enters the lines of an allowed request and tells how its limits then stand.
func (b *book) enterAll(v *verdict, r *Request) {
	if v.decision.Allowed && !r.DryRun {
		for i := range v.lines {
			b.enter(&v.lines[i])
		}
	}
}
