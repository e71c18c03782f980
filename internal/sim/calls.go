package sim

import (
	"maps"
	"math/big"
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"
)

// CheckCalls checks the ledger against every call that was ever made to it: each
// acknowledged allow is in it once, as the answer said; nothing is in it that nobody
// asked for, or that was denied; a key has one decision; and what was denied did not
// fit. It includes Check.
func (l *Ledger) CheckCalls(calls []Call) []string {
	c := &callCheck{
		ledger: l, findings: newFindings(),
		walks: make(map[string]*walk), byTag: make(map[tagKey]*asked), byKey: make(map[tagKey]*decided),
		known: make(map[string][]known),
	}
	l.over = 0
	for _, t := range l.tenants {
		c.walks[t.name] = l.walk(t, c.findings)
		t.checkAnswers(c.findings)
	}
	for id, tenants := range l.requestIDs() {
		if len(tenants) > 1 {
			c.findings.add(tenants[0].name, "request %s is also one of tenant %q", id, tenants[1].name)
		}
	}
	ordered := make([]*Call, len(calls))
	for i := range calls {
		ordered[i] = &calls[i]
	}
	slices.SortStableFunc(ordered, func(a, b *Call) int { return a.Started.Compare(b.Started) })
	c.know(ordered)
	for _, call := range ordered {
		c.ask(call)
		c.answer(call)
		c.decide(call)
	}
	c.unasked()
	return c.findings.lines
}

// callCheck is one run of CheckCalls.
type callCheck struct {
	ledger   *Ledger
	findings *findings
	walks    map[string]*walk // by tenant
	byTag    map[tagKey]*asked
	byKey    map[tagKey]*decided
	known    map[string][]known // by tenant, in the order of time
}

// known says how many of a tenant's entries were there at an instant of the callers.
type known struct {
	at      time.Time
	entries int
}

// A tagKey names a tag or an idempotency key of a tenant.
type tagKey struct{ tenant, text string }

// asked is what the calls with one tag asked for, and were told.
type asked struct {
	request  Request
	allowed  bool
	possible bool // one of them may have been recorded
}

// decided is what callers were told about one idempotency key.
type decided struct {
	first *Call // the first allowed answer
	fresh *Call // the one that was not marked as replayed
	known time.Time
}

func (c *callCheck) add(call *Call, format string, args ...any) {
	c.findings.add(call.Tenant, "%s "+format, append([]any{call}, args...)...)
}

// ask notes what a call may have left in the ledger.
func (c *callCheck) ask(call *Call) {
	key := tagKey{call.Tenant, call.Tag}
	a := c.byTag[key]
	if a == nil {
		a = &asked{request: call.Request}
		c.byTag[key] = a
	}
	switch {
	case call.DryRun:
	case call.Outcome == OutcomeAllowed:
		a.allowed, a.possible = true, true
	case call.Outcome == OutcomeUnknown:
		a.possible = true
	}
}

// answer compares one answer with the ledger.
func (c *callCheck) answer(call *Call) {
	if call.Fault != "" {
		c.add(call, "got an answer that is wrong by itself: %s: %s", call.Fault, oneLine(call.Body))
	}
	if call.Outcome != OutcomeAllowed && call.Outcome != OutcomeDenied {
		return
	}
	w := c.walks[call.Tenant]
	switch {
	case w == nil:
		c.add(call, "was decided, and there is no such tenant")
	case call.Outcome == OutcomeAllowed && !call.DryRun:
		c.acknowledged(w, call)
	case w.requests[call.RequestID] != nil:
		c.add(call, "was %s or a dry run, and its request %s is in the ledger", call.Outcome, call.RequestID)
	case call.Outcome == OutcomeDenied:
		c.denied(w, call)
	}
}

