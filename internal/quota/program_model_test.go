package quota_test

import (
	"cmp"
	"math/big"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// model is what the design says of some tenants under one plan, kept as lists of all that
// has happened and computed from the first line on at every look. Instants are µs.
type model struct {
	clock   int64
	plan    []*limit // the newest of plans
	plans   *planHistory
	meters  map[string]*meter
	tenants map[string]*tenant
}

type meter struct {
	name     string
	weights  map[string]*big.Rat // by pool
	onExpiry catalog.Expiry
}

type tenant struct {
	name      string
	zone      *time.Location
	anchor    int
	suspended bool

	last  int64 // its time never runs backwards
	facts []fact
	holds []*hold
	ops   []op
	kept  map[string]kept // answers, by key
	past  []moment

	meters map[string]*meter
	plans  *planHistory
}

// A fact is one entry. Its number is its place in the list.
type fact struct {
	kind          ledger.Kind
	at, effective int64
	meter         string
	subject       string
	units         int64
	corrects      int // the fact that it gives back from; -1 for none
}

type part struct {
	meter string
	units int64
	fact  int // of its expiry, if that charged
}

type hold struct {
	id             uuid.UUID
	subject        string
	parts          []part
	start, expires int64
	state          quota.HoldState
	late           bool
	resolution     string // what ended it
	answer         []byte // and what that was answered
}

func (h *hold) openAt(at int64) bool { return h.state == quota.HoldOpen && at < h.expires }

// keptFor is how long a key gives the answer again.
const keptFor = int64(35 * 24 * time.Hour / time.Microsecond)

// kept is an answered request, for its repetition.
type kept struct {
	request string
	answer  []byte
	at      int64
}

// keptAnswer is what a key is bound to.
func (m *model) keptAnswer(tn *tenant, key string) (kept, bool) {
	k, ok := tn.kept[key]
	return k, ok && m.clock < k.at+keptFor
}

// A moment is how a tenant stood from an instant on.
type moment struct {
	at    int64
	state *tenant
}

// now is the tenant's time.
func (m *model) now(tn *tenant) int64 { return max(m.clock, tn.last) }

// expiries are the entries that holds which have expired by an instant, and of which
// nothing is written yet, will have.
func (tn *tenant) expiries(at int64) []fact {
	var facts []fact
	for _, h := range tn.expired(at) {
		for _, p := range h.parts {
			facts = append(facts, tn.expiry(h, p, at))
		}
	}
	return facts
}

// expiry is what is entered of a hold's end by some instant. It is dated then; if the plan has
// changed between, when it did.
func (tn *tenant) expiry(h *hold, p part, by int64) fact {
	at := h.expires
	for _, v := range tn.plans.versions {
		if v.from < by {
			at = max(at, v.from)
		}
	}
	f := fact{kind: ledger.KindExpire, at: at, effective: at, meter: p.meter, subject: h.subject, corrects: -1}
	if tn.meters[p.meter].onExpiry == catalog.ExpiryCharge {
		f.units = p.units
	}
	return f
}

// expired are the open holds that have expired by an instant, in the order of their ends.
func (tn *tenant) expired(at int64) []*hold {
	var holds []*hold
	for _, h := range tn.holds {
		if h.state == quota.HoldOpen && h.expires <= at {
			holds = append(holds, h)
		}
	}
	slices.SortStableFunc(holds, func(a, b *hold) int {
		return cmp.Or(cmp.Compare(a.expires, b.expires), cmp.Compare(a.id.String(), b.id.String()))
	})
	return holds
}

func (tn *tenant) factsAt(at int64) []fact {
	return append(slices.Clone(tn.facts), tn.expiries(at)...)
}

// tidy writes what expired by now. Whoever locks the tenant does it first.
func (m *model) tidy(tn *tenant) {
	now := m.now(tn)
	for _, h := range tn.expired(now) {
		at := now
		for i := range h.parts {
			p := &h.parts[i]
			f := tn.expiry(h, *p, now)
			p.fact, at = len(tn.facts), f.at
			tn.post(f)
			m.take(tn, p.meter, h.subject, f.units, f.at)
		}
		h.state = quota.HoldExpired
		tn.remember(at)
	}
}

// take takes units from the buckets on a meter, or gives them back.
func (m *model) take(tn *tenant, meter, subject string, units, at int64) {
	for _, l := range m.plan {
		if l.mode == catalog.ModeOff || !l.hasLevel() || l.algorithm == catalog.LeakyBucket || l.meter != meter ||
			l.bySubject && subject == "" || units == 0 {
			continue
		}
		tn.ops = append(tn.ops, op{keyOf(l, subject), at, units, *l})
	}
}

// post writes an entry and moves the tenant's time.
func (tn *tenant) post(f fact) {
	tn.facts = append(tn.facts, f)
	tn.last = max(tn.last, f.at)
}

// remember keeps how things stand behind what was just done.
func (tn *tenant) remember(at int64) {
	state := &tenant{
		name: tn.name, zone: tn.zone, anchor: tn.anchor, meters: tn.meters, plans: tn.plans, suspended: tn.suspended,
		facts: slices.Clone(tn.facts), ops: slices.Clone(tn.ops),
	}
	for _, h := range tn.holds {
		copied := *h
		copied.parts = slices.Clone(h.parts)
		state.holds = append(state.holds, &copied)
	}
	tn.past = append(tn.past, moment{at, state})
}

// left is what is still used of a fact.
func (tn *tenant) left(i int) int64 {
	left := tn.facts[i].units
	for _, f := range tn.facts {
		if f.corrects == i {
			left += f.units
		}
	}
	return left
}

// planHistory is every version of the plan, the first one being number 0.
type planHistory struct{ versions []planFrom }

// planFrom is a version of the plan and when it came.
type planFrom struct {
	from   int64
	limits []*limit
}

func (p *planHistory) at(version int) int64 { return p.versions[version].from }

// limit is what l was in another version.
func (p *planHistory) limit(version int, l *limit) *limit {
	limits := p.versions[version].limits
	return limits[slices.IndexFunc(limits, func(other *limit) bool { return other.name == l.name && other.born == l.born })]
}

// setPlan gives the plan its next version.
func (m *model) setPlan(limits []*limit) {
	version := len(m.plans.versions)
	for _, l := range limits {
		l.version, l.born = version, version
		for _, before := range m.plan {
			if before.name == l.name && before.algorithm == l.algorithm && before.meter == l.meter &&
				before.bySubject == l.bySubject {
				l.born = before.born
			}
		}
	}
	m.plan = limits
	m.plans.versions = append(m.plans.versions, planFrom{m.clock, limits})
}
