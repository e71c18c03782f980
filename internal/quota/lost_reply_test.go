package quota

import (
	"testing"
	"time"

	"github.com/quotad/quotad/internal/pgtest"
)

// Waits of denied calls are read in the round trip that ends in the commit. When its
// reply is lost they must be read again, or the denied would be told to come back at
// once.
func TestADenialInALostBatchTellsItsTrueWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.db.SetClock(t, time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	var faults pgtest.Faults
	e := w.faulty(t, &faults)
	mustDecide(t, e, consume("acme", "calls", 8))
	w.db.AdvanceClock(t, time.Minute)

	// Two calls that gather behind a waiting one are one batch.
	outsider := w.db.Hold(t, "acme")
	waiting := consume("acme", "calls", 1)
	waiting.DryRun = true // writes nothing, so the fault does not strike its commit
	calls := []*call{newCall(waiting), newCall(consume("acme", "calls", 1)), newCall(consume("acme", "calls", 3))}
	submit(t, e.workers[0], calls[0])
	w.awaitWaiter(t, time.Time{})
	submit(t, e.workers[0], calls[1:]...)
	struck := faults.Arm(pgtest.Fault{OnStatement: commitRound, Deliver: true})
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	outcomes := answers(t, calls)
	select {
	case <-struck:
	default:
		t.Fatal("the fault did not strike")
	}
	allowed, denied := outcomes[1], outcomes[2]
	if allowed.err != nil || !allowed.decision.Allowed {
		t.Errorf("the first call: %+v, want allowed", allowed)
	}
	const want = 59 * 60 * 1000 // until the 8 units of a minute ago leave
	if denied.err != nil || denied.decision.Allowed || orNone(denied.decision.RetryMS) != want {
		t.Errorf("the second call: %+v waits %d ms, want denied for %d", denied, orNone(denied.decision.RetryMS), want)
	}
	w.verify(t)
}
