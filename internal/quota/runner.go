package quota

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pg"
)

const (
	compiledMax  = 10_000                 // compiled plans a runner keeps; then it starts over
	backoffFirst = 10 * time.Millisecond  // between attempts at a batch, doubling
	backoffMax   = 250 * time.Millisecond // so that recovery is noticed at once
)

// facts is what must be known of a tenant to say what its limits need to read. An
// instance remembers them; the account row, once locked, tells whether they still hold.
type facts struct {
	tenantID      int64
	terms         catalog.Terms
	timezone      string
	billingAnchor int
	calendarPast  string // JSON, "" for none
	status        catalog.Status
}

// dated reports whether the rules change by themselves as time goes by.
func (f *facts) dated() bool { return f.terms.NextPlan != "" || f.terms.OverrideSetID != 0 }

// known is what an instance remembers of a tenant.
type known struct {
	facts
	holding bool // it had open holds
}

func factsOf(a *ledger.Account) facts {
	return facts{
		tenantID:      a.TenantID,
		timezone:      a.Timezone,
		billingAnchor: a.BillingAnchor,
		calendarPast:  string(a.CalendarPast),
		status:        catalog.Status(a.Status),

		terms: catalog.Terms{
			AtMicros: a.TermsAt.UnixMicro(), Plan: a.Plan, NextPlan: a.NextPlan,
			NextPlanAtMicros: a.NextPlanAt.UnixMicro(), OverrideSetID: a.OverrideSetID,
		},
	}
}

// rulesKey names compiled rules: one version of a plan under one calendar, and under the
// overrides of a set that are active.
type rulesKey struct {
	versionID     int64
	overrideSetID int64
	active        uint16
	timezone      string
	billingAnchor int
	calendarPast  string
}

// A runner runs one batch at a time on a session of its own, until every call has its
// answer. It is not safe for concurrent use.
type runner struct {
	engine   *Engine
	session  *pg.Session
	anew     bool // nothing is known of the configuration for sure
	compiled map[rulesKey]*rules
	sets     map[int64]*catalog.OverrideSet
	memories memories
	last     *batch // whose memory the next one uses
}

func newRunner(e *Engine) *runner {
	return &runner{
		engine: e, compiled: make(map[rulesKey]*rules), sets: make(map[int64]*catalog.OverrideSet),
		last: &batch{byName: make(map[string]*tenantWork)},
	}
}

func (r *runner) close() {
	if r.session != nil {
		r.session.Close()
	}
}

// run answers calls, but for those of tenants whose account is locked elsewhere: they
// come back, by tenant, in their order. With more there is one tenant, and it waits a
// while for its lock; what came for it meanwhile more gives, up to so many calls.
func (r *runner) run(ctx context.Context, calls []*call, more func(n int) []*call) map[string][]*call {
	calls = taken(calls)
	backoff := backoffFirst
	for {
		if calls = r.expire(calls); len(calls) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			refuse(calls, ctx.Err())
			return nil
		}
		b := newBatch(r, calls, more)
		err := b.run(ctx)
		calls = append(calls, b.joined...)
		if err != nil {
			failure := err // which may become another one below
			for _, c := range calls {
				c.lastError.Store(&failure)
			}
		}
		switch {
		case err == nil && b.decided():
			r.engine.health.committed(&b.trial)
			return b.elsewhere
		case err == nil:
			r.engine.health.end(&b.trial)
			return b.elsewhere
		case b.waits() && pg.Code(err) == pg.CodeLockNotAvailable:
			r.engine.health.end(&b.trial)
			return map[string][]*call{calls[0].request.Tenant: calls}
		case errors.Is(err, pg.ErrCommitUnknown) && len(b.write.Postings) > 0:
			r.engine.health.failed(&b.trial, err)
			if done := r.settle(ctx, b); done {
				return b.elsewhere
			}
		case pg.NoPartition(err):
			r.engine.health.end(&b.trial)
			err = r.ensurePartitions(ctx, b.instants()...)
			// A server process that looked for partitions while another made them may never see
			// them (PostgreSQL 15 keeps what it found then); a new one does.
			r.session.Close()
		case pg.OneRowsFault(err):
			r.engine.health.end(&b.trial)
			return r.runInParts(ctx, calls, more, err)
		}
		if err != nil {
			r.engine.health.failed(&b.trial, err)
			r.engine.reach.ended(err)
			r.engine.config.Log.Log(ctx, r.engine.health.retryLevel(), "a batch failed and is tried again",
				"error", err, "calls", len(calls))
			r.engine.metrics.retries.Inc()
		}
		for _, c := range calls {
			c.unsend()
		}
		pause(ctx, backoff)
		backoff = min(2*backoff, backoffMax)
	}
}

