package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quotad/quotad/internal/sim"
)

const stopConfig = `
meters:
  api.calls: {unit: call}
plans:
  all:
    limits:
      - {name: hourly, meter: api.calls, algorithm: sliding_log,  limit: 999999999, window: 1h}
      - {name: burst,  meter: api.calls, algorithm: token_bucket, capacity: 999999999, refill: 7/1m}
tenants:
  tenant-0: {plan: all}
  tenant-1: {plan: all}
  tenant-2: {plan: all}
`

// stopRequest is the n-th request of a worker.
func stopRequest(worker, n int, keyed bool) sim.Request {
	tag := fmt.Sprintf("worker-%d-%d", worker, n)
	r := sim.Request{
		Tenant: fmt.Sprint("tenant-", worker%3), Tag: tag,
		Charges: []sim.Charge{{Meter: "api.calls", Cost: 2}}, Costs: map[string]int64{"api.calls": 2},
	}
	if keyed {
		r.Key = tag
	}
	return r
}

// An instance that is told to stop under load takes no request without answering it:
// whatever is in the ledger, its caller knows.
func TestSIGTERMLosesNoAnswer(t *testing.T) {
	t.Parallel()
	const workers, before = 32, 1000
	db := migrated(t)
	token := configure(t, db, stopConfig)
	serve := startServe(t, db)
	var allowed atomic.Int64
	var sent [workers]int
	calls := load(t, sim.Load{
		Token: token, Workers: workers, Calls: 200_000, Time: eventMax,
		Next: func(worker int, last []sim.Call) []sim.Request {
			if last != nil {
				if last[0].Outcome != sim.OutcomeAllowed {
					return nil // it refuses connections now
				}
				if allowed.Add(1) == before {
					if err := serve.signal(sigterm); err != nil {
						t.Error(err)
					}
				}
			}
			sent[worker]++
			r := stopRequest(worker, sent[worker], false)
			r.URL = serve.url
			return []sim.Request{r}
		},
	})
	if code := serve.wait(t); code != 0 {
		t.Errorf("serve ends with %d after SIGTERM, want 0", code)
	}
	if counts := sim.Count(calls); counts[sim.OutcomeAllowed] < before || counts[sim.OutcomeUnknown] == 0 {
		t.Errorf("outcomes = %v, want at least %d allowed before every worker was refused", counts, before)
	}
	ledger := wantSound(t, db, calls)
	if n := ledger.Lost(calls); n != 0 {
		t.Errorf("%d entries are in the ledger whose callers got no answer", n)
	}
	t.Log(sumUp(calls))
}

// One of three instances is killed in the middle of its work. The others go on at once,
// and whoever got no answer learns it from them with the same key, without being
// charged again.
func TestTheOthersGoOnWhenOneInstanceIsKilled(t *testing.T) {
	t.Parallel()
	const workers, before, after = 24, 1000, 60
	db := migrated(t)
	token := configure(t, db, stopConfig)
	instances, urls := startServes(t, db, 3)
	k := &killing{urls: urls, left: after}
	calls := load(t, sim.Load{
		Token: token, Workers: workers, Calls: 200_000, Time: eventMax,
		Next: func(worker int, last []sim.Call) []sim.Request {
			if last != nil && last[0].Outcome == sim.OutcomeAllowed && k.allowed.Add(1) == before {
				if err := instances[0].signal(sigkill); err != nil {
					t.Error(err)
				}
				k.killed.Store(true)
			}
			return k.next(worker, last)
		},
	})
	if code := instances[0].wait(t); code != -1 {
		t.Errorf("the killed instance ends with %d, want by a signal", code)
	}
	goneOn := make(map[string]int)
	for i := range calls {
		c := &calls[i]
		switch {
		case c.Outcome == sim.OutcomeAllowed:
			goneOn[c.URL]++
		case c.URL != urls[0] || c.Status != 0:
			t.Errorf("%s at instance %s: %s, status %d: %s", c, c.URL, c.Outcome, c.Status, c.Body)
		}
	}
	if goneOn[urls[1]] < workers/3*after || goneOn[urls[2]] < workers/3*after {
		t.Errorf("allowed by instance: %v; want the others to have gone on", goneOn)
	}
	for _, i := range instances[1:] {
		i.stop(t, sigterm)
	}
	ledger := wantSound(t, db, calls)
	if n := ledger.Lost(calls); n != 0 {
		t.Errorf("%d entries are in the ledger whose callers never learned of them", n)
	}
	if n := deadlocks(t, db); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	t.Log(sumUp(calls))
}

// killing is traffic on instances of which the first is killed: each worker sends keyed
// requests to one, and the same again to the next one when it gets no answer.
type killing struct {
	urls    []string
	left    int // requests of each worker after the kill
	allowed atomic.Int64
	killed  atomic.Bool

	mu     sync.Mutex
	states map[int]*killingWorker
}

type killingWorker struct{ sent, after, at int }

func (k *killing) next(worker int, last []sim.Call) []sim.Request {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.states == nil {
		k.states = make(map[int]*killingWorker)
	}
	w := k.states[worker]
	if w == nil {
		w = &killingWorker{at: worker % len(k.urls)}
		k.states[worker] = w
	}
	var r sim.Request
	switch {
	case last != nil && last[0].Outcome != sim.OutcomeAllowed:
		w.at = 1 + worker%(len(k.urls)-1)
		r = last[0].Request
	case w.after > k.left:
		return nil
	default:
		w.sent++
		r = stopRequest(worker, w.sent, true)
	}
	if k.killed.Load() {
		w.after++
	}
	r.URL = k.urls[w.at]
	return []sim.Request{r}
}
