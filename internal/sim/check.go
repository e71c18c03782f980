package sim

import (
	"fmt"
	"math/big"

	"github.com/google/uuid"
)

// findingsPerTenantMax bounds what is said of one tenant: one fault can have thousands
// of consequences.
const findingsPerTenantMax = 20

// kindConsume is the one kind of entry whose rules are known here.
const kindConsume = "consume"

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
	}
	t.requests = make(map[uuid.UUID]*request)
	for i := range t.entries {
		e := &t.entries[i]
		w.order(i, e)
		w.belongs(i, e)
		w.limits(e)
		w.count(e)
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
	if e.kind != kindConsume {
		w.add("entry %d is of kind %s, whose rules are not known here", e.seq, e.kind)
		return
	}
	if e.effectiveAt != e.at || e.refSeq != 0 || e.held != 0 {
		w.add("entry %d consumes, and refers to another one, holds or counts from another instant", e.seq)
	}
	if e.units < 0 {
		w.add("entry %d consumes %d units", e.seq, e.units)
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
		w.requests[e.requestID] = &request{i, i, map[string]int64{e.meter: e.units}, 0}
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
	r.charged[e.meter] += e.units
}

// limits checks that an entry kept every limit of the version that it names, and what
// it says that they had used.
func (w *walk) limits(e *entry) {
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
	if len(e.limitsUsed) != len(limits) {
		w.add("entry %d says what %d limits had used; there are %d", e.seq, len(e.limitsUsed), len(limits))
	}
	cost := big.NewInt(e.units)
	for i, l := range limits {
		if l.Scope == "subject" && e.subject == 0 {
			w.add("entry %d has no subject, and limit %s counts per subject", e.seq, l.Name)
		}
		before, loose := w.usage(v, l, e)
		if i < len(e.limitsUsed) && !near(before.used, e.limitsUsed[i], loose) {
			w.add("entry %d says that limit %s had used %d; it had used %s", e.seq, l.Name, e.limitsUsed[i], before.used)
		}
		fits := l.Unlimited || !l.blocks() && (e.units == 0 || before.fits(cost))
		if l.Mode == "enforce" && !fits {
			w.ledger.over++
			w.add("entry %d takes %d of limit %s (%s), which had used %s of %s", e.seq, e.units, l.Name, l.Algorithm,
				before.used, l.size)
		}
		if l.keepsLevel() && !l.blocks() && (fits || l.Mode == "enforce") {
			w.take(v, l, e, cost)
		}
	}
}

// near compares what a limit had used; a rounded level may be one unit off.
func near(want *big.Int, have int64, loose bool) bool {
	off := new(big.Int).Sub(big.NewInt(have), want)
	return off.Sign() == 0 || (loose && off.Cmp(big.NewInt(1)) == 0)
}

// usage is what a limit had used just before an entry.
func (w *walk) usage(v *version, l *limit, e *entry) (u usage, loose bool) {
	subject := l.subjectOf(e.subject)
	if !l.keepsLevel() {
		return w.windowUsage(l, w.seriesOf(e.meter, subject), e.at), false
	}
	kept, p := w.levelOf(v, l, subject, e.at)
	return levelUsage(l, p, e.at), kept.loose
}

// levelOf is the level that a limit goes on from, and its value at an instant: the kept one
// of its name, or a fresh one if it was made anew since.
func (w *walk) levelOf(v *version, l *limit, subject, at int64) (*level, *point) {
	kept := w.levels[levelKey{l.Name, subject}]
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
func (w *walk) take(v *version, l *limit, e *entry, cost *big.Int) {
	subject := l.subjectOf(e.subject)
	kept, p := w.levelOf(v, l, subject, e.at)
	value := takeLevel(l, p, e.at, cost)
	if l.Algorithm == "leaky_bucket" && l.Mode == "enforce" {
		r := w.requests[e.requestID]
		r.delayMS = max(r.delayMS, delayMS(value, e.at))
	}
	if e.units == 0 {
		return
	}
	kept.points = append(kept.points, point{e.at, value, v, l})
	w.levels[levelKey{l.Name, subject}] = kept
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
func (w *walk) count(e *entry) {
	w.countFor(e, 0, e.total, "total")
	if e.subject != 0 {
		w.countFor(e, e.subject, e.subjectTotal, "subject_total")
	} else if e.subjectTotal != 0 {
		w.add("entry %d has a subject_total without a subject", e.seq)
	}
}

func (w *walk) countFor(e *entry, subject, carried int64, column string) {
	s := w.seriesOf(e.meter, subject)
	s.add(e.at, e.units)
	if s.sum().Cmp(big.NewInt(carried)) != 0 {
		w.add("entry %d carries %s %d; the entries sum to %s", e.seq, column, carried, s.sum())
	}
	key := counterKey{e.meter, subject}
	c := w.counters[key]
	c.units += e.units
	c.held += e.held
	c.calls++
	if e.units > 0 {
		c.lastAt = e.at
	}
	w.counters[key] = c
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
