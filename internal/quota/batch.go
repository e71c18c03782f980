package quota

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pg"
)

// A batch is one transaction: it locks the accounts of its calls, reads what their
// limits need, decides every call in order, and writes and commits the lot.
type batch struct {
	runner    *runner
	more      func(n int) []*call // what came while it waited for its lock; nil if it does not wait
	joined    []*call             // those of it that it took
	trial     trial               // for the engine's health; not before a lock that it waits for
	id        uuid.UUID           // random: tells this transaction's entries from any other's
	snapshot  *catalog.Snapshot
	clock     ledger.Clock
	span      readSpan
	works     []tenantWork // never grows: tenants points into it
	tenants   []*tenantWork
	byName    map[string]*tenantWork
	results   []result
	write     ledger.Write
	holds     []holdRow
	keys      []keyRow
	elsewhere map[string][]*call
}

// tenantWork is what a batch knows of one tenant.
type tenantWork struct {
	name     string
	calls    []*call
	exists   bool // known to exist, from memory or from its lock
	sought   bool // asked whether it exists
	locked   bool
	facts    facts
	account  ledger.Account
	book     *book // nil until facts are known
	asked    map[limitKey][]int64
	keys     map[string]keptAnswer
	keysRead bool                          // all that calls come with were asked for
	subject  map[string]*ledger.NewSubject // Salt nil for one that is stored already

	holding   bool                // the account has, or is believed to have, open holds
	holdsRead bool                // all open ones were asked for
	holds     map[uuid.UUID]*hold // the open ones, and those that calls name; nil for none
	originals map[int64]*original // the entries that reversals name; nil for none

	crossings map[crossingWant]int64 // where windows have room, for waits
	gaveBack  bool                   // the batch may have given units back

	memory    *memory              // what was kept of the last batch
	confirmed bool                 // it was compared with the account
	windows   map[limitKey][]int64 // see there; what was known before this batch
	edges     map[limitKey][]int64 // the same, read by this batch
	unsteady  bool                 // something was entered that is not of now, or gave units back
}

// result is what a call will be told once the batch has committed.
type result struct {
	call     *call
	work     *tenantWork
	verdict  verdict
	afterSeq int64 // the tenant's newest entry then, its own included
	err      error
}

// newBatch begins a batch in the memory of the runner's last one, of which nothing is in
// use any more.
func newBatch(r *runner, calls []*call, more func(n int) []*call) *batch {
	last := r.last
	clear(last.byName)
	b := &batch{
		runner:   r,
		more:     more,
		trial:    trial{batch: true},
		id:       uuid.New(),
		snapshot: r.engine.snapshot.Load(),
		works:    emptied(last.works, len(calls)),
		tenants:  emptied(last.tenants, len(calls)),
		byName:   last.byName,
		results:  emptied(last.results, len(calls)),
		write: ledger.Write{
			Accounts: emptied(last.write.Accounts, len(calls)),
			Totals:   emptied(last.write.Totals, len(calls)),
			Postings: emptied(last.write.Postings, len(calls)),
		},
	}
	r.last = b
	own := slices.Clone(calls) // of which each tenant has the part that is its first call
	for i, c := range calls {
		c.unknown = false
		if t := b.byName[c.request.Tenant]; t != nil {
			t.calls = append(t.calls, c)
			continue
		}
		b.works = append(b.works, tenantWork{name: c.request.Tenant, calls: own[i : i+1 : i+1]})
		t := &b.works[len(b.works)-1]
		b.byName[t.name] = t
		b.tenants = append(b.tenants, t)
	}
	return b
}

// waits reports whether the batch is of one tenant and waits for its lock.
func (b *batch) waits() bool { return b.more != nil }

// emptied returns s without its elements and with room for size of them.
func emptied[T any](s []T, size int) []T {
	clear(s)
	return slices.Grow(s[:0], size)
}

// run carries the batch out and answers its calls, but for those left in elsewhere. On
// an error nobody was answered; unless it wraps [pg.ErrCommitUnknown], nothing changed.
func (b *batch) run(ctx context.Context) error {
	started := time.Now()
	if !b.waits() {
		b.runner.engine.health.begin(&b.trial)
	}
	if err := b.runner.connect(ctx); err != nil {
		return err
	}
	if err := b.read(ctx); err != nil {
		b.runner.session.Rollback(ctx, b.runner.engine.config.readTimeout)
		return err
	}
	b.runner.engine.health.begin(&b.trial)
	b.claim()
	b.decide()
	if err := b.commit(ctx); err != nil {
		b.runner.session.Rollback(ctx, b.runner.engine.config.readTimeout)
		return err
	}
	b.deliver()
	b.memorize()
	b.runner.engine.metrics.batch(len(b.results), time.Since(started))
	return nil
}

