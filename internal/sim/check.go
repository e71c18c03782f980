package sim

import (
	"fmt"
	"math/big"

	"github.com/google/uuid"
)

// findingsPerTenantMax bounds what is said of one tenant: one fault can have thousands
// of consequences.
const findingsPerTenantMax = 20

// findings collects lines, so many per tenant.
type findings struct {
	lines []string
	of    map[string]int
}

func newFindings() *findings { return &findings{of: make(map[string]int)} }

func (f *findings) add(tenant, format string, args ...any) {
	f.of[tenant]++
	switch n := f.of[tenant]; {
	case n <= findingsPerTenantMax:
		f.lines = append(f.lines, fmt.Sprintf("tenant %q: ", tenant)+fmt.Sprintf(format, args...))
	case n == findingsPerTenantMax+1:
		f.lines = append(f.lines, fmt.Sprintf("tenant %q: and more", tenant))
	}
}

// A walk goes through the entries of one tenant from the first to the last and knows
// what every limit had used at each of them.
type walk struct {
	*tenant
	ledger   *Ledger
	findings *findings
	series   map[counterKey]*series
	counters map[counterKey]counter // what they should be
	levels   map[levelKey]*level
	planSeen map[string]int32 // the newest version that an entry named
	holds    holds
	returned map[int64]int64 // units given back of an entry
}

// A request is the entries that one request made.
type request struct {
	first, last int // index of its first and last entry
	charged     map[string]int64
	delayMS     int64
}

// Check recomputes the ledger from its entries and returns what does not follow, or
// breaks a limit. It also finds what CheckCalls needs.
func (l *Ledger) Check() []string {
	l.over = 0
	f := newFindings()
	for _, t := range l.tenants {
		l.walk(t, f)
		t.checkAnswers(f)
	}
	return f.lines
}

// walk checks one tenant and returns what it ended with.
func (l *Ledger) walk(t *tenant, f *findings) *walk {
	w := &walk{
		tenant: t, ledger: l, findings: f,
		series: make(map[counterKey]*series), counters: make(map[counterKey]counter),
		levels: make(map[levelKey]*level), planSeen: make(map[string]int32),
		holds: newHolds(), returned: make(map[int64]int64),
	}
	t.requests = make(map[uuid.UUID]*request)
	for i := range t.entries {
		e := &t.entries[i]
		w.order(i, e)
		w.belongs(i, e)
		w.limits(i, e)
		w.count(i, e)
		w.follows(i, e)
	}
	w.account()
	w.compareCounters()
	w.compareLevels()
	return w
}

func (w *walk) add(format string, args ...any) { w.findings.add(w.name, format, args...) }

// order checks an entry's number and instant.
func (w *walk) order(i int, e *entry) {
	var before entry
	if i > 0 {
		before = w.entries[i-1]
	}
	if e.seq != before.seq+1 {
		w.add("entry %d stands where entry %d should", e.seq, before.seq+1)
	}
	if i > 0 && e.at < before.at {
		w.add("entry %d is older than the entry before it", e.seq)
	}
	if h := w.holds.overdue(e.at); h != nil && e.kind.decided() {
		w.add("entry %d was decided, and the hold of entry %d was over and stood open", e.seq, h.charges[0].entry.seq)
	}
}

// belongs adds an entry to its request: its entries stand together, were written
// together, and are on different meters.
func (w *walk) belongs(i int, e *entry) {
	if e.subject != 0 {
		if _, known := w.subjects[e.subject]; !known {
			w.add("entry %d names subject %d, which does not exist", e.seq, e.subject)
		}
	}
	r := w.requests[e.requestID]
	if r == nil {
		w.requests[e.requestID] = &request{i, i, map[string]int64{e.meter: w.charge(e)}, 0}
		return
	}
	before := &w.entries[r.last]
	if r.last != i-1 || before.batchID != e.batchID || before.at != e.at || before.subject != e.subject ||
		before.version != e.version || before.tag != e.tag {
		w.add("entry %d is of request %s and was not written with its entry %d", e.seq, e.requestID, before.seq)
	}
	if _, twice := r.charged[e.meter]; twice {
		w.add("entry %d charges meter %s for request %s again", e.seq, e.meter, e.requestID)
	}
	r.last = i
	r.charged[e.meter] += w.charge(e)
}

