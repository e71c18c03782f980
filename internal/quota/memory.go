package quota

import (
	"math"

	"github.com/quotad/quotad/internal/ledger"
)

// Bounds of what a runner remembers.
const (
	memoriesMax = 10_000 // tenants of one runner, in each of two generations
	doubtMin    = 4      // batches that must find a memory true after one that did not
	doubtMax    = 64
)

// A memory is what a runner keeps of a tenant after a batch: what is counted of the tenant
// as a whole, as it stood behind its newest entry then. The next batch learns with the
// lock whether that entry, named by its number and its hash, is the newest one still. If
// so, nothing else that counts can have changed, and there is nothing to read. If not, all
// is read anew; so it is where time fell back with the clock, which it may since nothing was
// entered: windows and levels were followed further than that.
//
// Where other instances write the same tenant, each batch would ask twice. So a memory
// that was found untrue is only compared, and used again once it has been true for a while.
type memory struct {
	seq      int64
	headHash [32]byte
	atMicros int64                // the tenant's time then
	book     *book                // without subjects and holds
	windows  map[limitKey][]int64 // of each edge, until which start of a window it holds
	doubt    int                  // batches that must find it true before it is used
	penalty  int                  // what doubt was set to last
}

// memories are those of one runner. When there are too many, those that were not used for
// longest go, in one stroke.
type memories struct {
	young, old map[string]*memory
}

// take returns the memory of a tenant and forgets it; nil without one. Whoever takes it
// may change it.
func (m *memories) take(tenant string) *memory {
	for _, generation := range []map[string]*memory{m.young, m.old} {
		if kept := generation[tenant]; kept != nil {
			delete(generation, tenant)
			return kept
		}
	}
	return nil
}

func (m *memories) keep(tenant string, kept *memory) {
	if m.young == nil || len(m.young) >= memoriesMax {
		m.young, m.old = make(map[string]*memory), m.young
	}
	m.young[tenant] = kept
}

// usable reports whether there is a memory to predict from under rules.
func (m *memory) usable(r *rules) bool { return m != nil && m.doubt == 0 && m.book.rules == r }

// confirm compares what is remembered with the account that is now locked. A book that was
// predicted from what no longer holds is dropped.
func (t *tenantWork) confirm(nowMicros int64) {
	m := t.memory
	if m == nil || t.confirmed {
		return
	}
	t.confirmed = true
	if nowMicros >= m.atMicros && m.seq == t.account.Seq && m.headHash == t.account.HeadHash {
		m.doubt, m.penalty = max(0, m.doubt-1), max(0, m.penalty-1)
		return
	}
	m.penalty = min(doubtMax, max(doubtMin, 2*m.penalty))
	m.doubt = m.penalty
	if t.book == m.book {
		fresh := newBook(m.book.rules, m.book.snapshot)
		fresh.holds = m.book.holds // of this batch
		t.book, t.windows = fresh, nil
		clear(t.asked)
		clear(t.edges)
	}
}

// recallEdges reports whether the book has what is before the edges of a window.
func (t *tenantWork) recallEdges(key limitKey, edges []Edge) bool {
	known := t.windows[key]
	for i := range known {
		if edges[i].AtMicros > known[i] {
			return false
		}
	}
	return len(known) > 0
}

// An edgeSlot is where the answer to an edge's query goes.
type edgeSlot struct {
	before *int64 // of the book
	until  *int64 // of what is known of the edge
}

// found fills the slot. What is before the first entry of a window is before each window
// that begins later, up to that entry; but what is given back leaves a window, too.
func (s edgeSlot) found(e ledger.Edge) {
	switch {
	case !e.Found:
		*s.until = math.MaxInt64 // until there is an entry
	case e.Returned == 0:
		*s.until = e.At.UnixMicro()
	}
	if e.Found {
		*s.before = e.Before + e.Returned
	}
}

// memorize keeps what the committed batch knows of its tenants. What has to do with
// subjects, of which there may be millions, and with holds is read each time; after an entry
// that is not of now, or that gave units back, all is.
func (b *batch) memorize() {
	if b.waits() {
		return
	}
	for _, t := range b.tenants {
		if !t.locked || t.book == nil || t.unsteady || t.book.beganMicros > 0 {
			continue
		}
		m := t.memory
		if m == nil {
			m = new(memory)
		}
		m.seq, m.headHash, m.atMicros = t.account.Seq, t.account.HeadHash, t.book.nowMicros
		m.book, m.windows = t.book, t.keptWindows()
		t.book.forget()
		b.runner.memories.keep(t.name, m)
	}
}

// keptWindows returns what is known of windows, the batch's own entries included: one that
// was the first of its window ends what was known of an empty one.
func (t *tenantWork) keptWindows() map[limitKey][]int64 {
	for key, known := range t.edges {
		put(&t.windows, key, known)
	}
	for key, known := range t.windows {
		total := t.book.totals[meterKey{meter: key.limit.Meter}]
		for i := range known {
			if known[i] == math.MaxInt64 && total.changed {
				known[i] = t.book.nowMicros
			}
		}
	}
	return t.windows
}

// forget drops what is of subjects and of holds, and that anything changed.
func (b *book) forget() {
	for key, t := range b.totals {
		t.stored, t.changed = t.stored || t.changed, false
		if key.subject != "" {
			delete(b.totals, key)
		}
	}
	for key, v := range b.levels {
		if v.changed = false; key.subject != "" {
			delete(b.levels, key)
		}
	}
	for key := range b.before {
		if key.subject != "" {
			delete(b.before, key)
		}
	}
	b.holds = nil
}
