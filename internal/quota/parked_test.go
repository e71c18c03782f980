package quota

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// Calls that come while their tenant's lock is waited for are decided with those that wait.
func TestAWaiterTakesTheCallsThatCameMeanwhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, func(c *Config) { c.Workers, c.BatchMax = 1, 5 })
	outsider := w.db.Hold(t, "acme")
	calls := numbered("acme", 0, 7)
	submit(t, e.workers[0], calls[0])
	w.awaitWaiter(t, time.Time{})
	submit(t, e.workers[0], calls[1:]...)
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, out := range answers(t, calls) {
		if out.err != nil || !out.decision.Allowed {
			t.Errorf("call %d: %+v", i, out)
		}
	}
	wantOrder(t, w, "acme", "0", "1", "2", "3", "4", "5", "6")
	batches := make(map[uuid.UUID]int)
	for _, entry := range w.entries(t, "acme") {
		batches[entry.BatchID]++
	}
	if first := w.entries(t, "acme")[0].BatchID; len(batches) != 2 || batches[first] != 5 {
		t.Errorf("batches have %v entries, want 5 and 2", batches)
	}
	w.verify(t)
}

// No call is decided at an instant before it came, also one that joined a batch.
func TestAWaiterReadsTheClockAfterTheLastCallCame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	start := time.UnixMicro(noon).UTC()
	w.db.SetClock(t, start)
	e := w.engine(t, nil)
	mustDecide(t, e, consume("globex", "calls", 1)) // this instance knows the configuration
	r := newRunner(e)
	defer r.close()
	calls := numbered("acme", 0, 2)
	left := r.run(t.Context(), calls[:1], func(int) []*call {
		w.db.AdvanceClock(t, time.Second)
		return calls[1:]
	})
	if len(left) != 0 {
		t.Errorf("%v were left", tenantNames(left))
	}
	for i, out := range answers(t, calls) {
		if out.err != nil || !out.decision.DecidedAt.Equal(start.Add(time.Second)) {
			t.Errorf("call %d: %+v; the second came at %s", i, out, start.Add(time.Second))
		}
	}
}

// parkedTotal is how often an engine has parked a tenant.
func parkedTotal(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "quotad_parked_total" {
			return f.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("no engine counts what it parks")
	return 0
}

// stays waits until the waiters have left a tenant, and sets until when it stays parked; nil if
// it does not.
func (w *worker) stays(tenant string, until time.Time) *parkedTenant {
	for {
		w.mu.Lock()
		p := w.parked[tenant]
		if p == nil || p.idle {
			if p != nil {
				p.until = until
			}
			w.mu.Unlock()
			return p
		}
		w.mu.Unlock()
	}
}

// A tenant that is busy elsewhere is not tried anew for each batch.
func TestABusyTenantStaysParkedForAWhile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	registry := prometheus.NewRegistry()
	e, stop := w.stoppableEngine(t, func(c *Config) { c.Workers, c.Deadline, c.Metrics = 1, answerMax, registry })
	worker := e.workers[0]
	later := time.Now().Add(time.Hour)
	through := func(calls int, parkings float64) {
		t.Helper()
		outsider := w.db.Hold(t, "acme")
		waiting := numbered("acme", 0, calls)
		submit(t, worker, waiting...)
		w.awaitWaiter(t, time.Time{})
		worker.mu.Lock()
		worker.parked["acme"].until = later
		worker.mu.Unlock()
		if err := outsider.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, out := range answers(t, waiting) {
			if out.err != nil {
				t.Errorf("%+v", out)
			}
		}
		if got := parkedTotal(t, registry); got != parkings {
			t.Errorf("the tenant was parked %v times, want %v", got, parkings)
		}
	}
	parked := func(until time.Time) *parkedTenant { return worker.stays("acme", until) }
	through(parkedCallsOf-1, 1)
	if parked(later) != nil {
		t.Error("a tenant of few calls stays parked")
	}
	through(parkedCallsOf, 2)
	if parked(later) == nil {
		t.Fatal("a busy tenant is parked no more")
	}
	through(parkedCallsOf, 2)
	if parked(time.Now()) == nil {
		t.Fatal("a busy tenant is parked no more")
	}
	worker.endParked()
	if parked(later) != nil {
		t.Error("a tenant stays parked for ever")
	}
	through(parkedCallsOf, 3)
	if parked(time.Now()) == nil {
		t.Fatal("a busy tenant is parked no more")
	}
	through(parkedCallsOf, 4)
	if parked(later) == nil {
		t.Fatal("a busy tenant is parked no more")
	}
	stop()
	if len(worker.parked) != 0 {
		t.Error("an engine ended, and a tenant is parked")
	}
	w.verify(t)
}
