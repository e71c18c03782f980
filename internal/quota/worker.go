package quota

import (
	"context"
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
	if p != nil && p.idle && p.over() {
		p.end()
		p = nil
	}
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
		if p.idle {
			p.idle = false
			w.engine.parking.push(p)
		}
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
	w.closed = true
	w.signal()
	w.mu.Unlock()
	w.endParked()
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
		for tenant, locked := range r.run(ctx, calls, nil) {
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
