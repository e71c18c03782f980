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

// readRoundsMax bounds the read round trips of a batch. One is the rule. A second
// follows when a tenant was not known, or what was known of it no longer holds, or a
// window began since its start was predicted, or the meters that a call is about are
// those of a hold or an entry that it names; a third and a fourth when several met.
const readRoundsMax = 6

// read locks the accounts and fills the books of the tenants that were locked.
func (b *batch) read(ctx context.Context) error {
	if b.snapshot == nil { // this instance's first batch
		if err := b.readFirst(ctx); err != nil {
			return err
		}
	}
	if b.waits() {
		if err := b.join(ctx); err != nil {
			return err
		}
	}
	b.predict()
	for round := range readRoundsMax {
		var queries pgx.Batch
		if round == 0 {
			if !b.waits() {
				b.queueLock(&queries)
			}
			b.span = b.runner.engine.beginRead()
		}
		if !b.queueReads(&queries, round == 0) {
			b.closeEdges()
			b.openLevels()
			return b.carryLevels(ctx, b.runner.session)
		}
		if err := b.runner.session.Send(ctx, &queries, b.runner.engine.config.readTimeout); err != nil {
			return err
		}
		if round == 0 {
			b.span.end()
			b.runner.engine.clock.observe(b.clock.At, b.runner.engine)
		}
		if err := b.reconcile(ctx); err != nil {
			return err
		}
	}
	return errors.New("what a batch has to read did not settle")
}

// queueLock queues the transaction's begin and the locks of its accounts.
func (b *batch) queueLock(queries *pgx.Batch) {
	pg.Begin(queries)
	ledger.QueueLock(queries, b.names(), b.waits(), b.lock)
}

// join waits for the lock of a tenant that is busy elsewhere, and takes the calls that came
// for it in that time: they wait no longer, and one commit has them all. The lock is a
// round trip of its own, so that the clock is read after the last of them came.
func (b *batch) join(ctx context.Context) error {
	var queries pgx.Batch
	b.queueLock(&queries)
	if err := b.runner.session.Send(ctx, &queries, b.runner.engine.config.readTimeout); err != nil {
		return err
	}
	t := b.tenants[0]
	if room := b.runner.engine.config.BatchMax - len(t.calls); room > 0 {
		b.joined = taken(b.more(room))
		t.calls = append(t.calls, b.joined...)
	}
	return nil
}

// readFirst loads the configuration before anything is known. It needs no transaction.
func (b *batch) readFirst(ctx context.Context) error {
	snapshot, err := b.runner.reload(ctx)
	b.snapshot = snapshot
	return err
}

func (b *batch) names() []string {
	names := make([]string, len(b.tenants))
	for i, t := range b.tenants {
		names[i] = t.name
	}
	return names
}

// predict takes what this instance remembers of the tenants, so that their reads can
// travel with the lock.
func (b *batch) predict() {
	now := b.runner.engine.clock.estimate()
	for _, t := range b.tenants {
		if !b.waits() { // a waiter has a tenant once, and so nothing to remember
			t.memory = b.runner.memories.take(t.name)
		}
		known, ok := b.runner.engine.tenants.Get(t.name)
		if !ok {
			continue
		}
		t.exists, t.facts, t.holding = true, known.facts, known.holding
		r, err := b.runner.rulesFor(b.snapshot, known.facts, now)
		switch {
		case err != nil:
			continue
		case t.memory.usable(r):
			t.book, t.windows = t.memory.book, t.memory.windows
			t.book.snapshot = b.snapshot
		default:
			t.book = newBook(r, b.snapshot)
		}
		t.book.nowMicros = now
	}
}

// lock notes an account that is now ours.
func (b *batch) lock(a ledger.Account) {
	t := b.byName[a.Tenant]
	t.locked, t.exists, t.account = true, true, a
}

