package quota

import (
	"context"
	"slices"
	"time"
)

// A tenant that is busy on several instances stays parked: its next calls need not find out
// again that its account is locked elsewhere. After a while one of them does.
const (
	parkedFor     = 250 * time.Millisecond
	parkedCallsOf = 4 // calls that make a batch of their own worth its while
)

// A parkedTenant's account is locked elsewhere, or is to be created first. Its calls
// wait here, in order, for a waiter to get the lock; later ones queue behind them.
type parkedTenant struct {
	worker  *worker
	tenant  string
	calls   []*call
	unknown bool      // to be created
	taken   int       // calls, since it was queued for a waiter last
	idle    bool      // no call waits, and it is not queued
	until   time.Time // when it is parked no more, once it is idle
}

// over reports whether p is to be parked no more once no call of it waits.
func (p *parkedTenant) over() bool { return !time.Now().Before(p.until) }

// park sets calls of a tenant aside until it is created, where it has to be, and a
// waiter has its lock, and with them all that came for it in the meantime.
func (w *worker) park(tenant string, calls []*call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := &parkedTenant{worker: w, tenant: tenant, calls: calls, unknown: calls[0].unknown, until: time.Now().Add(parkedFor)}
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

// take removes up to n calls from p.
func (p *parkedTenant) take(n int) []*call {
	w := p.worker
	w.mu.Lock()
	defer w.mu.Unlock()
	n = min(len(p.calls), n)
	calls := p.calls[:n:n]
	p.calls = p.calls[n:]
	p.taken += n
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
	busy := p.taken >= parkedCallsOf
	p.taken = 0
	switch {
	case len(p.calls) == 0 && busy && !w.closed && !w.failed && !p.over():
		p.idle = true
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

// endParked ends the parking of tenants that are idle and over: of a closed worker all that
// are idle.
func (w *worker) endParked() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.parked {
		if p.idle && (w.closed || p.over()) {
			p.end()
		}
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
		if calls := t.take(e.config.BatchMax); len(calls) > 0 {
			for _, locked := range r.run(ctx, calls, t.take) {
				t.putBack(locked)
			}
		}
		t.leave()
	}
}