// charge is what an answer says that an entry came to.
func (w *walk) charge(e *entry) int64 {
	if e.kind == KindHold {
		return e.held
	}
	if c := w.holds.bySeq[e.refSeq]; c != nil && e.kind == KindSettle && c.end == kindExpire {
		return e.units + c.charged // the expiry's part is in the ledger already
	}
	return e.units
}

// limits checks that an entry kept every limit of the version that it names, and what
// it says that they had used.
func (w *walk) limits(i int, e *entry) {
	v := w.ledger.versions[e.version]
	if v == nil {
		w.add("entry %d names plan version %d, which does not exist", e.seq, e.version)
		return
	}
	if e.overrideSet != 0 {
		w.add("entry %d was decided under overrides, which are not known here", e.seq)
	}
	if v.number < w.planSeen[v.plan] {
		w.add("entry %d goes back to version %d of plan %s", e.seq, v.number, v.plan)
	}
	w.planSeen[v.plan] = v.number
	limits, named := v.on(e.meter)
	if !named {
		w.add("entry %d is on meter %s, which version %d of plan %s does not name", e.seq, e.meter, v.number, v.plan)
	}
	if e.kind == kindExpire {
		if len(e.limitsUsed) != 0 {
			w.add("entry %d is an expiry and says what limits had used", e.seq)
		}
	} else if len(e.limitsUsed) != len(limits) {
		w.add("entry %d says what %d limits had used; there are %d", e.seq, len(e.limitsUsed), len(limits))
	}
	for n, l := range limits {
		if !l.counts(e.subject) {
			if l.asked(e.kind) {
				w.add("entry %d has no subject, and limit %s counts per subject", e.seq, l.Name)
			}
			continue
		}
		w.limit(v, l, n, moment{e.at, i}, e)
	}
}

// limit checks what an entry says of the n-th limit, and takes it from the limit's level.
func (w *walk) limit(v *version, l *limit, n int, m moment, e *entry) {
	before, loose := w.usage(v, l, m, e.subject)
	if n < len(e.limitsUsed) && !near(before.used, e.limitsUsed[n], loose) {
		w.add("entry %d says that limit %s had used %d; it had used %s", e.seq, l.Name, e.limitsUsed[n], before.used)
	}
	aside := w.heldOf(l, e.subject, m)
	said := int64(0)
	if n < len(e.limitsHeld) {
		said = e.limitsHeld[n]
	}
	if said != aside && e.kind != kindExpire {
		w.add("entry %d says that %d were held of limit %s; it were %d", e.seq, said, l.Name, aside)
	}
	cost, fits := e.units, true
	if e.kind == KindHold {
		cost = e.held
	}
	if l.asked(e.kind) {
		fits = l.admits(before, aside, cost)
	}
	if l.Mode == "enforce" && !fits {
		w.ledger.over++
		w.add("entry %d takes %d of limit %s (%s), which had used %s of %s and %d held", e.seq, cost, l.Name, l.Algorithm,
			before.used, l.size, aside)
	}
	if l.keepsLevel() && !l.blocks() && (fits || l.Mode == "enforce") && (e.kind == KindConsume || l.Algorithm != "leaky_bucket") {
		w.take(v, l, m, e)
	}
}

// admits reports whether a cost fits a limit beside what is used and set aside.
func (l *limit) admits(before usage, aside, cost int64) bool {
	switch {
	case l.Unlimited:
		return true
	case l.blocks():
		return false
	case l.countsPlaces():
		return before.fits(big.NewInt(1))
	case cost == 0:
		return true
	}
	return before.fits(big.NewInt(aside + cost))
}

