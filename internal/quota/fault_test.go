package quota

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/pgtest"
)

// faulty starts an engine whose connections fail as faults is told, with bounds short
// enough to watch them end.
func (w *world) faulty(t *testing.T, faults *pgtest.Faults) *Engine {
	t.Helper()
	return w.engine(t, func(c *Config) {
		c.Workers = 1
		c.readTimeout, c.commitTimeout, c.resolveTimeout = time.Second, time.Second, 2*time.Second
		faults.Attach(&c.Database.Config)
	})
}

// commitRound is in the round trip that ends in the commit, and in no other.
const commitRound = "update quotad.account"

// The reply to a commit can be lost in every way; the caller still gets the truth and
// the ledger holds the request once.
func TestALostCommitReplyIsResolved(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault pgtest.Fault
	}{
		{"cut after the commit was applied", pgtest.Fault{OnStatement: commitRound, Deliver: true}},
		{"cut before the commit arrived", pgtest.Fault{OnStatement: commitRound}},
		{"silence after the commit was applied", pgtest.Fault{OnStatement: commitRound, Deliver: true, Hang: true}},
		{"silence before the commit arrived", pgtest.Fault{OnStatement: commitRound, Hang: true}},
		{"cut while reading", pgtest.Fault{OnStatement: "for update of a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, callsConfig)
			var faults pgtest.Faults
			e := w.faulty(t, &faults)
			mustDecide(t, e, consume("acme", "calls", 1))
			struck := faults.Arm(c.fault)
			d := mustDecide(t, e, consume("acme", "calls", 2))
			select {
			case <-struck:
			default:
				t.Fatal("the fault did not strike")
			}
			if !d.Allowed {
				t.Errorf("got %+v", d)
			}
			if n := w.requestIDs(t, "acme")[d.RequestID]; n != 1 {
				t.Errorf("the answered request stands %d times in the ledger, want once", n)
			}
			if n := len(w.entries(t, "acme")); n != 2 {
				t.Errorf("the ledger has %d entries, want 2", n)
			}
			if faults.Cancels() != 0 {
				t.Errorf("%d cancel requests were sent; a cancel can expose rows no standby has", faults.Cancels())
			}
			w.verify(t)
		})
	}
}

// When nothing can be found out in time the caller is told so, and the same key settles it.
func TestAnUnknownOutcomeIsSettledByItsKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	var faults pgtest.Faults
	e := w.faulty(t, &faults)
	mustDecide(t, e, consume("acme", "calls", 1))
	faults.Arm(pgtest.Fault{OnStatement: commitRound, Deliver: true})
	faults.Refuse(errors.New("nobody there")) // the open session goes on, a second one cannot be had
	r := consume("acme", "calls", 2)
	r.Key = "k"
	_, err := e.Decide(t.Context(), r)
	wantCode(t, err, CodeOutcomeUnknown)
	faults.Refuse(nil)
	d := mustDecide(t, e, r)
	if !d.Replayed {
		t.Errorf("the retry was decided anew: %+v", d)
	}
	if n := len(w.entries(t, "acme")); n != 2 {
		t.Errorf("the ledger has %d entries, want 2", n)
	}
	w.verify(t)
}

// With the database gone nothing is granted, and it is said in time.
func TestWithoutADatabaseNothingIsGranted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	var faults pgtest.Faults
	e := w.engine(t, func(c *Config) {
		c.Deadline = 300 * time.Millisecond
		faults.Attach(&c.Database.Config)
	})
	mustDecide(t, e, consume("acme", "calls", 1))
	faults.Refuse(errors.New("nobody there"))
	faults.CutAll()
	for range 3 {
		_, err := e.Decide(t.Context(), consume("acme", "calls", 1))
		if refusal := wantCode(t, err, CodeUnavailable); refusal.RetryAfter <= 0 {
			t.Error("the refusal has no Retry-After")
		}
	}
	awaitHealth(t, e, "not ready without a database", notReady("the database has not answered since "))
	faults.Refuse(nil)
	awaitBack(t, e)
	d := mustDecide(t, e, consume("acme", "calls", 1))
	if !d.Allowed || d.Limits[0].Used != 2 {
		t.Errorf("after healing: got %+v", d)
	}
	w.verify(t)
}

// An engine that has waited long enough for its queue to empty must end: a batch whose
// commit was lost does not hold it up, nor does it spin until its bound.
func TestAnAbortEndsTheLookUpOfALostCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	var faults pgtest.Faults
	e := w.engine(t, func(c *Config) {
		c.Deadline, c.resolveTimeout = time.Hour, time.Hour
		faults.Attach(&c.Database.Config)
	})
	mustDecide(t, e, consume("acme", "calls", 1))
	struck := faults.Arm(pgtest.Fault{OnStatement: commitRound, Deliver: true})
	r := newRunner(e)
	defer r.close()
	if err := r.connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	faults.Refuse(errors.New("nobody there"))
	ctx, abort := context.WithCancel(t.Context())
	defer abort()
	c := newCall(consume("acme", "calls", 2))
	c.deadline = time.Now().Add(time.Hour)
	var running sync.WaitGroup
	running.Go(func() { r.run(ctx, []*call{c}, nil) })
	<-struck
	abort()
	running.Wait()
	<-c.done
	wantCode(t, c.outcome.err, CodeOutcomeUnknown)
}