// reads gathers the queries of one round over all tenants, and where answers go.
type reads struct {
	totals     []ledger.TotalQuery
	totalsFor  []*total
	subjects   []subjectSlot
	edges      []ledger.EdgeQuery
	edgesFor   []edgeSlot
	keys       []keyQuery
	keysFor    []*tenantWork
	holds      []holdQuery
	holdsOf    map[int64]*tenantWork // by the tenant's number
	originals  []originalQuery
	originalOf []*tenantWork
	unknown    []string
	predicting bool
}

type subjectSlot struct {
	work    *tenantWork
	subject string
}

// queueReads queues what the books still miss. It returns false when there was nothing
// to read, and always reads something in the first round.
func (b *batch) queueReads(queries *pgx.Batch, first bool) bool {
	in := &reads{predicting: first}
	for _, t := range b.tenants {
		switch {
		case t.book != nil && (first || t.locked):
			b.want(in, t)
		case !first && !t.exists && !t.sought:
			t.sought = true
			in.unknown = append(in.unknown, t.name)
		}
	}
	if !first && len(in.totals)+len(in.edges)+len(in.keys)+len(in.holds)+len(in.originals)+len(in.unknown) == 0 {
		return false
	}
	var at *time.Time
	if !first {
		at = &b.clock.At
	}
	ledger.QueueEdges(queries, at, in.edges,
		func(c ledger.Clock) { b.clock = c },
		func(i int, e ledger.Edge) { in.edgesFor[i].found(e) })
	ledger.QueueTotals(queries, in.totals, func(i int, t ledger.Total, levels []byte, s ledger.SubjectRow) {
		slot := in.totalsFor[i]
		slot.stored, slot.sealed = t.Stored, levels
		slot.units, slot.returned, slot.held, slot.calls = t.Units, t.Returned, t.Held, t.Calls
		if !t.LastAt.IsZero() {
			slot.lastAtMicros = max(0, t.LastAt.UnixMicro())
		}
		in.subjects[i].found(s)
	})
	queueKeys(queries, in.keys, func(i int, kept keptAnswer) { put(&in.keysFor[i].keys, in.keys[i].key, kept) })
	queueHolds(queries, in.holds, func(h storedHold) { in.holdsOf[h.tenantID].foundHold(h) })
	queueOriginals(queries, in.originals, func(i int, o original, s ledger.SubjectRow) {
		put(&in.originalOf[i].originals, o.seq, &o)
		subjectSlot{in.originalOf[i], o.subject}.found(s)
	})
	if len(in.unknown) > 0 {
		ledger.QueueExisting(queries, in.unknown, func(name string) { b.byName[name].exists = true })
	}
	return true
}

// put sets a value in a map that is made when it gets its first one: most tenants of a batch
// need few of theirs.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[key] = value
}

// foundHold notes a hold, which may come twice: as one that is open and as one that is
// named.
func (t *tenantWork) foundHold(h storedHold) {
	if t.holds[h.id] != nil {
		return
	}
	put(&t.holds, h.id, &h.hold)
	if h.state == HoldOpen {
		t.book.holds = append(t.book.holds, &h.hold)
	}
	subjectSlot{t, h.subject}.found(ledger.SubjectRow{ID: h.subjectID, Digest: h.subjectDigest})
}

// found notes what the ledger knows of a subject.
func (s subjectSlot) found(row ledger.SubjectRow) {
	if s.subject != "" && row.ID != 0 {
		put(&s.work.subject, s.subject, &ledger.NewSubject{SubjectID: row.ID, Digest: row.Digest})
	}
}