// heldOf is what is set aside of a limit at a moment.
func (w *walk) heldOf(l *limit, subject int64, m moment) int64 {
	if !l.countsHeld() {
		return 0
	}
	return w.seriesOf(l.Meter, l.subjectOf(subject)).heldAt(m).units
}

// near compares what a limit had used; a rounded level may be one unit off.
func near(want *big.Int, have int64, loose bool) bool {
	off := new(big.Int).Sub(big.NewInt(have), want)
	return off.Sign() == 0 || (loose && off.Cmp(big.NewInt(1)) == 0)
}

// usage is what a limit had used at the moment of an entry, just before it.
func (w *walk) usage(v *version, l *limit, m moment, of int64) (u usage, loose bool) {
	subject := l.subjectOf(of)
	if !l.keepsLevel() {
		return w.windowUsage(l, w.seriesOf(l.Meter, subject), m), false
	}
	kept, p := w.levelOf(v, l, subject, m.at)
	return levelUsage(l, p, m.at), kept.loose
}

// levelOf is the level that a limit goes on from, and its value at an instant: the kept one
// of its name, or a fresh one if it was made anew since.
func (w *walk) levelOf(v *version, l *limit, subject, at int64) (*level, *point) {
	kept := w.levels[levelKey{l.Meter, l.Name, subject}]
	if kept == nil {
		return &level{}, nil
	}
	p := w.carried(kept.newest(), v, l, at)
	if p == nil {
		return &level{renewed: true}, nil
	}
	if newest := kept.newest(); newest.version != v {
		kept.loose = true
	}
	return kept, p
}

// take takes an entry from a level. One of 0 units only learns when its turn would be.
func (w *walk) take(v *version, l *limit, m moment, e *entry) {
	subject := l.subjectOf(e.subject)
	kept, p := w.levelOf(v, l, subject, e.at)
	value := takeLevel(l, p, e.at, big.NewInt(e.units))
	if l.Algorithm == "leaky_bucket" && l.Mode == "enforce" {
		r := w.requests[e.requestID]
		r.delayMS = max(r.delayMS, delayMS(value, e.at))
	}
	if e.units == 0 {
		return
	}
	kept.points = append(kept.points, point{m.entries, e.at, value, v, l})
	w.levels[levelKey{l.Meter, l.Name, subject}] = kept
}

func (w *walk) seriesOf(meter string, subject int64) *series {
	key := counterKey{meter, subject}
	s := w.series[key]
	if s == nil {
		s = &series{}
		w.series[key] = s
	}
	return s
}

// count adds an entry to the totals and compares those that it carries.
func (w *walk) count(i int, e *entry) {
	w.countFor(i, e, 0, e.total, "total")
	if e.subject != 0 {
		w.countFor(i, e, e.subject, e.subjectTotal, "subject_total")
	} else if e.subjectTotal != 0 {
		w.add("entry %d has a subject_total without a subject", e.seq)
	}
}

func (w *walk) countFor(i int, e *entry, subject, carried int64, column string) {
	s := w.seriesOf(e.meter, subject)
	key := counterKey{e.meter, subject}
	c := w.counters[key]
	if e.units < 0 {
		s.returned = append(s.returned, returned{i, e.effectiveAt, -e.units})
		c.returned -= e.units
	} else {
		s.add(i, e.at, e.units)
		c.units += e.units
	}
	if s.sum().Cmp(big.NewInt(carried)) != 0 {
		w.add("entry %d carries %s %d; the entries sum to %s", e.seq, column, carried, s.sum())
	}
	c.held += e.held
	if e.kind == KindConsume || e.kind == KindSettle {
		c.calls++
	}
	if e.units > 0 {
		c.lastAt = e.at
	}
	w.counters[key] = c
}

