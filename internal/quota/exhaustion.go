package quota

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/cache"
	"github.com/quotad/quotad/internal/ledger"
)

// Bounds of what an instance remembers of denials.
const (
	exhaustionMax        = time.Second // how long a denial is given again
	exhaustionEntriesMax = 20_000
	exhaustionBytesMax   = 32 << 20
)

// exhaustion remembers denials whole and gives them again without the database: to the
// same question of the same tenant, until a wait of the denial is over, or for a second.
// It can only ever deny. Other instances may have given units back meanwhile; what this
// one gives back makes it forget. Time is the process's monotonic clock, as an argument.
type exhaustion struct {
	denials *cache.Exhaustion[remembered]
}

func newExhaustion() *exhaustion {
	return &exhaustion{cache.NewExhaustion[remembered](cache.ExhaustionOptions{
		EntriesMax: exhaustionEntriesMax, BytesMax: exhaustionBytesMax,
	})}
}

// A remembered denial, and what it is true under.
type remembered struct {
	deniedCall
	tenantID int64
	era      era
	toldAt   time.Time // not before its waits were told
}

// An era is a span in which this instance knows of no change of the configuration.
type era struct {
	version int64 // of the configuration
	changes int64 // that this process has made itself
}

// ended reports whether there is a change at now that an answer of e does not know.
func (e era) ended(now era) bool { return e.version < now.version || e.changes != now.changes }

// repeatable reports whether r may be answered by an earlier denial: one with a key may be
// the retry of an allowed request.
func repeatable(r *Request) bool {
	return r.kind() == ledger.KindConsume && r.Key == "" && !r.DryRun
}

// remember keeps a denial of r that was decided between askedAt and d.toldAt, if waiting
// is what helps and nothing else can free what it waits for.
func (x *exhaustion) remember(r *Request, d remembered, askedAt time.Time) {
	stands, ok := standsFor(&d.decision)
	if !ok || !repeatable(r) {
		return
	}
	x.denials.Remember(cache.Denial[remembered]{
		Owner: r.Tenant, Question: questionOf(r), Until: askedAt.Add(stands), Bytes: d.size(), Value: d,
	}, d.toldAt)
}

// standsFor returns how long the same request is denied with certainty, unless something
// is given back: until the first of its violated limits lets it through. Waits are
// rounded up, so they are over up to a millisecond before.
func standsFor(d *Decision) (stands time.Duration, ok bool) {
	if d.Reason != ReasonQuotaExceeded {
		return 0, false
	}
	stands = exhaustionMax
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Held > 0 {
			return 0, false // a hold may end at any moment
		}
		if l.Violated && l.RetryMS != nil {
			stands = min(stands, time.Duration(*l.RetryMS-1)*time.Millisecond)
		}
	}
	return stands, true
}

// recall returns the denial that answers r at an instant of the monotonic clock, with its
// waits as they are then. Rounding only ever lengthens them.
func (x *exhaustion) recall(r *Request, current era, now time.Time) (remembered, bool) {
	if !repeatable(r) || !x.denials.Has(r.Tenant) {
		return remembered{}, false
	}
	d, ok := x.denials.Recall(r.Tenant, questionOf(r), now)
	if !ok || d.era.ended(current) {
		return remembered{}, false
	}
	passedMS := max(0, now.Sub(d.toldAt).Milliseconds())
	d.decision.Remembered = true
	d.decision.ClockAt = d.decision.ClockAt.Add(time.Duration(passedMS) * time.Millisecond)
	d.decision.RetryMS = sooner(d.decision.RetryMS, passedMS)
	d.decision.Limits = slices.Clone(d.decision.Limits)
	for i := range d.decision.Limits {
		l := &d.decision.Limits[i]
		l.RetryMS = sooner(l.RetryMS, passedMS)
		l.ResetMS = max(0, l.ResetMS-passedMS)
	}
	return d, true
}

func sooner(waitMS *int64, passedMS int64) *int64 {
	if waitMS == nil {
		return nil
	}
	left := max(1, *waitMS-passedMS)
	return &left
}

// forget drops what is remembered of a tenant, to which something may have come back.
func (x *exhaustion) forget(tenant string) { x.denials.Forget(tenant) }

// readSpan is when a batch's reads happened, and what this process had changed before.
type readSpan struct {
	from    time.Time // not after the database read its clock
	until   time.Time // not before
	changes int64     // of the configuration
}

func (e *Engine) beginRead() readSpan {
	return readSpan{from: time.Now(), changes: e.config.Catalog.Changes()}
}

func (s *readSpan) end() { s.until = time.Now() }

// era is the one that this instance is in.
func (e *Engine) era() (now era) {
	if snapshot := e.snapshot.Load(); snapshot != nil {
		now.version = snapshot.Version
	}
	now.changes = e.config.Catalog.Changes()
	return now
}

// recall answers r as an earlier request was, if that is remembered and still denied.
func (e *Engine) recall(r *Request) (Decision, bool) {
	if e.exhausted == nil {
		return Decision{}, false
	}
	d, ok := e.exhausted.recall(r, e.era(), time.Now())
	if !ok {
		return Decision{}, false
	}
	id, err := uuid.NewV7()
	if err != nil {
		return Decision{}, false // the batch will say so
	}
	d.decision.RequestID = id
	e.denials.note(d.tenantID, d.deniedCall)
	e.metrics.denied(&d.decision)
	e.metrics.remembered.Inc()
	return d.decision, true
}

// giveBack forgets what is remembered of the tenants to which a batch gave something back,
// or may have: a request that no limit can deny. It comes before any of its answers.
func (b *batch) giveBack() {
	for i := range b.results {
		res := &b.results[i]
		if x := b.runner.engine.exhausted; x != nil && res.work != nil && !res.call.stand && !res.call.request.spends() {
			res.work.gaveBack = true
			x.forget(res.work.name)
		}
	}
}

// questionOf digests all that a denial of r depends on, besides its tenant: dims decide
// nothing.
func questionOf(r *Request) cache.Question {
	asked := Request{Subject: r.Subject, Charges: r.Charges}
	return asked.fingerprint()
}

// size is about what a denial takes, its share of maps and lists included.
func (d *remembered) size() int {
	const fixed, perLimit, perCharge = 1024, 320, 64
	return fixed + len(d.decision.Tenant) + len(d.decision.Subject) +
		perLimit*len(d.decision.Limits) + perCharge*len(d.decision.Charges)
}