// want adds what the calls of t read and the book does not hold yet.
func (b *batch) want(in *reads, t *tenantWork) {
	if !t.keysRead {
		t.keysRead = true
		for _, c := range t.calls {
			if c.request.Key != "" && !c.request.DryRun {
				in.keys = append(in.keys, keyQuery{t.facts.tenantID, c.request.Key})
				in.keysFor = append(in.keysFor, t)
			}
		}
	}
	if t.holding && !t.holdsRead {
		t.holdsRead = true
		in.wantHolds(t, holdQuery{tenantID: t.facts.tenantID})
	}
	if t.locked { // only then is it known what is over
		for _, h := range t.book.due() {
			in.wantHold(t, h)
		}
	}
	for _, c := range t.calls {
		b.wantCall(in, t, c)
	}
}

// wantCall adds what one call reads.
func (b *batch) wantCall(in *reads, t *tenantWork, c *call) {
	r := &c.request
	switch {
	case c.stand:
		for meter := range t.book.rules.byMeter {
			b.wantMeter(in, t, meter, r.Subject)
		}
	case r.Hold != uuid.Nil:
		h, asked := t.holds[r.Hold]
		if !asked {
			put(&t.holds, r.Hold, nil)
			in.wantHolds(t, holdQuery{t.facts.tenantID, r.Hold})
		}
		if h != nil {
			in.wantHold(t, h)
		}
	case r.kind() == ledger.KindReverse:
		o, asked := t.originals[r.Seq]
		if !asked {
			put(&t.originals, r.Seq, nil)
			in.originals = append(in.originals, originalQuery{t.facts.tenantID, r.Seq})
			in.originalOf = append(in.originalOf, t)
		}
		if o != nil {
			in.wantMeter(t, o.meter, o.meterID, o.subject)
		}
	default:
		for i := range r.Charges {
			b.wantMeter(in, t, r.Charges[i].Meter, r.Subject)
		}
	}
}

func (in *reads) wantHolds(t *tenantWork, q holdQuery) {
	if in.holdsOf == nil {
		in.holdsOf = make(map[int64]*tenantWork)
	}
	in.holds, in.holdsOf[q.tenantID] = append(in.holds, q), t
}

func (in *reads) wantHold(t *tenantWork, h *hold) {
	for i := range h.charges {
		in.wantMeter(t, h.charges[i].meter, h.charges[i].meterID, h.subject)
	}
}

func (b *batch) wantMeter(in *reads, t *tenantWork, name, subject string) {
	if meter := b.snapshot.Meter(name); meter != nil { // else the decision will say so
		in.wantMeter(t, name, meter.ID, subject)
	}
}

func (in *reads) wantMeter(t *tenantWork, name string, meterID int32, subject string) {
	book := t.book
	needMeter := func(key meterKey) {
		if _, have := book.totals[key]; have {
			return
		}
		slot := &total{meterID: meterID}
		book.totals[key] = slot
		in.totals = append(in.totals, ledger.TotalQuery{TenantID: t.facts.tenantID, MeterID: meterID, Subject: key.subject})
		in.totalsFor = append(in.totalsFor, slot)
		in.subjects = append(in.subjects, subjectSlot{t, key.subject})
	}
	needLimit := func(key limitKey) {
		if !key.limit.Algorithm.KeepsLevel() { // levels come with the totals
			in.wantEdges(t, key, meterID)
		}
	}
	book.rules.needs(name, subject, needMeter, needLimit)
}

// noEntry stands in for an edge behind which there is no entry until the total is known.
const noEntry = -1

