package quota

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pg"
)

const (
	// A call that has waited for a fifth of its decision deadline makes the engine ask the
	// server whether it is there. The rest of the deadline is looked at in eight parts.
	suspectParts  = 5
	lookParts     = 10
	looksMin      = lookParts - lookParts/suspectParts
	pingMax       = 2 * time.Second        // one question; then on another connection, for which as long as for any
	pingEvery     = 250 * time.Millisecond // between questions that fail
	deadlineFloor = 10 * time.Millisecond  // looks closer than a millisecond would see nothing
)

// A reach tells a database that is away from one that is busy. Away means that nobody in
// this engine has heard from the server since a question of its own was asked, on a
// connection that nothing else waits on, and that this engine has looked for the answer
// again and again for most of the decision deadline. So a lock, a queue or a slow disk is
// not away: the server answers the question beside them. Nor is a machine that is overloaded:
// a look that came late says that this process did not get its turn either, and tells
// something only if the question was not just unanswered, but could not be asked.
//
// Whatever is heard ends it at once. An engine whose questions were never answered knows
// nothing to answer by, and calls wait for its database as they do for a busy one. It is
// safe for concurrent use.
type reach struct {
	deadline time.Duration
	log      *slog.Logger

	ask    chan struct{} // one: to ask
	look   chan struct{} // one: to look for the answer
	asking atomic.Bool   // a question is open; changes under mu
	gone   atomic.Pointer[chan struct{}]

	known atomic.Bool // a question was answered once

	mu     sync.Mutex
	looks  int       // without an answer
	failed bool      // a question could not be asked since
	awayAt time.Time // since when the database is away; zero while it is not
}

func newReach(deadline time.Duration, log *slog.Logger) *reach {
	s := &reach{
		deadline: max(deadline, deadlineFloor), log: log,
		ask: make(chan struct{}, 1), look: make(chan struct{}, 1),
	}
	s.begin()
	return s
}

// begin makes the channel that is closed when the database is away next.
func (s *reach) begin() {
	gone := make(chan struct{})
	s.gone.Store(&gone)
}

// Gone returns a channel that is closed once the database is away. When it is back there
// is another one.
func (s *reach) Gone() <-chan struct{} { return *s.gone.Load() }

// isAway reports whether the database is away now.
func (s *reach) isAway() bool {
	select {
	case <-s.Gone():
		return true
	default:
		return false
	}
}

// suspectAfter is how long a call waits before it suspects something.
func (s *reach) suspectAfter() time.Duration { return s.deadline / suspectParts }

// Suspect makes the engine ask the server whether it is there, unless it does already.
func (s *reach) Suspect() {
	if s.asking.Load() {
		return
	}
	s.mu.Lock()
	s.looks, s.failed = 0, false
	s.asking.Store(true)
	s.mu.Unlock()
	signalOne(s.ask)
	signalOne(s.look)
}

// ended notes how an attempt ended that needed the server.
func (s *reach) ended(err error) {
	if pg.Answered(err) {
		s.heard()
	} else {
		s.Suspect()
	}
}

// heard notes that the server has answered something.
func (s *reach) heard() {
	if !s.asking.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asking.Store(false)
	s.looks = 0
	if s.awayAt.IsZero() {
		return
	}
	s.log.Info("the database is back", "away_for", time.Since(s.awayAt).Round(time.Millisecond))
	s.awayAt = time.Time{}
	s.begin()
}

// answered notes that a question was.
func (s *reach) answered() {
	s.known.Store(true)
	s.heard()
}

// unasked notes that a question could not be asked: no connection is to be had, or it has
// ended.
func (s *reach) unasked() {
	s.Suspect()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
}

// unanswered counts a look that found no answer, and says whether to look on.
func (s *reach) unanswered(late bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asking.Load() || !s.awayAt.IsZero() {
		return false
	}
	if late && !s.failed || !s.known.Load() {
		return true
	}
	if s.looks++; s.looks < looksMin {
		return true
	}
	s.awayAt = time.Now()
	close(*s.gone.Load())
	s.log.Warn("the database is away: on_error of the limits decides", "unanswered_for", s.deadline)
	return false
}

// watch looks for answers until ctx ends.
func (s *reach) watch(ctx context.Context) {
	for {
		select {
		case <-s.look:
		case <-ctx.Done():
			return
		}
		every := s.deadline / lookParts
		tick := time.NewTicker(every)
		before := time.Now()
		for more := true; more; {
			select {
			case <-tick.C:
				now := time.Now()
				more = s.unanswered(now.Sub(before) > every*3/2)
				before = now
			case <-ctx.Done():
				more = false
			}
		}
		tick.Stop()
	}
}

// run asks the server when it is suspected, and now and then, so that its connection is
// known to be good, until ctx ends.
func (s *reach) run(ctx context.Context, e *Engine) {
	r := newRunner(e)
	defer r.close()
	tick := time.NewTicker(checkEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		err := r.ping(ctx)
		for backoff := backoffFirst; !pg.Answered(err) && ctx.Err() == nil; backoff = min(2*backoff, pingEvery) {
			s.unasked()
			pause(ctx, backoff)
			err = r.ping(ctx)
		}
		if ctx.Err() == nil {
			s.answered()
		}
		select {
		case <-s.ask:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// ping makes one round trip that reads nothing and waits for no lock.
func (r *runner) ping(ctx context.Context) error {
	if err := r.connect(ctx); err != nil {
		return err
	}
	var queries pgx.Batch
	queuePing(&queries)
	err := r.session.Send(ctx, &queries, pingMax)
	if err != nil {
		r.session.Close()
	}
	return err
}

// signalOne wakes whoever listens on a channel of size one, once.
func signalOne(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
