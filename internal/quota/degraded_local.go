package quota

import (
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

const (
	// localEntriesMax bounds what an instance remembers of its own grants, some 32 bytes
	// each. Beyond it nothing more is granted locally.
	localEntriesMax = 1 << 20
	// localCopyEntries is what a copy with nothing in it weighs among them.
	localCopyEntries = 8
	// localSweepEvery bounds how often all copies are looked at for idle ones.
	localSweepEvery = time.Second
)

// localCopies is the copies of limits that this instance grants from by itself while the
// database is away: the same rules, over what it granted so itself. They stay when the
// database is back: one that comes and goes grants no share twice. A copy is forgotten
// once nothing of it is used. It is not safe for concurrent use.
type localCopies struct {
	byKey       map[localKey]*localCopy
	entries     int // of all copies
	entriesMax  int
	sweptMicros int64
}

// localKey names a copy; subject "" for tenant scope.
type localKey struct {
	tenant  string
	limit   string
	subject string
}

// A localCopy is one limit's, in its share of the limit's numbers.
type localCopy struct {
	limit        *limit
	total        int64 // granted since there is this copy
	lastAtMicros int64
	grants       series // for windows
	level        State  // for the others
}

func newLocalCopies() *localCopies {
	return &localCopies{byKey: make(map[localKey]*localCopy), entriesMax: localEntriesMax}
}

// sharedPlan is the plan with each local limit in one instance's share of its numbers.
func sharedPlan(p *catalog.Plan) *catalog.Plan {
	shared := *p
	shared.Limits = make([]catalog.Limit, len(p.Limits))
	for i, l := range p.Limits {
		if l.OnError == catalog.OnErrorLocal {
			l = shareOf(l)
		}
		shared.Limits[i] = l
	}
	return &shared
}

// percent is the whole of which a share is a part.
const percent = 100

// shareOf scales a limit: amounts rounded down, rates exactly. They stay within what wide
// arithmetic holds: 7 bits more than those of the limit.
func shareOf(l catalog.Limit) catalog.Limit {
	for _, units := range []*int64{&l.Limit, &l.Capacity, &l.Burst, &l.Queue} {
		*units = *units * l.LocalShare / percent
	}
	for _, rate := range []*catalog.Rate{&l.Refill, &l.Rate} {
		rate.Units, rate.PerMicros = rate.Units*l.LocalShare, rate.PerMicros*percent
	}
	return l
}

// of returns the copy of a limit as it is now; one that counts something else starts over.
func (c *localCopies) of(key localKey, l *limit) *localCopy {
	have := c.byKey[key]
	if have != nil && (have.limit.Algorithm == l.Algorithm || !have.limit.Algorithm.KeepsLevel() && !l.Algorithm.KeepsLevel()) {
		have.limit = l
		return have
	}
	if have != nil {
		c.drop(key, have)
	}
	made := &localCopy{limit: l}
	c.byKey[key] = made
	c.entries += localCopyEntries
	return made
}

// room reports whether one grant of each of n limits may be kept more, and forgets idle
// copies if not: whoever asks holds none yet.
func (c *localCopies) room(n int, nowMicros int64) bool {
	n *= localCopyEntries + 1
	if c.entries+n <= c.entriesMax {
		return true
	}
	if nowMicros-c.sweptMicros < localSweepEvery.Microseconds() {
		return false
	}
	c.sweptMicros = nowMicros
	for key, have := range c.byKey {
		if have.limit.rule.Used(c.view(have, nowMicros)) == 0 {
			c.drop(key, have)
		}
	}
	return c.entries+n <= c.entriesMax
}

func (c *localCopies) drop(key localKey, have *localCopy) {
	c.entries -= localCopyEntries + len(have.grants.entries)
	delete(c.byKey, key)
}

// view is what a copy's limit sees at an instant, which never falls. What it will not see
// again is forgotten.
func (c *localCopies) view(have *localCopy, nowMicros int64) View {
	v := View{
		NowMicros: nowMicros, Total: have.total, LastAtMicros: have.lastAtMicros, State: have.level,
		Crossing: have.grants.reached,
	}
	if have.limit.Algorithm.KeepsLevel() {
		return v
	}
	edges := have.limit.rule.Edges(nowMicros)
	v.Before = make([]int64, len(edges))
	oldest := nowMicros
	for i, edge := range edges {
		v.Before[i] = have.grants.before(edge.AtMicros)
		oldest = min(oldest, edge.AtMicros)
	}
	kept := len(have.grants.entries)
	have.grants.forget(oldest)
	c.entries += len(have.grants.entries) - kept
	return v
}

// take grants cost units at an instant.
func (c *localCopies) take(have *localCopy, nowMicros, cost int64) {
	if cost == 0 {
		return
	}
	view := c.view(have, nowMicros)
	if have.limit.Algorithm.KeepsLevel() {
		have.level = have.limit.rule.Take(view, cost)
		return
	}
	before := len(have.grants.entries)
	have.total += cost
	have.lastAtMicros = nowMicros
	have.grants.add(nowMicros, have.total)
	c.entries += len(have.grants.entries) - before
}
