package quota

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/cache"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/spool"
)

// Bounds of an engine that a Config leaves at zero.
const (
	workersDefault  = 2               // two committers saturate a small database
	waitersDefault  = 4               // connections that wait for locks held elsewhere
	queueMaxDefault = 8192            // calls waiting in one engine
	batchMaxDefault = 512             // calls in one transaction
	deadlineDefault = 5 * time.Second // a call not decided by then is refused
	decisionDefault = 250 * time.Millisecond
	tenantsCached   = 100_000          // tenants whose plan an instance remembers
	readTimeoutMax  = 5 * time.Second  // the read round trip of a batch
	commitTimeMax   = 10 * time.Second // the write round trip; then the outcome is looked up
	resolveTimeMax  = 10 * time.Second // looking up a lost commit; then it stays unknown
	drainTimeout    = 20 * time.Second // what Run waits for queued calls when it ends
)

// Config is what an Engine needs. Workers, Waiters, QueueMax, BatchMax and Deadline may
// be zero for their defaults.
type Config struct {
	Database *pgx.ConnConfig // the service login
	Pooler   bool            // Database leads to a pooler in transaction mode
	Catalog  *catalog.Store
	Log      *slog.Logger
	Metrics  prometheus.Registerer

	Workers  int
	Waiters  int
	QueueMax int
	BatchMax int
	Deadline time.Duration

	// RememberDenials lets an engine give a denial again for up to a second without the
	// database. Another instance may have given units back in that second.
	RememberDenials bool

	// DecisionDeadline is how long a call waits for a database that is away before its
	// limits' on_error decides; 250 ms if zero. One that is busy is waited for until
	// Deadline.
	DecisionDeadline time.Duration
	// Spool keeps what is granted without the database until it is in the ledger. Without
	// one nothing is.
	Spool *spool.Spool

	// Tests of lost replies shorten these; zero takes the default.
	readTimeout, commitTimeout, resolveTimeout time.Duration
	// Tests that say when a hold's end is written leave nothing to the background.
	upkeepEvery time.Duration
	// localClock is the clock of local limits, in µs; nil for the real one.
	localClock func() int64
}

// Validate reports what is missing or out of bounds.
func (c Config) Validate() error {
	var errs []error
	if c.Database == nil || c.Catalog == nil || c.Log == nil || c.Metrics == nil {
		errs = append(errs, errors.New("engine: Database, Catalog, Log and Metrics are required"))
	}
	if c.Workers < 0 || c.Waiters < 0 || c.QueueMax < 0 || c.BatchMax < 0 || c.Deadline < 0 || c.DecisionDeadline < 0 {
		errs = append(errs, errors.New("engine: Workers, Waiters, QueueMax, BatchMax, Deadline and DecisionDeadline must not be negative"))
	}
	return errors.Join(errs...)
}

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// An Engine decides requests in batches, each one transaction. It is safe for
// concurrent use. Run must be running for Decide to be answered.
type Engine struct {
	config    Config
	metrics   *metrics
	seed      maphash.Seed
	workers   []*worker
	parking   *parking
	creator   *creator
	snapshot  atomic.Pointer[catalog.Snapshot]
	tenants   *cache.Cache[string, known]
	denials   *denialLog
	exhausted *exhaustion // nil without RememberDenials
	clock     clockWatch
	health    *healthState
	reach     *reach
	degraded  *degrader
	timers    sync.Pool // of *time.Timer, stopped: one for each call that waits
}

// NewEngine makes an engine that has not started yet.
func NewEngine(c Config) (*Engine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.Workers = orDefault(c.Workers, workersDefault)
	c.Waiters = orDefault(c.Waiters, waitersDefault)
	c.QueueMax = orDefault(c.QueueMax, queueMaxDefault)
	c.BatchMax = orDefault(c.BatchMax, batchMaxDefault)
	c.Deadline = orDefault(c.Deadline, deadlineDefault)
	c.DecisionDeadline = min(orDefault(c.DecisionDeadline, decisionDefault), c.Deadline)
	c.readTimeout = orDefault(c.readTimeout, readTimeoutMax)
	c.commitTimeout = orDefault(c.commitTimeout, commitTimeMax)
	c.resolveTimeout = orDefault(c.resolveTimeout, resolveTimeMax)
	c.upkeepEvery = orDefault(c.upkeepEvery, checkEvery)
	m, err := newMetrics(c.Metrics)
	if err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	e := &Engine{
		config:  c,
		metrics: m,
		seed:    maphash.MakeSeed(),
		parking: newParking(c.QueueMax + c.Workers*c.BatchMax),
		creator: newCreator(),
		health:  newHealthState(c.Log),
		reach:   newReach(c.DecisionDeadline, c.Log),
		tenants: cache.New[string, known](cache.Options{EntriesMax: tenantsCached}),
	}
	e.timers.New = func() any { return time.NewTimer(time.Hour) }
	e.denials = newDenialLog(e)
	if c.RememberDenials {
		e.exhausted = newExhaustion()
	}
	if e.degraded, err = newDegrader(e); err != nil {
		return nil, fmt.Errorf("engine: %w", err)
	}
	for range c.Workers {
		e.workers = append(e.workers, newWorker(e))
	}
	return e, nil
}