// claim drops the calls of locked tenants that were given up while the batch read: what
// their callers are told then is not what it decides.
func (b *batch) claim() {
	for _, t := range b.tenants {
		if t.locked {
			t.calls = slices.DeleteFunc(t.calls, func(c *call) bool { return !c.send() })
		}
	}
}

// decide answers every call of a locked tenant, in order, each seeing what earlier ones
// did. Those that only ask how limits stand come last: all of a batch is of one instant,
// and what is said of an instant holds everything decided at it.
func (b *batch) decide() {
	for _, t := range b.tenants {
		if !t.locked {
			b.leave(t)
			continue
		}
		if err := b.expireHolds(t); err != nil {
			b.refuseAll(t, err)
			continue
		}
		for _, standing := range []bool{false, true} {
			for _, c := range t.calls {
				if c.stand != standing {
					continue
				}
				b.results = append(b.results, result{call: c, work: t})
				res := &b.results[len(b.results)-1]
				res.err = b.decideCall(res)
				res.afterSeq = t.account.Seq
			}
		}
		b.collect(t)
	}
}

// decided reports whether the batch has a tenant's lock and a call for it that nobody gave up.
// Without, its commit is of nothing, and succeeds where nothing can be decided.
func (b *batch) decided() bool {
	return slices.ContainsFunc(b.tenants, func(t *tenantWork) bool { return t.locked && len(t.calls) > 0 })
}

// leave hands the calls of a tenant that was not locked back. If there is no such
// tenant they are refused, but for those from the first on that makes one.
func (b *batch) leave(t *tenantWork) {
	for i, c := range t.calls {
		c.unknown = !t.exists && !b.waits() && c.creates() && b.snapshot.Settings().DefaultPlan != ""
		if t.exists || c.unknown {
			if b.elsewhere == nil {
				b.elsewhere = make(map[string][]*call)
			}
			b.elsewhere[t.name] = t.calls[i:]
			return
		}
		b.results = append(b.results, result{call: c, err: errNoTenant()})
	}
}

// decideCall fills in the verdict of a result.
func (b *batch) decideCall(res *result) (err error) {
	t, c, v := res.work, res.call, &res.verdict
	if t.book == nil {
		return &Error{Code: CodeInternal, Err: errors.New("the tenant's plan cannot be compiled, or its levels cannot be read")}
	}
	r := &c.request
	if c.stand {
		*v = t.book.stand(r.Tenant, r.Subject)
		return nil
	}
	keyed := r.Key != "" && !r.DryRun
	if kept, ok := t.keys[r.Key]; ok && keyed {
		if kept.requestHash != c.fingerprint() {
			return &Error{Code: CodeKeyReused, Faults: []Fault{{
				"Idempotency-Key", "was used before for another request",
			}}}
		}
		v.decision = Decision{Allowed: true, Tenant: r.Tenant, Replayed: true, Encoded: kept.answer}
		return nil
	}
	id, err := c.newID()
	if err != nil {
		return &Error{Code: CodeInternal, Err: err}
	}
	if *v, err = t.answer(r, id); err != nil || v.decision.Replayed {
		return err
	}
	v.decision.RequestID, v.grant = id, c.grant
	v.decision.DecidedAt = time.UnixMicro(t.book.nowMicros).UTC()
	v.decision.ClockAt = time.UnixMicro(t.book.clockMicros).UTC()
	if v.decision.Allowed && !r.DryRun {
		if err := b.post(t, r, v); err != nil {
			return &Error{Code: CodeInternal, Err: err}
		}
	}
	return nil
}

// answer answers a request by its kind.
func (t *tenantWork) answer(r *Request, id uuid.UUID) (verdict, error) {
	switch r.kind() {
	case ledger.KindSettle, ledger.KindRelease, ledger.KindExtend:
		return t.book.resolve(r, t.holds[r.Hold])
	case ledger.KindReverse:
		return t.book.reverse(r, t.originals[r.Seq])
	case ledger.KindAdjust:
		return t.book.adjust(r)
	default:
		return decide(t.book, r, id)
	}
}

// expireHolds ends the open holds of t whose time is over, before anything relies on that,
// so that the ledger explains what is decided then.
func (b *batch) expireHolds(t *tenantWork) error {
	if t.book == nil {
		return nil
	}
	for _, h := range t.book.due() {
		id, err := uuid.NewV7()
		if err != nil {
			return &Error{Code: CodeInternal, Err: err}
		}
		receipt, err := b.enter(t, t.book.expire(h), id, saltedText{})
		if err != nil {
			return &Error{Code: CodeInternal, Err: err}
		}
		h.expiredSeq = receipt.FirstSeq
	}
	return nil
}