// runInParts runs the halves of a batch that one of its requests made fail, so that the
// others get their answer. A batch of one is answered with the fault. What the first
// half leaves of a tenant the second must not overtake.
func (r *runner) runInParts(ctx context.Context, calls []*call, more func(n int) []*call, cause error) map[string][]*call {
	if len(calls) == 1 {
		r.engine.config.Log.Error("a request was refused by the database", "error", cause,
			"tenant", calls[0].request.Tenant)
		calls[0].answer(Decision{}, &Error{Code: CodeInternal, Err: cause})
		return nil
	}
	if more != nil { // what comes now must not overtake the second half
		more = func(int) []*call { return nil }
	}
	half := len(calls) / 2
	elsewhere := r.run(ctx, calls[:half], more)
	var rest []*call
	for _, c := range calls[half:] {
		if locked, left := elsewhere[c.request.Tenant]; left {
			elsewhere[c.request.Tenant] = append(locked, c)
			continue
		}
		rest = append(rest, c)
	}
	locked := r.run(ctx, rest, more)
	if elsewhere == nil {
		return locked
	}
	maps.Copy(elsewhere, locked)
	return elsewhere
}

// taken claims calls for a batch and drops those whose caller has left.
func taken(calls []*call) []*call {
	kept := make([]*call, 0, len(calls))
	for _, c := range calls {
		if c.take() {
			kept = append(kept, c)
		}
	}
	return kept
}

// expire answers the calls that are past their deadline, forgets those that were given up, and
// returns the others.
func (r *runner) expire(calls []*call) []*call {
	now := time.Now()
	kept := calls[:0:0]
	for _, c := range calls {
		switch {
		case c.left():
		case now.Before(c.deadline):
			kept = append(kept, c)
		default:
			c.answer(Decision{}, unavailable(errors.New("no batch succeeded in time")))
		}
	}
	return kept
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// connect makes sure that there is an open session.
func (r *runner) connect(ctx context.Context) error {
	if r.session != nil && !r.session.Closed() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.engine.config.readTimeout)
	defer cancel()
	open := pg.Connect
	if r.engine.config.Pooler {
		open = pg.ConnectPooled
	}
	session, err := open(ctx, r.engine.config.Database)
	if err != nil {
		r.engine.reach.ended(err)
		return err
	}
	session.Heard = r.engine.reach.heard
	if !r.engine.config.Pooler { // which takes a connection whether its server is there or not
		r.engine.reach.heard()
	}
	// Another connection may lead to another server, after a failover that took the last
	// changes of the configuration back: later ones have their numbers.
	r.session, r.anew = session, true
	return nil
}

// settle finds out whether a batch whose commit reply was lost is in the ledger, and
// answers its calls if that can be known to be so, or cannot be known in time, which
// ends with ctx. It returns false if the batch is certainly not there and has to run
// again.
func (r *runner) settle(ctx context.Context, b *batch) (done bool) {
	log := r.engine.config.Log
	posting := &b.write.Postings[0]
	until := time.Now().Add(r.engine.config.resolveTimeout)
	for ctx.Err() == nil && time.Now().Before(until) {
		committed, err := r.resolve(ctx, b)
		if err != nil {
			log.Log(ctx, r.engine.health.retryLevel(), "a lost commit is being looked up", "error", err, "tenant", posting.Tenant, "seq", posting.Seq)
			pause(ctx, backoffMax)
			continue
		}
		r.engine.metrics.lostCommits.WithLabelValues(map[bool]string{true: "committed", false: "rolled_back"}[committed]).Inc()
		if committed {
			r.engine.health.committed(&b.trial)
			b.deliver()
		}
		return committed
	}
	r.engine.metrics.lostCommits.WithLabelValues("unknown").Inc()
	log.Error("the outcome of a commit stays unknown", "tenant", posting.Tenant, "seq", posting.Seq)
	b.deliverUnknown()
	return true
}

