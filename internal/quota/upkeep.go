package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pg"
)

const (
	checkEvery      = 2 * time.Second // between probes that succeed
	partitionsEvery = time.Hour       // between making partitions two months ahead
	clockStepMin    = 2 * time.Second // a database clock that is off by more has been set
	clockWarnedFor  = 10 * time.Minute
)

// errCommitsWait is why nothing is tried while commits hang on a standby: each further
// one that is given up leaves a server process behind that waits on.
var errCommitsWait = errors.New("commits wait for a standby (synchronous_standby_names)")

// upkeep probes the database now and then, so that readiness is known without traffic,
// ends holds of tenants that are idle, removes levels of subjects that are, and keeps
// partitions made ahead and old holds few, until ctx ends. It lets go of parked tenants that
// nobody calls any more.
func (e *Engine) upkeep(ctx context.Context) error {
	r := newRunner(e)
	defer r.close()
	var partitionsAt time.Time
	idle := idleRound{next: time.Now().Add(idleFirst)}
	backoff := backoffFirst
	for ctx.Err() == nil {
		for _, w := range e.workers {
			w.endParked()
		}
		var probe trial
		e.health.begin(&probe)
		clock, err := r.probe(ctx)
		if err == nil {
			err = r.refresh(ctx, clock)
		}
		if err == nil && time.Since(partitionsAt) > partitionsEvery {
			if err = r.ensurePartitions(ctx, clock.At); err == nil {
				err = r.purgeHolds(ctx)
			}
			if err == nil {
				partitionsAt = time.Now()
			}
		}
		if err == nil {
			err = r.sweepHolds(ctx)
		}
		if err == nil {
			r.removeIdle(ctx, &idle, time.Now())
		}
		switch {
		case err == nil:
			e.health.committed(&probe)
			backoff = backoffFirst
			pause(ctx, e.config.upkeepEvery)
		case ctx.Err() != nil:
			e.health.end(&probe)
		default:
			e.health.failed(&probe, err)
			pause(ctx, backoff)
			backoff = min(2*backoff, backoffMax)
		}
	}
	return nil
}

// probe does what a decision needs of the database, but for a tenant: it reads the
// decision clock, locks a row, and commits.
func (r *runner) probe(ctx context.Context) (clock ledger.Clock, err error) {
	if err := r.connect(ctx); err != nil {
		return clock, err
	}
	var waiting bool
	var reads, writes pgx.Batch
	ledger.QueueEdges(&reads, nil, nil, func(c ledger.Clock) { clock = c }, nil)
	queueCommitsWait(&reads, &waiting)
	if err := r.session.Send(ctx, &reads, r.engine.config.readTimeout); err != nil {
		r.session.Close()
		return clock, fmt.Errorf("probe the database: %w", err)
	}
	r.engine.clock.observe(clock.At, r.engine)
	if waiting {
		return clock, errCommitsWait
	}
	pg.Begin(&writes)
	queueProbe(&writes)
	if err := r.session.Commit(ctx, &writes, r.engine.config.readTimeout); err != nil {
		r.session.Rollback(ctx, r.engine.config.readTimeout)
		return clock, fmt.Errorf("probe the database: %w", err)
	}
	return clock, nil
}

// refresh keeps the configuration that is in memory new, for when the database is away.
func (r *runner) refresh(ctx context.Context, clock ledger.Clock) error {
	if known := r.engine.snapshot.Load(); !r.anew && known != nil && known.Version == clock.CatalogVersion {
		return nil
	}
	_, err := r.reload(ctx)
	if err != nil {
		r.session.Close()
	}
	return err
}

// clockWatch follows the database's clock by this process's monotonic one: to predict
// windows, and to notice when the database's clock was set. It decides nothing.
type clockWatch struct {
	mu        sync.Mutex
	at        time.Time // the database's clock when last read
	readAt    time.Time // when that was, on the monotonic clock
	steppedAt time.Time // when a step was last seen; zero if never
	step      time.Duration
}

// estimate returns what the database's clock says about now, in microseconds.
func (w *clockWatch) estimate() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.readAt.IsZero() {
		return time.Now().UnixMicro()
	}
	return w.at.Add(time.Since(w.readAt)).UnixMicro()
}

// observe notes a reading, and reports a clock that was set.
func (w *clockWatch) observe(at time.Time, e *Engine) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.readAt.IsZero() {
		step := at.Sub(w.at) - time.Since(w.readAt)
		if step.Abs() > clockStepMin {
			w.steppedAt, w.step = time.Now(), step
			e.metrics.clockSteps.Inc()
			e.config.Log.Warn("the database's clock was set", "step", step)
		}
	}
	w.at, w.readAt = at, time.Now()
}

// warning says that the clock was set a short while ago, or "".
func (w *clockWatch) warning() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.steppedAt.IsZero() || time.Since(w.steppedAt) > clockWarnedFor {
		return ""
	}
	return "the database's clock was set by " + w.step.Round(time.Millisecond).String() +
		" at " + w.steppedAt.UTC().Format(time.RFC3339)
}
