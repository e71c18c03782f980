package main

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/quotad/quotad/internal/sim"
)

// A limiter that reads and then writes admits all of a burst. Here 1,000 callers, each
// with a connection of its own that is open already, ask for a tenant without a past on
// three instances at once.
func TestExactlyTheLimitIsAdmittedByThreeInstances(t *testing.T) {
	t.Parallel()
	const callers = 1000
	db := migrated(t)
	token := configure(t, db, serveTestConfig)
	instances, urls := startServes(t, db, 3)
	urlOf := func(worker int) string { return urls[worker%len(urls)] }
	calls := load(t, sim.Load{
		Token: token, Workers: callers, Calls: callers, Time: eventMax, Connect: urlOf,
		Next: func(worker int, last []sim.Call) []sim.Request {
			if last != nil {
				return nil
			}
			return []sim.Request{{
				URL: urlOf(worker), Tenant: "acme", Tag: fmt.Sprint("caller-", worker),
				Charges: []sim.Charge{{Meter: "api.calls", Cost: 1}}, Costs: map[string]int64{"api.calls": 1},
			}}
		},
	})
	for _, i := range instances {
		i.stop(t, sigterm)
	}
	wantNoFailures(t, calls)
	statuses := sim.Statuses(calls)
	if statuses[http.StatusOK] != 10 || statuses[http.StatusTooManyRequests] != callers-10 {
		t.Errorf("statuses = %v, want 10 times 200 and 990 times 429", statuses)
	}
	if n := wantSound(t, db, calls).EntriesOf("acme"); n != 10 {
		t.Errorf("the ledger has %d entries, want 10", n)
	}
	if n := deadlocks(t, db); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	t.Log(sumUp(calls))
}