// acknowledged checks that an allow is in the ledger, exactly as it was answered.
func (c *callCheck) acknowledged(w *walk, call *Call) {
	if wrong := w.receiptFault(call.RequestID, call.Receipt); wrong != "" {
		c.add(call, "was allowed, and the answer %s", wrong)
		return
	}
	r := w.requests[call.RequestID]
	e := &w.entries[r.first]
	if e.tag != call.Tag || w.subjects[e.subject] != call.Subject {
		c.add(call, "was allowed, and its entry %d is of call %q and subject %q", e.seq, e.tag, w.subjects[e.subject])
	}
	if e.at != call.At {
		c.add(call, "was allowed at another instant than its entry %d says", e.seq)
	}
	if !maps.Equal(r.charged, call.Charged) {
		c.add(call, "was allowed for %v, and its entries say %v", call.Charged, r.charged)
	}
	if call.Costs != nil && !maps.Equal(call.Costs, call.Charged) {
		c.add(call, "asked for %v and was charged %v", call.Costs, call.Charged)
	}
	if more := call.DelayMS - r.delayMS; more < 0 || more > call.ClockOff.Milliseconds() {
		c.add(call, "was told to wait %d ms, and its departure is in %d ms", call.DelayMS, r.delayMS)
	}
}

// noSubject is the number of a subject that the ledger does not know.
const noSubject = -1

// denied checks that a denied cost did not fit, at any of the moments at which it may have
// been decided: before, between or after the entries of its instant.
func (c *callCheck) denied(w *walk, call *Call) {
	subject, seen := w.subjectIDs[call.Subject]
	if !seen {
		subject = noSubject // it has used nothing
	}
	if len(call.Violated) == 0 {
		return
	}
	first := sort.Search(len(w.entries), func(i int) bool { return w.entries[i].at >= call.At })
	if call.ClockOff != 0 { // after a fall back, later entries may be dated before the denial
		first = min(first, c.knownBefore(call))
	}
	last := sort.Search(len(w.entries), func(i int) bool { return w.entries[i].at > call.At })
	for n := last; n >= first; n-- { // mostly the last one says it
		for _, violation := range call.Violated {
			if !c.fitted(w, violation, subject, moment{call.At, n}, call) {
				return // one limit is enough
			}
		}
	}
	c.add(call, "was denied by %+v at %d after %d to %d entries, and all of it fitted", call.Violated, call.At, first, last)
}

// know notes what answers say of how many entries there were.
func (c *callCheck) know(calls []*Call) {
	for _, call := range calls {
		w := c.walks[call.Tenant]
		if w == nil || call.Outcome != OutcomeAllowed || w.requests[call.RequestID] == nil {
			continue
		}
		c.known[call.Tenant] = append(c.known[call.Tenant], known{call.end(), w.requests[call.RequestID].last + 1})
	}
	for _, of := range c.known {
		slices.SortFunc(of, func(a, b known) int { return a.at.Compare(b.at) })
		for i := 1; i < len(of); i++ {
			of[i].entries = max(of[i].entries, of[i-1].entries)
		}
	}
}

// knownBefore is how many entries there were for certain when a call was begun.
func (c *callCheck) knownBefore(call *Call) int {
	of := c.known[call.Tenant]
	n := sort.Search(len(of), func(i int) bool { return !of[i].at.Before(call.Started) })
	if n == 0 {
		return 0
	}
	return of[n-1].entries
}

// fitted reports whether a call fitted a limit at a moment under every version of the plan
// that has the limit with the number that the denial says.
func (c *callCheck) fitted(w *walk, violation Violation, subject int64, m moment, call *Call) bool {
	for _, v := range c.ledger.versions {
		limits, _ := v.on(violation.Meter)
		for _, l := range limits {
			if l.Name != violation.Name || l.size.Cmp(big.NewInt(violation.Limit)) != 0 || !l.asked(call.kind()) {
				continue
			}
			aside := w.heldOf(l, subject, m)
			if !l.admits(c.usageAt(w, v, l, l.subjectOf(subject), m), aside, call.Charged[violation.Meter]) {
				return false
			}
		}
	}
	return true
}