// wantEdges adds the edges of a window unless they were read for these very instants. An
// edge that slides with now is asked for relative to the database's clock as long as that
// is only predicted.
func (in *reads) wantEdges(t *tenantWork, key limitKey, meterID int32) {
	now := t.book.nowMicros
	edges := key.limit.rule.Edges(now)
	if t.recallEdges(key, edges) {
		return
	}
	instants := make([]int64, len(edges))
	for i, e := range edges {
		instants[i] = e.AtMicros
		if e.Sliding {
			instants[i] = e.AtMicros - now
		}
	}
	if asked, have := t.asked[key]; have && slices.Equal(asked, instants) {
		return
	}
	put(&t.asked, key, instants)
	before := make([]int64, len(edges))
	t.book.before[key] = before
	known := make([]int64, len(edges))
	if delete(t.windows, key); key.subject == "" {
		put(&t.edges, key, known)
	}
	for i, e := range edges {
		before[i] = noEntry
		query := ledger.EdgeQuery{TenantID: t.facts.tenantID, MeterID: meterID, Subject: key.subject}
		if e.Sliding && in.predicting {
			query.Lookback = time.Duration(now-e.AtMicros) * time.Microsecond
		} else {
			query.Start = time.UnixMicro(e.AtMicros).UTC()
		}
		in.edges = append(in.edges, query)
		in.edgesFor = append(in.edgesFor, edgeSlot{&before[i], &known[i]})
	}
}

// reconcile compares what was predicted with what is now known under the locks, and
// starts a tenant's book over where it differs.
func (b *batch) reconcile(ctx context.Context) error {
	stale := b.runner.anew || b.clock.CatalogVersion != b.snapshot.Version
	if stale {
		snapshot, err := b.runner.reload(ctx)
		if err != nil {
			return err
		}
		b.snapshot = snapshot
	}
	if err := b.runner.loadSets(ctx, b.runner.session, b.tenants); err != nil {
		return err
	}
	for _, t := range b.tenants {
		if !t.locked {
			continue
		}
		actual := factsOf(&t.account)
		t.confirm(b.now(t))
		if t.book == nil || actual != t.facts || stale || actual.dated() {
			t.facts = actual
			b.runner.engine.tenants.Set(t.name, known{actual, t.account.OpenHolds > 0})
			if err := b.restart(t); err != nil {
				b.runner.engine.config.Log.Error("a tenant's plan cannot be compiled", "tenant", t.name, "error", err)
				t.book = nil
				continue
			}
		}
		if t.holding != (t.account.OpenHolds > 0) {
			t.holding = !t.holding
			b.runner.engine.tenants.Set(t.name, known{actual, t.holding})
		}
		t.book.status = catalog.Status(t.account.Status)
		t.book.clockMicros, t.book.nowMicros = b.clock.At.UnixMicro(), b.now(t)
	}
	return nil
}

// now is the instant that decisions of a locked tenant are of.
func (b *batch) now(t *tenantWork) int64 {
	return max(b.clock.At.UnixMicro(), t.account.LastAt.UnixMicro())
}

// restart gives t a book under the rules that hold now, keeping totals that are read.
func (b *batch) restart(t *tenantWork) error {
	r, err := b.runner.rulesFor(b.snapshot, t.facts, b.now(t))
	if err != nil {
		return err
	}
	if t.book != nil && t.book.rules == r {
		t.book.snapshot = b.snapshot
		return nil
	}
	fresh := newBook(r, b.snapshot)
	if t.book != nil {
		fresh.totals, fresh.holds = t.book.totals, t.book.holds
	}
	t.book = fresh
	clear(t.asked)
	clear(t.edges)
	t.windows = nil
	return nil
}

// closeEdges fills in the edges behind which there is no entry: everything was used
// before them.
func (b *batch) closeEdges() {
	for _, t := range b.tenants {
		if !t.locked || t.book == nil {
			continue
		}
		for key, before := range t.book.before {
			for i := range before {
				if before[i] == noEntry {
					before[i] = t.book.totals[meterKey{meter: key.limit.Meter, subject: key.subject}].units
				}
			}
		}
	}
}

// openLevels gives the books the levels that came with the totals. A tenant whose levels
// nobody can read is refused; the others of the batch are not.
func (b *batch) openLevels() {
	for _, t := range b.tenants {
		if !t.locked || t.book == nil {
			continue
		}
		if err := t.book.openLevels(); err != nil {
			b.runner.engine.config.Log.Error("a tenant's levels cannot be read", "tenant", t.name, "error", err)
			t.book = nil
		}
	}
}
