package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/sim"
)

const (
	// crashCalls is how many calls are allowed between two faults, so that each one finds
	// all instances at work.
	crashCalls = 200
	// servingAgainMax is the promise: from the end of a fault (the first connection that
	// PostgreSQL accepts) to the first call that an instance allows.
	servingAgainMax = 10 * time.Second
	eventPoll       = 5 * time.Millisecond
	// retryPause keeps callers from spinning while there is nobody to answer them.
	retryPause = 20 * time.Millisecond
)

// eventually polls until done, at most eventMax.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(eventPoll)
	defer tick.Stop()
	for deadline := time.Now().Add(eventMax); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not seen in %s: %s", eventMax, what)
		}
	}
}

// A crashLoad is mixed traffic that lives through crashes: whoever sent a key and got
// no decision asks again with it, until there is one. Meanwhile the hot tenant's plan
// changes all the time, so that instances load versions while things break.
type crashLoad struct {
	*traffic
	changes *reconfiguring
	sending errgroup.Group
	calls   []sim.Call
	allowed atomic.Int64
	refused atomic.Int64 // with a 503
	began   sync.Map     // by URL, when the newest allowed call was begun
	unknown atomic.Int64 // whose outcome an instance says is unknown
	over    atomic.Bool

	patience  time.Duration // of callers; 0 is as long as any instance takes
	clockOff  time.Duration // by how much the database's clock was stepped at most
	vanishing atomic.Bool   // callers hang up in the middle of their requests
	vanished  atomic.Int64  // calls that did
}

func startCrashLoad(t *testing.T, db *pgtest.DB, token string, seed uint64, urls []string, patience time.Duration) *crashLoad {
	t.Helper()
	l := &crashLoad{traffic: newTraffic(seed, urls, 0), patience: patience}
	l.changes = reconfigure(t, putting(t, db, l.traffic))
	l.sending.Go(func() (err error) {
		l.calls, err = sim.Load{
			Token: token, Workers: mixedWorkers, Calls: mixedCallsMax, Time: mixedRoundMax + 2*eventMax, Next: l.next,
		}.Run(t.Context())
		return err
	})
	return l
}

// end lets every worker settle what it asked for, and returns all calls.
func (l *crashLoad) end(t *testing.T) []sim.Call {
	t.Helper()
	l.over.Store(true)
	if err := l.sending.Wait(); err != nil {
		t.Fatal(err)
	}
	l.changes.stop(t)
	for i := range l.calls {
		l.calls[i].ClockOff = l.clockOff
	}
	t.Log(sumUp(l.calls))
	return l.calls
}

func (l *crashLoad) next(worker int, last []sim.Call) []sim.Request {
	requests := l.more(worker, last)
	for i := range requests {
		requests[i].Patience = l.patience
		if l.vanishing.Load() && l.workers[worker].chance(vanishPercent) {
			requests[i].Patience = time.Duration(1+l.workers[worker].random.IntN(20)) * time.Millisecond
		}
	}
	return requests
}

// vanishPercent is how many callers hang up, where they do.
const vanishPercent = 60

// more is what a worker sends next.
func (l *crashLoad) more(worker int, last []sim.Call) []sim.Request {
	var again *sim.Call
	failed := false
	for i := range last {
		c := &last[i]
		switch {
		case c.Outcome == sim.OutcomeAllowed:
			l.allowed.Add(1)
			l.began.Store(c.URL, c.Started)
		case undecided(c):
			failed = true
			if c.Status == 0 {
				l.vanished.Add(1)
			}
			if c.Status == http.StatusServiceUnavailable {
				l.refused.Add(1)
			}
			if c.Status != 0 && c.Outcome == sim.OutcomeUnknown {
				l.unknown.Add(1)
			}
			if c.Key != "" {
				again = c
			}
		}
	}
	if failed {
		pause := time.NewTimer(retryPause)
		<-pause.C
	}
	switch {
	case again != nil:
		r := again.Request
		r.URL = l.workers[worker].url()
		return []sim.Request{r}
	case l.over.Load():
		return nil
	}
	return l.traffic.more(worker, last)
}

// undecided reports whether a call got no decision.
func undecided(c *sim.Call) bool { return c.Status == 0 || c.Status >= 500 }

// awaitAllowed returns once n more calls were allowed.
func (l *crashLoad) awaitAllowed(t *testing.T, n int64) {
	t.Helper()
	from := l.allowed.Load()
	eventually(t, "more calls are allowed", func() bool { return l.allowed.Load() >= from+n })
}

