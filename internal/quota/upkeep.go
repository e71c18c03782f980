package quota

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

const (
	checkEvery      = 2 * time.Second // between looks at the database's clock when idle
	partitionsEvery = time.Hour       // between making partitions two months ahead
	clockStepMin    = 2 * time.Second // a database clock that is off by more has been set
	clockWarnedFor  = 10 * time.Minute
)

// upkeep looks at the database now and then, so that readiness is known without
// traffic, and keeps partitions made ahead, until ctx ends.
func (e *Engine) upkeep(ctx context.Context) error {
	r := newRunner(e)
	defer r.close()
	var partitionsAt time.Time
	for ctx.Err() == nil {
		at, err := r.check(ctx)
		if err == nil && time.Since(partitionsAt) > partitionsEvery {
			if err = r.ensurePartitions(ctx, at); err == nil {
				partitionsAt = time.Now()
			}
		}
		switch {
		case err == nil:
			e.health.reached()
		case ctx.Err() == nil:
			e.health.failed(err)
		}
		pause(ctx, checkEvery)
	}
	return nil
}

// check reads the decision clock.
func (r *runner) check(ctx context.Context) (time.Time, error) {
	if err := r.connect(ctx); err != nil {
		return time.Time{}, err
	}
	var clock ledger.Clock
	var queries pgx.Batch
	ledger.QueueEdges(&queries, nil, nil, func(c ledger.Clock) { clock = c }, nil)
	if err := r.session.Send(ctx, &queries, r.engine.config.readTimeout); err != nil {
		r.session.Close()
		return time.Time{}, err
	}
	r.engine.clock.observe(clock.At, r.engine)
	return clock.At, nil
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

// Health is whether an engine can decide.
type Health struct {
	Ready    bool
	Faults   []string // why it is not ready
	Warnings []string // what someone should look at
}

// Health reports whether the engine can decide now.
func (e *Engine) Health() Health {
	h := e.health.report()
	if warning := e.clock.warning(); warning != "" {
		h.Warnings = append(h.Warnings, warning)
	}
	return h
}

// healthState is what batches and upkeep last saw of the database.
type healthState struct {
	mu        sync.Mutex
	everSeen  bool
	err       error     // nil while the database answers
	failingAt time.Time // since when it does not
	draining  bool
}

func (s *healthState) reached() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.everSeen, s.err = true, nil
}

func (s *healthState) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.failingAt = time.Now()
	}
	s.err = err
}

func (s *healthState) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

func (s *healthState) report() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	var faults []string
	switch {
	case s.err != nil:
		faults = append(faults, "the database has not answered since "+s.failingAt.UTC().Format(time.RFC3339))
	case !s.everSeen:
		faults = append(faults, "the database has not answered yet")
	}
	if s.draining {
		faults = append(faults, "shutting down")
	}
	return Health{Ready: len(faults) == 0, Faults: faults}
}