// resolve asks under the account's lock, so that the lost transaction has ended, and
// commits, so that a yes is as durable as a first answer. The waits of denied calls
// were in the lost reply, too: they are read again.
func (r *runner) resolve(ctx context.Context, b *batch) (committed bool, err error) {
	if err := r.connect(ctx); err != nil {
		return false, err
	}
	posting := &b.write.Postings[0]
	var found uuid.UUID
	var queries pgx.Batch
	pg.Begin(&queries)
	ledger.QueueResolve(&queries, posting, func(id uuid.UUID) { found = id })
	b.queueCrossings(&queries)
	if err := r.session.Commit(ctx, &queries, r.engine.config.readTimeout); err != nil {
		r.session.Rollback(ctx, r.engine.config.readTimeout)
		return false, fmt.Errorf("look a lost commit up: %w", err)
	}
	return found == posting.BatchID, nil
}

// ensurePartitions makes the partitions around each instant and a while ahead.
func (r *runner) ensurePartitions(ctx context.Context, instants ...time.Time) error {
	if err := r.connect(ctx); err != nil {
		return err
	}
	var queries pgx.Batch
	pg.Begin(&queries)
	for _, at := range instants {
		ledger.QueueEnsurePartitions(&queries, at)
	}
	if err := r.session.Commit(ctx, &queries, r.engine.config.commitTimeout); err != nil {
		r.session.Rollback(ctx, r.engine.config.readTimeout)
		return fmt.Errorf("make partitions ahead: %w", err)
	}
	return nil
}

// rulesFor returns the rules of a tenant at an instant under snapshot. Its overrides must
// be loaded.
func (r *runner) rulesFor(snapshot *catalog.Snapshot, f facts, nowMicros int64) (*rules, error) {
	name := f.terms.PlanAt(nowMicros)
	plan := snapshot.Plan(name)
	if plan == nil {
		return nil, fmt.Errorf("plan %q is not configured", name)
	}
	set := r.sets[f.terms.OverrideSetID]
	if set == nil && f.terms.OverrideSetID != 0 {
		return nil, fmt.Errorf("override set %d is not loaded", f.terms.OverrideSetID)
	}
	key := rulesKey{plan.VersionID, f.terms.OverrideSetID, set.Active(nowMicros), f.timezone, f.billingAnchor, f.calendarPast}
	if have, ok := r.compiled[key]; ok {
		return have, nil
	}
	calendar, err := f.calendar()
	if err != nil {
		return nil, err
	}
	if len(r.compiled) >= compiledMax {
		clear(r.compiled)
	}
	compiled := compilePlan(plan.Under(set, nowMicros), calendar)
	r.compiled[key] = compiled
	return compiled, nil
}

// loadSets makes sure that the overrides of tenants are loaded, by q, which is the batch's
// transaction. Sets never change, so most often there is nothing to read.
func (r *runner) loadSets(ctx context.Context, q catalog.Querier, tenants []*tenantWork) error {
	var asked, missing []int64
	for _, t := range tenants {
		id := t.account.OverrideSetID
		if !t.locked || id == 0 {
			continue
		}
		asked = append(asked, id)
		if r.sets[id] == nil {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if len(r.sets) >= compiledMax {
		clear(r.sets)
		missing = asked
	}
	ctx, cancel := context.WithTimeout(ctx, r.engine.config.readTimeout)
	defer cancel()
	loaded, err := r.engine.config.Catalog.OverrideSets(ctx, q, missing)
	if err != nil {
		return err
	}
	maps.Copy(r.sets, loaded)
	if d := r.engine.degraded; d != nil { // a preview decides nothing
		for id, set := range loaded {
			d.sets.Set(id, set)
		}
	}
	return nil
}

// reload brings the engine's snapshot up to date, on this session, inside the batch's
// transaction.
func (r *runner) reload(ctx context.Context) (*catalog.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, r.engine.config.readTimeout)
	defer cancel()
	known := r.engine.snapshot.Load()
	base := known
	if r.anew {
		base = nil
		clear(r.compiled)
		clear(r.sets)
	}
	fresh, err := r.engine.config.Catalog.Snapshot(ctx, r.session, base)
	if err != nil {
		return nil, fmt.Errorf("load the configuration: %w", err)
	}
	r.anew = false
	r.engine.snapshot.CompareAndSwap(known, fresh)
	return fresh, nil
}