// Run serves until ctx ends, then refuses new calls, answers the queued ones, and
// returns. It waits for them at most 20 seconds.
func (e *Engine) Run(ctx context.Context) error {
	working, abort := context.WithCancel(context.WithoutCancel(ctx))
	defer abort()
	var group errgroup.Group
	var committers, creators, waiters sync.WaitGroup
	for _, w := range e.workers {
		committers.Add(1)
		group.Go(func() error {
			defer committers.Done()
			w.run(working)
			return nil
		})
	}
	for range e.config.Waiters {
		waiters.Add(1)
		group.Go(func() error {
			defer waiters.Done()
			e.parking.run(working, e)
			return nil
		})
	}
	creators.Add(1)
	group.Go(func() error {
		defer creators.Done()
		e.creator.run(working, e)
		return nil
	})
	group.Go(func() error { return e.upkeep(ctx) })
	group.Go(func() error {
		e.reach.run(ctx, e)
		return nil
	})
	for _, run := range []func(context.Context){e.health.watch, e.reach.watch, e.degraded.run} {
		group.Go(func() error {
			run(ctx)
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		e.health.drain()
		timer := time.AfterFunc(drainTimeout, abort)
		defer timer.Stop()
		for _, w := range e.workers {
			w.close()
		}
		committers.Wait()
		e.creator.close()
		creators.Wait() // it hands what it has made to the waiters
		e.parking.close()
		waiters.Wait()
		e.denials.close()
		return nil
	})
	group.Go(func() error {
		e.denials.run(context.WithoutCancel(ctx))
		return nil
	})
	return group.Wait()
}

// Decide answers r. The answer leaves only after its commit, so an allowed decision is
// in the ledger; a denial may be one that was decided up to a second ago. An error is an *[Error], or ctx's when the caller is gone: the request
// may then have been decided all the same, and the same key gives the answer.
func (e *Engine) Decide(ctx context.Context, r Request) (Decision, error) {
	if err := r.Validate(); err != nil {
		return Decision{}, err
	}
	if d, ok := e.recall(&r); ok {
		return d, nil
	}
	if granted, ok := e.degraded.recorded(&r); ok {
		return granted.Decision, granted.Err
	}
	return e.do(ctx, &call{request: r})
}

// Limits returns how every limit of the tenant's plan stands, from the state that
// enforces them. Limits that count per subject are included only with a subject.
func (e *Engine) Limits(ctx context.Context, tenant, subject string) (Decision, error) {
	return e.do(ctx, &call{request: Request{Tenant: tenant, Subject: subject}, stand: true})
}

// Gone returns a channel that is closed once the database is away. When it is back there
// is another one.
func (e *Engine) Gone() <-chan struct{} { return e.reach.Gone() }

// Suspect makes the engine find out whether the database is away.
func (e *Engine) Suspect() { e.reach.Suspect() }

// A Result is what a request of [Engine.DecideAll] got: a decision, or an error as
// [Engine.Decide] returns it.
type Result struct {
	Decision Decision
	Err      error
}

// DecideAll answers each request as Decide would if they were sent one after another
// without waiting: those of one tenant are decided in their order. The results are in
// the order of the requests.
func (e *Engine) DecideAll(ctx context.Context, requests []Request) []Result {
	results := make([]Result, len(requests))
	calls := make([]*call, len(requests))
	gaveBack := false // by one of them, which later ones must see
	for i := range requests {
		if results[i].Err = requests[i].Validate(); results[i].Err != nil {
			continue
		}
		gaveBack = gaveBack || !requests[i].spends()
		if d, ok := e.recall(&requests[i]); ok && !gaveBack {
			results[i].Decision = d
			continue
		}
		if granted, ok := e.degraded.recorded(&requests[i]); ok {
			results[i] = granted
			continue
		}
		calls[i] = &call{request: requests[i]}
		results[i].Err = e.start(calls[i])
	}
	for i, c := range calls {
		if c != nil && results[i].Err == nil {
			results[i].Decision, results[i].Err = e.await(ctx, c)
		}
	}
	return results
}

func (e *Engine) do(ctx context.Context, c *call) (Decision, error) {
	if err := e.start(c); err != nil {
		return Decision{}, err
	}
	return e.await(ctx, c)
}

// start queues c with the worker of its tenant, unless the database is away: then nothing
// is to be had of it, and c must not fill the queue.
func (e *Engine) start(c *call) error {
	now := time.Now()
	c.suspectAt, c.degradeAt, c.deadline = now.Add(e.reach.suspectAfter()), now.Add(e.config.DecisionDeadline), now.Add(e.config.Deadline)
	c.done = make(chan struct{}, 1)
	if c.away = e.reach.isAway(); c.away {
		return nil
	}
	w := e.workers[maphash.String(e.seed, c.request.Tenant)%uint64(len(e.workers))]
	if err := w.submit(c); err != nil {
		e.metrics.refused(err)
		return err
	}
	return nil
}

// await waits for the outcome of a call that was started, at most until its deadline, and
// for less if the database is away.
func (e *Engine) await(ctx context.Context, c *call) (Decision, error) {
	if c.away {
		return e.degrade(ctx, c, errAway)
	}
	gone := e.reach.Gone()
	timer := e.timers.Get().(*time.Timer)
	timer.Reset(time.Until(c.suspectAt))
	defer e.stop(timer)
	for {
		select {
		case <-c.done:
			return e.told(c)
		case <-ctx.Done():
			c.leave()
			return Decision{}, ctx.Err()
		case <-gone:
			if c.abandon() {
				return e.degrade(ctx, c, errAway)
			}
			gone = nil // its commit was sent: it ends within bounds of its own
		case now := <-timer.C:
			if now.Before(c.deadline) {
				e.reach.Suspect()
				if !now.Before(c.degradeAt) && e.health.refuses() && c.abandon() {
					return e.degrade(ctx, c, errRefuses)
				}
				timer.Reset(min(max(time.Millisecond, e.config.DecisionDeadline-e.reach.suspectAfter()), c.deadline.Sub(now)))
			} else if queued := c.state.Load() == callQueued; c.abandon() {
				return e.late(c, queued)
			}
		}
	}
}

// stop keeps a timer for another call. Nothing of this one is left in its channel then.
func (e *Engine) stop(t *time.Timer) {
	t.Stop()
	e.timers.Put(t)
}

// told counts and returns the outcome of a call that is done.
func (e *Engine) told(c *call) (Decision, error) {
	e.metrics.answered(c, &c.outcome)
	return c.outcome.decision, c.outcome.err
}

// late answers a call that was given up at its deadline, and says what it waited for.
func (e *Engine) late(c *call, queued bool) (Decision, error) {
	cause := errors.New("not decided in time")
	if last := c.lastError.Load(); last != nil {
		cause = fmt.Errorf("%w: %v", cause, *last)
	} else if queued {
		cause = fmt.Errorf("%w: no batch took it", cause)
	}
	err := unavailable(cause)
	e.metrics.refused(err)
	return Decision{}, err
}

// A call is one request on its way through the engine.
type call struct {
	request   Request
	stand     bool   // report the limits, decide nothing
	unknown   bool   // left by a batch since its tenant has no account yet
	away      bool   // not queued, since the database was away
	grant     *grant // what was granted without the database and is entered now; nil for a caller's
	suspectAt time.Time
	degradeAt time.Time // after the decision deadline
	deadline  time.Time
	outcome   outcome       // once done has been sent to
	done      chan struct{} // one: a batch never waits for a caller who left
	state     atomic.Int32
	lastError atomic.Pointer[error] // of the last attempt at a batch with it; nil if none failed
}

const (
	callQueued int32 = iota
	callTaken
	callSent // decided in a batch whose commit is sent, and did not fail for certain
	callAbandoned
)

type outcome struct {
	decision Decision
	err      error
}

// take claims the call for a batch; false if its caller has left.
func (c *call) take() bool {
	return c.state.CompareAndSwap(callQueued, callTaken) || c.state.Load() != callAbandoned
}

// send claims the call for a commit; false if its caller has left. From then on the batch
// answers it, and nothing else does until unsend.
func (c *call) send() bool {
	return c.state.CompareAndSwap(callTaken, callSent) || c.state.Load() == callSent
}

// unsend says that nothing of the batch came to be. The call may be given up again.
func (c *call) unsend() { c.state.CompareAndSwap(callSent, callTaken) }

// abandon gives the call up; false if a commit that may hold it was sent.
func (c *call) abandon() bool {
	return c.state.CompareAndSwap(callQueued, callAbandoned) || c.state.CompareAndSwap(callTaken, callAbandoned)
}

// leave says that the call's caller has gone. The batch that has it, if one does, goes on;
// no other takes it up again.
func (c *call) leave() { c.state.Store(callAbandoned) }

// left reports whether nobody waits for the call's answer.
func (c *call) left() bool { return c.state.Load() == callAbandoned }

// answer delivers the outcome.
func (c *call) answer(d Decision, err error) {
	c.outcome = outcome{decision: d, err: err}
	c.done <- struct{}{}
}

func unavailable(cause error) *Error {
	return &Error{Code: CodeUnavailable, RetryAfter: time.Second, Err: cause}
}