// wantSettled wants every key to have got a decision in the end.
func wantSettled(t *testing.T, calls []sim.Call) {
	t.Helper()
	type key struct{ tenant, key string }
	open := make(map[key]bool)
	for i := range calls { // in the order they were begun: a retry comes after
		if c := &calls[i]; c.Key != "" {
			open[key{c.Tenant, c.Key}] = undecided(c)
		}
	}
	for k, unsettled := range open {
		if unsettled {
			t.Errorf("tenant %q key %q never got a decision", k.tenant, k.key)
		}
	}
}

// wantNoDoubt wants every call to have an answer that says what came of it.
func wantNoDoubt(t *testing.T, calls []sim.Call) {
	t.Helper()
	for i := range calls {
		if c := &calls[i]; c.Outcome == sim.OutcomeUnknown {
			t.Errorf("%s at %s: status %d, %s", c, c.URL, c.Status, c.Body)
		}
	}
}

// wantCrashSafe wants what holds after every crash: the ledger sound, every key
// settled, no caller ignorant of an entry but those without a key who were told that
// nobody knows, no answer but a decision or that there is none for now, and every call
// decided under the plan of its time.
func wantCrashSafe(t *testing.T, db *pgtest.DB, load *crashLoad) *sim.Ledger {
	t.Helper()
	calls := load.calls
	wantSettled(t, calls)
	ignorantMax := 0
	for i := range calls {
		c := &calls[i]
		if c.Outcome == sim.OutcomeUnknown && c.Key == "" {
			ignorantMax++
		}
		if c.Status >= 500 && c.Status != http.StatusServiceUnavailable {
			t.Errorf("%s at %s: status %d, %s", c, c.URL, c.Status, c.Body)
		}
	}
	ledger := wantSound(t, db, calls)
	load.changes.wantFollowed(t, ledger, calls)
	load.changes.wantOnce(t, db)
	lost := ledger.Lost(calls)
	if lost > ignorantMax {
		t.Errorf("%d entries have callers who do not know of them; only the %d without a key who were told so may not", lost, ignorantMax)
	}
	t.Logf("%d entries; %d of %d callers without a key and without an answer were charged; %d changes of the plan",
		ledger.Entries(), lost, ignorantMax, len(load.changes.done)-1)
	return ledger
}

// acceptingSince returns when PostgreSQL accepted a connection again. The pool's own
// connections have ended.
func acceptingSince(t *testing.T, db *pgtest.DB) (since time.Time) {
	t.Helper()
	eventually(t, "PostgreSQL accepts a connection", func() bool {
		conn, err := pgx.Connect(t.Context(), db.URL)
		if err != nil {
			return false
		}
		since = time.Now()
		return conn.Close(t.Context()) == nil
	})
	db.Owner(t).Reset()
	return since
}

// readiness is the status of /readyz; 0 without an answer.
func readiness(url string) int {
	response, err := http.Get(url + "/readyz")
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode
}

// endWaiting locks the hot tenant, waits for a backend that waits for it, and ends it.
func endWaiting(t *testing.T, db *pgtest.DB) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), db.Owner(t), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "select from quotad.account where tenant = 'hot' for update"); err != nil {
			return err
		}
		eventually(t, "a backend that waits for a lock is ended", func() bool {
			// A transaction sees the activity as it was when it first looked, unless told.
			if _, err := tx.Exec(t.Context(), "select pg_stat_clear_snapshot()"); err != nil {
				t.Fatal(err)
			}
			var ended bool
			err := tx.QueryRow(t.Context(), `
select coalesce(bool_or(pg_terminate_backend(pid)), false)
from (select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' limit 1) x`).Scan(&ended)
			if err != nil {
				t.Fatal(err)
			}
			return ended
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// endWorking ends a backend that is in a transaction of an instance.
func endWorking(t *testing.T, db *pgtest.DB, sql string) {
	t.Helper()
	var pid int
	eventually(t, "a backend is in a transaction", func() bool {
		err := db.Owner(t).QueryRow(t.Context(), `
select coalesce(max(pid), 0)
from pg_stat_activity
where datname = current_database() and usename <> current_user and xact_start is not null and state <> 'idle'`).Scan(&pid)
		if err != nil {
			t.Fatal(err)
		}
		return pid != 0
	})
	sql = strings.Replace(sql, "$1", fmt.Sprint(pid), 1)
	_, _ = db.Owner(t).Exec(t.Context(), sql) // the server may end this connection as well
}

// metricsOf sums the series of a metric over instances.
func metricsOf(t *testing.T, urls []string, name string) map[string]float64 {
	t.Helper()
	sums := make(map[string]float64)
	for _, url := range urls {
		response, err := http.Get(url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var value float64
			series, number, _ := strings.Cut(strings.TrimSpace(line), " ")
			if _, err := fmt.Sscan(number, &value); err == nil && strings.HasPrefix(series, name) {
				sums[series] += value
			}
		}
	}
	return sums
}