// refuseAll gives every call of t the same error.
func (b *batch) refuseAll(t *tenantWork, err error) {
	for _, c := range t.calls {
		b.results = append(b.results, result{call: c, work: t, err: err})
	}
}

// commit writes what the decisions changed and commits. What denied calls still need to
// read for their waits travels in the same round trip.
func (b *batch) commit(ctx context.Context) error {
	var queries pgx.Batch
	ledger.QueueWrite(&queries, &b.write)
	queueWriteHolds(&queries, b.holds)
	queueWriteKeys(&queries, b.keys)
	b.queueCrossings(&queries) // behind the entries, some of which may be of the batch
	return b.runner.session.Commit(ctx, &queries, b.runner.engine.config.commitTimeout)
}

// crossingWant is a question of a denied call's wait. Many calls of a batch have the same.
type crossingWant struct {
	limit limitKey
	asked int64
	seq   int64
}

func (w *wait) want(seq int64) crossingWant {
	return crossingWant{limitKey{w.forecast.limit, w.subject}, w.asked, seq}
}

// queueCrossings queues the questions of all waits; the answers are settled into the
// decisions when they arrive.
func (b *batch) queueCrossings(queries *pgx.Batch) {
	for _, t := range b.tenants {
		clear(t.crossings) // a lost commit asks again
	}
	var asked []ledger.CrossingQuery
	var wants []crossingWant
	var works []*tenantWork
	for i := range b.results {
		res := &b.results[i]
		res.verdict.crossings(func(w *wait) {
			t, want := res.work, w.want(res.afterSeq)
			if t.crossings == nil {
				t.crossings = make(map[crossingWant]int64)
			}
			if _, known := t.crossings[want]; known {
				return
			}
			t.crossings[want] = 0
			q := w.crossing()
			q.TenantID, q.Seq = t.facts.tenantID, res.afterSeq
			q.MeterID = t.book.totals[meterKey{meter: w.forecast.limit.Meter}].meterID
			if w.subject != "" {
				q.SubjectID = t.subjectSeen(w.subject)
			}
			asked, wants, works = append(asked, q), append(wants, want), append(works, t)
		})
	}
	ledger.QueueCrossings(queries, asked, func(i int, atMicros int64) { works[i].crossings[wants[i]] = atMicros })
}

// instants returns when the batch writes, to the day: at what the clock says, and for
// tenants whose time is ahead of a clock that fell back, at theirs.
func (b *batch) instants() []time.Time {
	instants := []time.Time{b.clock.At}
	for i := range b.write.Accounts {
		day := b.write.Accounts[i].LastAt.Truncate(24 * time.Hour)
		if day.After(b.clock.At) && !slices.Contains(instants, day) {
			instants = append(instants, day)
		}
	}
	return instants
}

// deliver answers the calls of a batch that is committed.
func (b *batch) deliver() {
	b.giveBack()
	for i := range b.results {
		res := &b.results[i]
		if res.err == nil && res.work != nil {
			res.verdict.settleWaits(res.work.book, func(w *wait) int64 { return res.work.crossings[w.want(res.afterSeq)] })
			b.noteDenial(res)
		}
		res.call.answer(res.verdict.decision, res.err)
	}
}

// noteDenial hands a denial to the log of denials.
func (b *batch) noteDenial(res *result) {
	d, e := &res.verdict.decision, b.runner.engine
	if res.call.stand || d.Allowed || d.DryRun {
		return
	}
	denied := deniedCall{
		decision: *d, afterSeq: res.afterSeq, plan: res.work.book.rules.plan,
	}
	e.denials.note(res.work.facts.tenantID, denied)
	if e.exhausted != nil && !res.work.gaveBack {
		e.exhausted.remember(&res.call.request, remembered{
			deniedCall: denied, tenantID: res.work.facts.tenantID, toldAt: b.span.until,
			era: era{version: b.snapshot.Version, changes: b.span.changes},
		}, b.span.from)
	}
}

// deliverUnknown tells the calls of a batch that nobody knows whether it is committed.
// Those that changed nothing can simply be tried again.
func (b *batch) deliverUnknown() {
	b.giveBack()
	for i := range b.results {
		res := &b.results[i]
		switch {
		case res.err != nil:
			res.call.answer(Decision{}, res.err)
		case res.verdict.decision.Receipt != nil:
			res.call.answer(Decision{}, &Error{Code: CodeOutcomeUnknown, RetryAfter: time.Second})
		default:
			res.call.answer(Decision{}, unavailable(pg.ErrCommitUnknown))
		}
	}
}
