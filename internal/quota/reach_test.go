package quota

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/pgtest"
)

// awaitBack waits until an engine knows that its database is back.
func awaitBack(t testing.TB, e *Engine) {
	t.Helper()
	awaitReach(t, e, "back", func() bool { return !e.reach.isAway() })
}

func awaitAway(t testing.TB, e *Engine) {
	t.Helper()
	awaitReach(t, e, "away", e.reach.isAway)
}

func awaitReach(t testing.TB, e *Engine, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(answerMax); !reached(); <-tick.C {
		if time.Now().After(until) {
			t.Fatalf("after %s the database is not known to be %s", answerMax, what)
		}
	}
}

// known is a reach that has heard of its database, without an engine.
func knownReach() *reach {
	s := newReach(decisionDefault, slog.New(slog.DiscardHandler))
	s.answered()
	return s
}

// One missed look is a stall of this process or of the server's machine.
func TestOnlyManyLooksInARowMakeADatabaseAway(t *testing.T) {
	t.Parallel()
	s := knownReach()
	for range 3 {
		s.Suspect()
		for range looksMin - 1 {
			s.unanswered(false)
		}
		if s.isAway() {
			t.Fatalf("away after %d looks", looksMin-1)
		}
		s.heard()
	}
	s.Suspect()
	for range looksMin {
		s.unanswered(false)
	}
	if !s.isAway() {
		t.Fatalf("not away after %d looks in a row", looksMin)
	}
	gone := s.Gone()
	s.heard()
	if s.isAway() {
		t.Error("away although something was heard")
	}
	select {
	case <-gone:
	default:
		t.Error("whoever waited was not told")
	}
}

// A process that does not get its turn says nothing about the server, which may be on the
// same machine; but what cannot be connected to is not there, however late one looks.
func TestLooksThatComeLateTellNothingUnlessNothingCanBeAsked(t *testing.T) {
	t.Parallel()
	s := knownReach()
	s.Suspect()
	for range 10 * looksMin {
		s.unanswered(true)
	}
	if s.isAway() {
		t.Error("away after late looks")
	}
	s.unasked()
	for range looksMin {
		s.unanswered(true)
	}
	if !s.isAway() {
		t.Error("not away although nothing can be asked")
	}
}

func TestADatabaseThatWasNeverHeardOfIsWaitedFor(t *testing.T) {
	t.Parallel()
	s := newReach(decisionDefault, slog.New(slog.DiscardHandler))
	s.Suspect()
	for range 10 * looksMin {
		s.unanswered(false)
	}
	if s.isAway() {
		t.Error("away before it was there")
	}
}

// A call behind a lock of a live database waits as long as ever: nobody may be told 503,
// or granted something, because a neighbour is slow.
func TestABusyDatabaseIsNotAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	e := w.spooled(t, nil)
	mustDecide(t, e, consume("allows", "calls", 1))
	outsider := w.db.Hold(t, "allows")
	done := make(chan outcome, 1)
	go func() {
		d, err := e.Decide(t.Context(), consume("allows", "calls", 1))
		done <- outcome{d, err}
	}()
	pgtest.AwaitWaiter(t, w.db, done)
	timer := time.NewTimer(4 * decisionDefault)
	defer timer.Stop()
	select {
	case out := <-done:
		t.Fatalf("got %+v while the tenant is locked, want it to wait", out)
	case <-timer.C:
	}
	if e.reach.isAway() {
		t.Error("a database that answers is away")
	}
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	out := <-done
	if out.err != nil || out.decision.Degraded || out.decision.Receipt == nil {
		t.Errorf("after the lock: %+v, %v; want an ordinary answer", out.decision, out.err)
	}
	w.verify(t)
}

// Commits that take longer than the deadline are slow, not lost.
func TestASlowDatabaseIsNotAway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	proxy := pgtest.NewProxy(t, w.db.URL)
	e := w.spooledAt(t, proxy.URL, nil)
	mustDecide(t, e, consume("allows", "calls", 1))
	proxy.Slow(decisionDefault * 11 / 20) // two round trips take longer than the deadline
	started := time.Now()
	d := mustDecide(t, e, consume("allows", "calls", 1))
	if took := time.Since(started); d.Degraded || took < decisionDefault {
		t.Errorf("after %s got %+v, want an ordinary answer after the deadline", took, d)
	}
	w.verify(t)
}

// What was heard on a new connection counts; one that is refused does not.
func TestAConnectionThatIsRefusedMakesTheDatabaseSuspect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	var faults pgtest.Faults
	e := w.spooled(t, func(c *Config) { faults.Attach(&c.Database.Config) })
	mustDecide(t, e, consume("allows", "calls", 1))
	faults.Refuse(errors.New("nobody there"))
	faults.CutAll()
	e.Suspect()
	awaitAway(t, e)
	faults.Refuse(nil)
	awaitBack(t, e)
}
