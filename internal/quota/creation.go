package quota

import (
	"context"
	"errors"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pg"
)

// creationsQueuedMax bounds how many unknown tenants wait for their account in one
// engine. A flood of them is refused beyond it; a creation takes a few milliseconds.
const creationsQueuedMax = 256

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
	for t := range c.tenants {
		if t.expire(time.Now()) > 0 {
			t.created(e.create(ctx, t.tenant))
		}
		t.leave()
	}
}

// create makes the account of a tenant, or finds it made.
func (e *Engine) create(ctx context.Context, tenant string) error {
	ctx, cancel := context.WithTimeout(ctx, e.config.readTimeout)
	defer cancel()
	err := e.config.Catalog.CreateByDefault(ctx, tenant)
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
// what spends does.
func (c *call) creates() bool { return !c.stand && !c.request.DryRun }

// unknownMax bounds the calls of unknown tenants in one worker, so that they leave
// half of it to the others.
func (w *worker) unknownMax() int { return w.callsMax() / 2 }

// awaitCreation queues p for the creator, or refuses its calls if too much waits for it.
// The worker's lock is held.
func (w *worker) awaitCreation(p *parkedTenant) {
	select {
	case w.engine.creator.tenants <- p:
		w.parked[p.tenant] = p
		w.unknown += len(p.calls)
	default:
		w.waiting -= len(p.calls)
		for _, c := range p.calls {
			c.answer(Decision{}, &Error{Code: CodeOverloaded, RetryAfter: time.Second})
		}
	}
}

// expire answers the calls that are past their deadline, and returns how many are left.
func (p *parkedTenant) expire(now time.Time) int {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := p.calls[:0:0]
	for _, c := range p.calls {
		if now.Before(c.deadline) {
			kept = append(kept, c)
			continue
		}
		c.answer(Decision{}, unavailable(errors.New("its tenant was not created in time")))
	}
	w.forget(len(p.calls) - len(kept))
	p.calls = kept
	return len(kept)
}

// created makes p an ordinary parked tenant: its account is there and only has to be
// locked. With an error instead, its calls get that.
func (p *parkedTenant) created(err error) {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		w.unknown -= len(p.calls)
		p.unknown = false
		return
	}
	for _, c := range p.calls {
		c.answer(Decision{}, err)
	}
	w.forget(len(p.calls))
	p.calls = nil
}

// forget counts calls of unknown tenants that were answered.
func (w *worker) forget(calls int) {
	w.waiting -= calls
	w.unknown -= calls
}