// follows checks that an entry follows from those before it, by the rules of its kind, and
// notes what it sets aside or frees.
func (w *walk) follows(i int, e *entry) {
	var wrong string
	places := int64(0)
	switch e.kind {
	case KindConsume:
		if e.effectiveAt != e.at || e.refSeq != 0 || e.held != 0 || e.units < 0 {
			wrong = fmt.Sprintf("consumes, and gives units back (%d), refers to another one, holds or counts from another instant", e.units)
		}
	case KindHold:
		wrong, places = w.holds.begin(e), 1
	case KindReverse:
		wrong = w.reverses(e)
	case KindExtend, KindSettle, KindRelease, kindExpire:
		c := w.holds.bySeq[e.refSeq]
		open := c != nil && c.end == ""
		wrong = w.holds.answer(e, w.ledger.charging[e.meter])
		if open && c.end != "" {
			places = -1
		}
	default:
		wrong = fmt.Sprintf("is of kind %s, whose rules are not known here", e.kind)
	}
	if wrong != "" {
		w.add("entry %d %s", e.seq, wrong)
	}
	if e.held != 0 || places != 0 {
		w.seriesOf(e.meter, 0).hold(i, e.held, places)
		if e.subject != 0 {
			w.seriesOf(e.meter, e.subject).hold(i, e.held, places)
		}
	}
}

// reverses says what is wrong with an entry that gives units back, or "".
func (w *walk) reverses(e *entry) string {
	if e.refSeq < 1 || e.refSeq >= e.seq || int(e.refSeq) > len(w.entries) {
		return fmt.Sprintf("gives back from entry %d", e.refSeq)
	}
	of := &w.entries[e.refSeq-1]
	w.returned[e.refSeq] -= e.units
	if of.meter != e.meter || of.subject != e.subject || of.at != e.effectiveAt || e.held != 0 || e.units >= 0 {
		return fmt.Sprintf("gives back from entry %d, and is on another meter or subject, or counts from another instant", e.refSeq)
	}
	if left := of.units - w.returned[e.refSeq]; left < 0 {
		return fmt.Sprintf("gives back %d units more than entry %d used", -left, e.refSeq)
	}
	return ""
}

// account checks the account row against the last entry.
func (w *walk) account() {
	if w.seq != int64(len(w.entries)) {
		w.add("the account says seq %d; there are %d entries", w.seq, len(w.entries))
	}
	if len(w.entries) == 0 {
		return
	}
	last := &w.entries[len(w.entries)-1]
	if w.lastAt != last.at {
		w.add("the account's last_at is not that of entry %d", last.seq)
	}
	if w.headHash != last.hash {
		w.add("the account's head_hash is not that of entry %d", last.seq)
	}
}

func (w *walk) compareCounters() {
	for key, want := range w.counters {
		if have, ok := w.tenant.counters[key]; !ok {
			w.add("the counter of meter %s for subject %d is missing", key.meter, key.subject)
		} else if have != want {
			w.add("the counter of meter %s for subject %d is %+v; the entries say %+v", key.meter, key.subject, have, want)
		}
	}
	for key := range w.tenant.counters {
		if _, ok := w.counters[key]; !ok {
			w.add("the counter of meter %s for subject %d has no entry", key.meter, key.subject)
		}
	}
}

func (w *walk) compareLevels() {
	for key, want := range w.levels {
		if have, ok := w.tenant.levels[key]; !ok {
			w.add("the level of limit %s for subject %d is missing", key.limit, key.subject)
		} else if !want.agrees(have) {
			w.add("the level of limit %s for subject %d is %+v; the entries say %s", key.limit, key.subject, have,
				want.newest().value.RatString())
		}
	}
	for key := range w.tenant.levels {
		if _, ok := w.levels[key]; !ok {
			w.add("the level of limit %s for subject %d has no entry", key.limit, key.subject)
		}
	}
}

// requestIDs returns which tenants have entries of each request.
func (l *Ledger) requestIDs() map[uuid.UUID][]*tenant {
	of := make(map[uuid.UUID][]*tenant)
	for _, t := range l.tenants {
		for id := range t.requests {
			of[id] = append(of[id], t)
		}
	}
	return of
}