// usageAt is what a limit had used at a moment.
func (c *callCheck) usageAt(w *walk, v *version, l *limit, subject int64, m moment) usage {
	if !l.keepsLevel() {
		return w.windowUsage(l, w.seriesOf(l.Meter, subject), m)
	}
	kept := w.levels[levelKey{l.Meter, l.Name, subject}]
	if kept == nil {
		return levelUsage(l, nil, m.at)
	}
	p := w.carried(kept.upTo(m), v, l, m.at)
	exact := levelUsage(l, p, m.at)
	return usage{exact.used, func(cost *big.Int) bool {
		switch {
		case p == nil && kept.renewed:
			return false // the level it was denied by is not known any more
		case kept.loose:
			cost = new(big.Int).Add(cost, big.NewInt(1)) // rounding may be what denied it
		}
		return exact.fits(cost)
	}}
}

// decide checks that everyone who used a key was told the same.
func (c *callCheck) decide(call *Call) {
	once := call.once()
	if once == "" {
		if call.Replayed {
			c.add(call, "got a replayed answer without a key")
		}
		return
	}
	key := tagKey{call.Tenant, once}
	d := c.byKey[key]
	if d == nil {
		d = &decided{}
		c.byKey[key] = d
	}
	if call.Outcome == OutcomeDenied && d.first != nil && d.known.Before(call.Started) {
		c.add(call, "was denied after an answer had allowed it")
	}
	if call.Outcome != OutcomeAllowed {
		return
	}
	if w := c.walks[call.Tenant]; w != nil && call.Key != "" && w.kept[call.Key] != call.BodyHash {
		c.add(call, "was allowed, and another answer is kept for its key, or none")
	}
	switch {
	case d.first == nil:
		d.first, d.known = call, call.end()
	case d.first.BodyHash != call.BodyHash:
		c.add(call, "got request %s, and request %s with the same key before", call.RequestID, d.first.RequestID)
	}
	if call.end().Before(d.known) {
		d.known = call.end()
	}
	if call.Replayed {
		return
	}
	if d.fresh != nil {
		c.add(call, "got two answers with its key that are not marked as replayed")
	}
	d.fresh = call
}

// unasked finds entries that nobody asked for, that nobody may have been given, or that
// stand twice for one call.
func (c *callCheck) unasked() {
	for _, t := range c.ledger.tenants {
		once := make(map[string]uuid.UUID)
		for i := range t.entries {
			e := &t.entries[i]
			if e.kind == kindExpire {
				continue // it follows from its hold
			}
			a := c.byTag[tagKey{t.name, e.tag}]
			switch {
			case e.tag == "" || a == nil:
				c.findings.add(t.name, "entry %d (call %q) was asked for by nobody", e.seq, e.tag)
				continue
			case !a.possible:
				c.findings.add(t.name, "entry %d is of call %q, which was never allowed", e.seq, e.tag)
			}
			if other, seen := once[e.tag]; seen && other != e.requestID {
				c.findings.add(t.name, "entry %d charges call %q again", e.seq, e.tag)
			}
			once[e.tag] = e.requestID
		}
	}
}

// Lost returns how many calls are in the ledger whose callers never got an answer that
// says so.
func (l *Ledger) Lost(calls []Call) int {
	allowed := make(map[tagKey]bool)
	for i := range calls {
		if calls[i].Outcome == OutcomeAllowed {
			allowed[tagKey{calls[i].Tenant, calls[i].Tag}] = true
		}
	}
	lost := make(map[tagKey]bool)
	for _, t := range l.tenants {
		for i := range t.entries {
			if key := (tagKey{t.name, t.entries[i].tag}); !allowed[key] && t.entries[i].kind != kindExpire {
				lost[key] = true
			}
		}
	}
	return len(lost)
}

// VersionOf returns the number of the plan's version that the entries of a call name; 0
// if it has none. Check comes first.
func (l *Ledger) VersionOf(call *Call) int32 {
	t := l.byName[call.Tenant]
	if t == nil || t.requests[call.RequestID] == nil {
		return 0
	}
	if v := l.versions[t.entries[t.requests[call.RequestID].first].version]; v != nil {
		return v.number
	}
	return 0
}
