package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// failingMax is how long decisions may fail or hang before an instance is not ready.
	// A batch that finds its connection dead is decided on a new one long before.
	failingMax = time.Second
	// quietMin is how long no batch may have failed for a probe to speak for decisions:
	// it fills no page and takes no tenant's lock, so it can succeed where they fail.
	quietMin = 2 * time.Second
	// lookEvery is how soon a hanging commit is noticed without anyone asking.
	lookEvery = 250 * time.Millisecond
	// retrySayEvery limits the lines about attempts that fail while the instance is ready.
	retrySayEvery = time.Second
)

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
	h.Warnings = append(h.Warnings, e.degraded.warnings()...)
	return h
}

// A healthState follows whether decisions commit. Batches and probes are trials. An
// engine is not ready once a trial has hung, or trials have failed, for [failingMax]
// while none succeeded. It is ready again when a batch has committed, or a probe has
// while no batch is tried. It logs each change of that once. It is safe for concurrent
// use.
type healthState struct {
	log *slog.Logger

	mu            sync.Mutex
	phase         phase
	downAt        time.Time // since when it is phaseDown
	trials        map[*trial]struct{}
	failingAt     time.Time // when the first trial began that failed since one succeeded; zero if none did
	batchFailedAt time.Time // when a batch failed last; zero if one committed since
	answeredAt    time.Time // when a commit was acknowledged or a trial refused; zero if never
	err           error     // what a trial failed with last, since one succeeded
	retrySaidAt   time.Time
	draining      bool
}

type phase int

const (
	phaseStarting phase = iota + 1 // nothing was tried for long, nothing has succeeded
	phaseReady
	phaseDown
)

// A trial is one attempt at a transaction that has to write.
type trial struct {
	batch bool      // or a probe
	since time.Time // when it began, or when another one succeeded after that
}

func newHealthState(log *slog.Logger) *healthState {
	return &healthState{log: log, phase: phaseStarting, trials: make(map[*trial]struct{})}
}

// begin counts the time of t from now on, if it does not count already.
func (s *healthState) begin(t *trial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, begun := s.trials[t]; !begun {
		t.since = time.Now()
		s.trials[t] = struct{}{}
	}
}

// end forgets a trial that tells nothing, since it had nothing to write.
func (s *healthState) end(t *trial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.trials, t)
}

// failed notes why a trial ended.
func (s *healthState) failed(t *trial, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if t.since.IsZero() {
		t.since = now // it waited for a lock until then
	}
	delete(s.trials, t)
	if s.failingAt.IsZero() || t.since.Before(s.failingAt) {
		s.failingAt = t.since
	}
	if t.batch {
		s.batchFailedAt = now
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		s.answeredAt = now
	}
	s.err = err
	s.look(now)
}

// committed notes that a trial has written. The success of a probe counts for nothing
// while batches are tried: what they meet is the truth.
func (s *healthState) committed(t *trial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	delete(s.trials, t)
	if !t.batch && s.busy(now) {
		return
	}
	for other := range s.trials {
		other.since = now
	}
	s.failingAt, s.batchFailedAt, s.err, s.answeredAt = time.Time{}, time.Time{}, nil, now
	switch s.phase {
	case phaseStarting:
		s.log.Info("ready")
	case phaseDown:
		s.log.Info("ready again", "not_ready_for", now.Sub(s.downAt).Round(time.Millisecond))
	}
	s.phase = phaseReady
}

// busy reports whether a batch is under way or has just failed.
func (s *healthState) busy(now time.Time) bool {
	for t := range s.trials {
		if t.batch {
			return true
		}
	}
	return !s.batchFailedAt.IsZero() && now.Sub(s.batchFailedAt) < quietMin
}

// oldest is when the trial began that is under way for longest; zero for none.
func (s *healthState) oldest() (since time.Time) {
	for t := range s.trials {
		if since.IsZero() || t.since.Before(since) {
			since = t.since
		}
	}
	return since
}

// look notices that trials have failed or hung for too long.
func (s *healthState) look(now time.Time) {
	since := s.oldest()
	if since.IsZero() || !s.failingAt.IsZero() && s.failingAt.Before(since) {
		since = s.failingAt
	}
	if s.phase == phaseDown || since.IsZero() || now.Sub(since) < failingMax {
		return
	}
	s.phase, s.downAt = phaseDown, now
	if s.err != nil {
		s.log.Warn("not ready", "cause", s.cause(), "error", s.err)
	} else {
		s.log.Warn("not ready", "cause", s.cause())
	}
}

// watch notices without anyone asking, until ctx ends.
func (s *healthState) watch(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			s.mu.Lock()
			s.look(now)
			s.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// retryLevel is how loud a line about an attempt may be that is made again: someone
// should see it once, and an outage has a line of its own.
func (s *healthState) retryLevel() slog.Level {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.phase == phaseDown || now.Sub(s.retrySaidAt) < retrySayEvery {
		return slog.LevelDebug
	}
	s.retrySaidAt = now
	return slog.LevelWarn
}

// refuses reports whether the server is there and lets nothing be decided: it has said so
// for [failingMax].
func (s *healthState) refuses() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var refused *pgconn.PgError
	return s.phase == phaseDown && (errors.As(s.err, &refused) || errors.Is(s.err, errCommitsWait))
}

func (s *healthState) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

func (s *healthState) report() Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.look(time.Now())
	var faults []string
	if s.phase != phaseReady {
		faults = append(faults, s.cause())
	}
	if s.draining {
		faults = append(faults, "shutting down")
	}
	return Health{Ready: len(faults) == 0, Faults: faults}
}

// cause is what the database said last, or since when it says nothing.
func (s *healthState) cause() string {
	var refused *pgconn.PgError
	switch {
	case errors.As(s.err, &refused):
		return fmt.Sprintf("the database says: %s (SQLSTATE %s)", refused.Message, refused.Code)
	case errors.Is(s.err, errCommitsWait):
		return errCommitsWait.Error()
	case s.answeredAt.IsZero():
		return "the database has not answered yet"
	case s.err == nil && !s.oldest().IsZero():
		return "a transaction has waited for the database since " + s.oldest().UTC().Format(time.RFC3339)
	default:
		return "the database has not answered since " + s.answeredAt.UTC().Format(time.RFC3339)
	}
}
