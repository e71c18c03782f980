package quota

import (
	"context"
	"errors"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pg"
)

// creationsQueuedMax bounds how many unknown tenants wait for their account in one
// engine: as many as one batch over HTTP can name. A flood of them is refused beyond it;
// a creation takes a few milliseconds.
const creationsQueuedMax = 1024

// A creator makes the accounts of unknown tenants, one at a time, outside of batches.
// It is not one of the waiters, and what waits for it is bounded apart: a flood of
// unknown tenants keeps nobody waiting who has an account.
type creator struct {
	tenants chan *parkedTenant
}

func newCreator() *creator { return &creator{tenants: make(chan *parkedTenant, creationsQueuedMax)} }

// close ends the creator; nothing may be pushed after it.
func (c *creator) close() { close(c.tenants) }

// run serves unknown tenants until close.
func (c *creator) run(ctx context.Context, e *Engine) {
	for p := range c.tenants {
		e.serveUnknown(ctx, p)
		p.leave()
	}
}

// serveUnknown makes the account of an unknown tenant if a call that waits for it is to
// have one, and answers the calls before that one.
func (e *Engine) serveUnknown(ctx context.Context, p *parkedTenant) {
	ctx, cancel := context.WithTimeout(ctx, e.config.readTimeout)
	defer cancel()
	calls := p.expire(time.Now())
	if len(calls) == 0 {
		return
	}
	refusals, err := e.refusals(ctx, calls)
	if err == nil {
		p.refuse(refusals)
		if len(refusals) == len(calls) {
			return // whoever came since waits for the next turn
		}
		err = e.config.Catalog.CreateByDefault(ctx, p.tenant)
	}
	p.created(e.creationError(p.tenant, err))
}

// refusals returns what the calls get that stand before the first one that makes an
// account: one that spends, and that the default plan can decide. A denial is a decision.
// An error is about the request: wrong requests shall neither fill the configuration with
// tenants nor use up what may be made in a minute. Nothing is refused if the tenant was
// made elsewhere by now, maybe with another plan.
func (e *Engine) refusals(ctx context.Context, calls []*call) ([]error, error) {
	snapshot, err := e.config.Catalog.Newest(ctx, e.snapshot.Load())
	if err != nil {
		return nil, err
	}
	plan := snapshot.Plan(snapshot.Settings().DefaultPlan)
	if plan == nil {
		return nil, catalog.ErrNoDefaultPlan
	}
	newcomer := NewSimulator(snapshot, plan, nil)
	var refusals []error
	for _, c := range calls {
		err := errNoTenant()
		if c.creates() {
			r := c.request
			r.DryRun = true // so that the next one is asked as if it were the first
			_, err = newcomer.Decide(e.clock.estimate(), &r)
		}
		if err == nil {
			break
		}
		refusals = append(refusals, err)
	}
	if len(refusals) == 0 {
		return nil, nil
	}
	_, err = e.config.Catalog.Tenant(ctx, calls[0].request.Tenant)
	switch {
	case err == nil:
		return nil, nil
	case errors.Is(err, catalog.ErrNotFound):
		return refusals, nil
	}
	return nil, err
}

// creationError is what the calls of a tenant get whose creation ended in err; nil for
// nil.
func (e *Engine) creationError(tenant string, err error) error {
	var limited *catalog.CreationLimitedError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, catalog.ErrNoDefaultPlan):
		return errNoTenant()
	case errors.As(err, &limited):
		return &Error{Code: CodeTenantCreationLimited, RetryAfter: limited.RetryAfter, Err: err}
	case pg.OneRowsFault(err):
		e.config.Log.Error("a tenant cannot be created", "tenant", tenant, "error", err)
		return &Error{Code: CodeInternal, Err: err}
	}
	e.config.Log.Warn("a tenant could not be created", "tenant", tenant, "error", err)
	return unavailable(err)
}

func errNoTenant() error {
	return &Error{Code: CodeTenantNotFound, Faults: []Fault{{"tenant", "must name a configured tenant"}}}
}

// creates reports whether the call makes an account for a tenant that has none: only
// what uses something does. A hold or an entry that a request names is none of such a
// tenant.
func (c *call) creates() bool {
	fields := requestFields[c.request.kind()]
	return !c.stand && !c.request.DryRun && fields.charges && !fields.hold
}

// unknownMax bounds the calls of unknown tenants in one worker, so that they leave
// half of it to the others.
func (w *worker) unknownMax() int { return w.callsMax() / 2 }

// awaitCreation parks p, whose tenant is unknown. The worker's lock is held.
func (w *worker) awaitCreation(p *parkedTenant) {
	w.parked[p.tenant] = p
	w.unknown += len(p.calls)
	w.queueCreation(p)
}

// queueCreation queues p for the creator, or if too much waits for it refuses its calls
// and ends the parking. The worker's lock is held.
func (w *worker) queueCreation(p *parkedTenant) {
	select {
	case w.engine.creator.tenants <- p:
	default:
		p.refuseAll(&Error{Code: CodeOverloaded, RetryAfter: time.Second})
		p.end()
	}
}

// expire answers the calls that are past their deadline, forgets those whose callers have
// left, and returns the others.
func (p *parkedTenant) expire(now time.Time) []*call {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := p.calls[:0:0]
	for _, c := range p.calls {
		switch {
		case c.left():
		case now.Before(c.deadline):
			kept = append(kept, c)
		default:
			c.answer(Decision{}, unavailable(errors.New("its tenant was not created in time")))
		}
	}
	w.forget(len(p.calls) - len(kept))
	p.calls = kept
	return kept
}

// refuse answers the first calls of p with what they come to.
func (p *parkedTenant) refuse(refusals []error) {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed {
		return // it has answered all of them
	}
	for i, err := range refusals {
		p.calls[i].answer(Decision{}, err)
	}
	w.forget(len(refusals))
	p.calls = p.calls[len(refusals):]
}

// created makes p an ordinary parked tenant: its account is there and only has to be
// locked. With an error instead, its calls get that.
func (p *parkedTenant) created(err error) {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		p.refuseAll(err)
		return
	}
	w.unknown -= len(p.calls)
	p.unknown = false
}

// refuseAll answers every call of p with err. The worker's lock is held.
func (p *parkedTenant) refuseAll(err error) {
	for _, c := range p.calls {
		c.answer(Decision{}, err)
	}
	p.worker.forget(len(p.calls))
	p.calls = nil
}

// forget counts calls of unknown tenants that were answered.
func (w *worker) forget(calls int) {
	w.waiting -= calls
	w.unknown -= calls
}
