package quota

import (
	"context"
	"slices"
	"sync"
	"time"
)

// A worker owns the calls of the tenants that hash to it, in the order they came.
// While its runner commits one batch, the next one gathers in queue: there is no timer,
// so a call on an idle engine never waits.
type worker struct {
	engine *Engine
	wake   chan struct{} // one: a wake-up that nobody has seen yet

	mu      sync.Mutex
	queue   []*call
	parked  map[string]*parkedTenant
	waiting int // calls in queue and in parked
	unknown int // those of them whose tenant is to be created
	closed  bool
	failed  bool // the engine stopped before the queue was empty
}

// A parkedTenant's account is locked elsewhere, or is to be created first. Its calls
// wait here, in order, for a waiter to get the lock; later ones queue behind them.
type parkedTenant struct {
	worker  *worker
	tenant  string
	calls   []*call
	unknown bool // to be created
}

func newWorker(e *Engine) *worker {
	return &worker{engine: e, wake: make(chan struct{}, 1), parked: make(map[string]*parkedTenant)}
}

// submit queues c, or says that the queue is full or closed.
func (w *worker) submit(c *call) *Error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return &Error{Code: CodeShuttingDown, RetryAfter: time.Second}
	}
	p := w.parked[c.request.Tenant]
	unknown := p != nil && p.unknown
	if w.waiting >= w.callsMax() || unknown && w.unknown >= w.unknownMax() {
		return &Error{Code: CodeOverloaded, RetryAfter: time.Second}
	}
	w.waiting++
	if unknown {
		w.unknown++
	}
	if p != nil {
		p.calls = append(p.calls, c)
		return nil
	}
	w.queue = append(w.queue, c)
	w.signal()
	return nil
}

// callsMax bounds the calls that wait in one worker.
func (w *worker) callsMax() int { return w.engine.config.QueueMax / len(w.engine.workers) }

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// close refuses further calls and lets run end once the queue is empty.
func (w *worker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.signal()
}

// run commits batches until the worker is closed and nothing is queued or parked.
func (w *worker) run(ctx context.Context) {
	r := newRunner(w.engine)
	defer r.close()
	for {
		calls, ended := w.next()
		switch {
		case ended:
			return
		case ctx.Err() != nil:
			refuse(calls, ctx.Err())
			w.fail(ctx.Err())
			return
		case len(calls) == 0:
			select {
			case <-w.wake:
			case <-ctx.Done():
			}
			continue
		}
		for tenant, locked := range r.run(ctx, calls, false) {
			w.park(tenant, locked)
		}
	}
}

// next takes the calls of one batch. ended is true when there will be no more.
func (w *worker) next() (calls []*call, ended bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(w.queue), w.engine.config.BatchMax)
	calls = w.queue[:n:n]
	w.queue = w.queue[n:]
	if len(w.queue) == 0 {
		w.queue = nil // the batch owns the array
	}
	w.waiting -= n
	return calls, n == 0 && w.closed && len(w.parked) == 0
}

// park sets calls of a tenant aside until it is created, where it has to be, and a
// waiter has its lock, and with them all that came for it in the meantime.
func (w *worker) park(tenant string, calls []*call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &parkedTenant{worker: w, tenant: tenant, calls: calls, unknown: calls[0].unknown}
	w.waiting += len(calls)
	w.queue = slices.DeleteFunc(w.queue, func(c *call) bool {
		if c.request.Tenant == tenant {
			p.calls = append(p.calls, c)
			return true
		}
		return false
	})
	if p.unknown {
		w.awaitCreation(p)
		return
	}
	w.parked[tenant] = p
	w.engine.metrics.parked.Inc()
	w.engine.parking.push(p)
}

// take removes the calls of one batch from p.
func (p *parkedTenant) take() []*call {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	n := min(len(p.calls), w.engine.config.BatchMax)
	calls := p.calls[:n:n]
	p.calls = p.calls[n:]
	w.waiting -= n
	return calls
}

// putBack returns calls that could not be run to the head of p.
func (p *parkedTenant) putBack(calls []*call) {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed {
		refuse(calls, nil)
		return
	}
	w.waiting += len(calls)
	p.calls = append(slices.Clone(calls), p.calls...)
}

// leave ends the parking if no call is left; else it queues the tenant for a waiter again,
// or for the creator if it is still to be created. It does so under the lock: once a worker
// has failed nothing is left to queue, and the waiters may be closed.
func (p *parkedTenant) leave() {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case len(p.calls) == 0:
		p.end()
	case p.unknown:
		w.queueCreation(p)
	default:
		w.engine.parking.push(p)
	}
}

// end ends the parking. The worker's lock is held.
func (p *parkedTenant) end() {
	w := p.worker
	delete(w.parked, p.tenant)
	if w.closed {
		w.signal()
	}
}

// fail answers whatever is queued when the engine has to stop before its queue is
// empty.
func (w *worker) fail(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := w.queue
	for _, p := range w.parked {
		calls = append(calls, p.calls...)
		p.calls = nil
	}
	w.queue, w.waiting, w.unknown, w.failed = nil, 0, 0, true
	refuse(calls, cause)
}

// refuse answers calls that a stopping engine did not get to.
func refuse(calls []*call, cause error) {
	for _, c := range calls {
		c.answer(Decision{}, &Error{Code: CodeShuttingDown, RetryAfter: time.Second, Err: cause})
	}
}

// parking is where tenants wait whose accounts are locked elsewhere, and the waiters
// that each take one of those locks, on a connection of their own, in the server's
// fair queue.
type parking struct {
	tenants chan *parkedTenant
}

// newParking makes room for one tenant per call that can be queued, so that push never
// blocks.
func newParking(callsMax int) *parking {
	return &parking{tenants: make(chan *parkedTenant, callsMax)}
}

func (p *parking) push(t *parkedTenant) { p.tenants <- t }

// close ends the waiters; nothing may be pushed after it.
func (p *parking) close() { close(p.tenants) }

// run serves parked tenants until close.
func (p *parking) run(ctx context.Context, e *Engine) {
	r := newRunner(e)
	defer r.close()
	for t := range p.tenants {
		if calls := t.take(); len(calls) > 0 {
			for _, locked := range r.run(ctx, calls, true) {
				t.putBack(locked)
			}
		}
		t.leave()
	}
}
