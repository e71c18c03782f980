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
)

// Bounds of an engine that a Config leaves at zero.
const (
	workersDefault  = 2                // two committers saturate a small database
	waitersDefault  = 4                // connections that wait for locks held elsewhere
	queueMaxDefault = 8192             // calls waiting in one engine
	batchMaxDefault = 512              // calls in one transaction
	deadlineDefault = 5 * time.Second  // a call not yet in a batch by then is refused
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

	// Tests of lost replies shorten these; zero takes the default.
	readTimeout, commitTimeout, resolveTimeout time.Duration
}

// Validate reports what is missing or out of bounds.
func (c Config) Validate() error {
	var errs []error
	if c.Database == nil || c.Catalog == nil || c.Log == nil || c.Metrics == nil {
		errs = append(errs, errors.New("engine: Database, Catalog, Log and Metrics are required"))
	}
	if c.Workers < 0 || c.Waiters < 0 || c.QueueMax < 0 || c.BatchMax < 0 || c.Deadline < 0 {
		errs = append(errs, errors.New("engine: Workers, Waiters, QueueMax, BatchMax and Deadline must not be negative"))
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
	c.readTimeout = orDefault(c.readTimeout, readTimeoutMax)
	c.commitTimeout = orDefault(c.commitTimeout, commitTimeMax)
	c.resolveTimeout = orDefault(c.resolveTimeout, resolveTimeMax)
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
		tenants: cache.New[string, known](cache.Options{EntriesMax: tenantsCached}),
	}
	e.denials = newDenialLog(e)
	if c.RememberDenials {
		e.exhausted = newExhaustion()
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
		e.health.watch(ctx)
		return nil
	})
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
	return e.do(ctx, &call{request: r})
}

// Limits returns how every limit of the tenant's plan stands, from the state that
// enforces them. Limits that count per subject are included only with a subject.
func (e *Engine) Limits(ctx context.Context, tenant, subject string) (Decision, error) {
	return e.do(ctx, &call{request: Request{Tenant: tenant, Subject: subject}, stand: true})
}

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

// start queues c with the worker of its tenant.
func (e *Engine) start(c *call) error {
	c.deadline = time.Now().Add(e.config.Deadline)
	c.done = make(chan outcome, 1) // one: a batch never waits for a caller who left
	w := e.workers[maphash.String(e.seed, c.request.Tenant)%uint64(len(e.workers))]
	if err := w.submit(c); err != nil {
		e.metrics.refused(err)
		return err
	}
	return nil
}

// await waits for the outcome of a call that was started, at most until its deadline.
func (e *Engine) await(ctx context.Context, c *call) (Decision, error) {
	timer := time.NewTimer(time.Until(c.deadline))
	defer timer.Stop()
	for {
		select {
		case out := <-c.done:
			e.metrics.answered(c, &out)
			return out.decision, out.err
		case <-ctx.Done():
			c.leave()
			return Decision{}, ctx.Err()
		case <-timer.C:
			if c.abandon() {
				err := unavailable(errors.New("not decided in time"))
				e.metrics.refused(err)
				return Decision{}, err
			}
			// It is in a batch: the batch ends within bounds of its own.
		}
	}
}

// A call is one request on its way through the engine.
type call struct {
	request  Request
	stand    bool // report the limits, decide nothing
	unknown  bool // left by a batch since its tenant has no account yet
	deadline time.Time
	done     chan outcome
	state    atomic.Int32
}

const (
	callQueued int32 = iota
	callTaken
	callAbandoned
)

type outcome struct {
	decision Decision
	err      error
}

// take claims the call for a batch; false if its caller has left.
func (c *call) take() bool {
	return c.state.CompareAndSwap(callQueued, callTaken) || c.state.Load() == callTaken
}

// abandon gives the call up; false if a batch has it already.
func (c *call) abandon() bool { return c.state.CompareAndSwap(callQueued, callAbandoned) }

// leave says that the call's caller has gone. The batch that has it, if one does, goes on;
// no other takes it up again.
func (c *call) leave() { c.state.Store(callAbandoned) }

// left reports whether nobody waits for the call's answer.
func (c *call) left() bool { return c.state.Load() == callAbandoned }

// answer delivers the outcome.
func (c *call) answer(d Decision, err error) { c.done <- outcome{decision: d, err: err} }

func unavailable(cause error) *Error {
	return &Error{Code: CodeUnavailable, RetryAfter: time.Second, Err: cause}
}
