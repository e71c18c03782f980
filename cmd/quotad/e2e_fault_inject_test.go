package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/sim"
)

// over is the lift of what passes by itself.
func over() {}

func killInstance(t *testing.T, s *stage) func() {
	gone := s.victim()
	if err := gone.signal(sigkill); err != nil {
		t.Error(err)
	}
	gone.wait(t)
	s.awaitAllowed(t, crashCalls) // the others go on
	return func() { s.replace(t, gone) }
}

// stopInstance stops an instance as a rolling update does it: it says that it is not ready
// while it still answers.
func stopInstance(t *testing.T, s *stage) func() {
	gone := s.victim()
	if err := gone.signal(sigterm); err != nil {
		t.Error(err)
	}
	eventually(t, "the instance says that it is not ready", func() bool {
		status := readiness(gone.url)
		if status == 0 {
			t.Fatal("the instance refuses connections and never said that it is not ready")
		}
		return status == http.StatusServiceUnavailable
	})
	if code := gone.wait(t); code != 0 {
		t.Errorf("serve ends with %d after SIGTERM, want 0", code)
	}
	s.awaitAllowed(t, crashCalls)
	return func() { s.replace(t, gone) }
}

// hangTime outlasts every bound that others have on an instance that holds locks.
const hangTime = 10 * time.Second

func hangInstance(t *testing.T, s *stage) func() {
	i := s.victim()
	signal := func(signal syscall.Signal) {
		if err := i.signal(signal); err != nil {
			t.Error(err)
		}
	}
	signal(syscall.SIGSTOP)
	until := time.After(hangTime)
	s.awaitAllowed(t, crashCalls)
	<-until
	return func() { signal(syscall.SIGCONT) }
}

func killPostgreSQL(t *testing.T, s *stage) func() {
	pgtest.Crash(t, s.postgres)
	if s.runs%2 == 0 { // it outlasts every deadline and cache; others end in a backoff's middle
		s.awaitRefused(t)
	}
	return func() {
		s.postgres = pgtest.Server(t, *s.server)
		acceptingSince(t, s.db)
	}
}

func hangPostgreSQL(t *testing.T, s *stage) func() {
	thaw := pgtest.Freeze(t, s.postgres)
	s.awaitRefused(t)
	return thaw
}

// killBackend makes PostgreSQL end all others and recover.
func killBackend(t *testing.T, s *stage) func() {
	endWorking(t, s.db, "copy (select $1) to program 'xargs kill -9'")
	return func() { acceptingSince(t, s.db) }
}

// endings is how many backends are ended before the recovery is timed.
const endings = 5

func ending(sql string) func(*testing.T, *stage) func() {
	return func(t *testing.T, s *stage) func() {
		for range endings {
			s.awaitAllowed(t, crashCalls/10)
			endWorking(t, s.db, sql)
		}
		return over
	}
}

func endWaitingBackend(t *testing.T, s *stage) func() {
	endWaiting(t, s.db)
	return over
}

func lockAccount(t *testing.T, s *stage) func() {
	outsider := s.db.Hold(t, "hot")
	pgtest.AwaitWaiter(t, s.db, make(chan struct{}))
	s.awaitAllowed(t, crashCalls/4) // nobody else's
	return func() {
		if err := outsider.Rollback(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}
}

// takeConnections fills the server with connections of an outsider, those included that
// the instances had.
func takeConnections(t *testing.T, s *stage) func() {
	var taken []*pgx.Conn
	free := func() {
		for _, conn := range taken {
			_ = conn.Close(context.WithoutCancel(t.Context())) // it may be gone
		}
	}
	t.Cleanup(free)
	eventually(t, "an outsider has all connections", func() bool {
		endSessions(t, s.db)
		for range 100 {
			conn, err := pgx.Connect(t.Context(), s.db.URL+outsiderName)
			if err != nil {
				break
			}
			taken = append(taken, conn)
		}
		return instanceSessions(t, s.db) == 0
	})
	s.awaitRefused(t)
	return free
}

// starve leaves all instances one connection at a time, while 500 more callers ask.
func starve(t *testing.T, s *stage) func() {
	s.db.Exec(t, "alter role quotad_test connection limit 6")
	endSessions(t, s.db)
	s.storm(t, 500, 4, func(caller, n int) sim.Request {
		return sim.Request{
			Tenant: fmt.Sprint("cold-", caller%50), Tag: s.tag("starve", caller, n),
			Charges: []sim.Charge{{Meter: "posts", Cost: 1}}, Costs: map[string]int64{"posts": 1},
		}
	})
	return func() { s.db.Exec(t, "alter role quotad_test connection limit -1") }
}

// breakEvery is which of the statements that are sent breaks its connection.
const breakEvery = 5

// silenceTime outlasts the bound of a round trip.
const silenceTime = 6 * time.Second

// breaking breaks connections at a statement: before it arrives, in the middle of it, and
// in place of its reply.
func breaking(on string, silent bool) func(*testing.T, *stage) func() {
	return func(t *testing.T, s *stage) func() {
		replies, sends, halves := s.proxy.Struck()
		s.proxy.Break(pgtest.Break{On: on, Every: breakEvery, Hang: silent})
		eventually(t, "connections break at every step", func() bool {
			r, n, h := s.proxy.Struck()
			return min(r-replies, n-sends, h-halves) >= 2
		})
		switch {
		case silent: // instances give up waiting, and may try again
			<-time.After(silenceTime)
		case on == onCommit:
			s.wantFoundOut(t)
		}
		return s.proxy.Heal
	}
}

// wantFoundOut wants instances to have found lost commits to be done, and others not.
func (s *stage) wantFoundOut(t *testing.T) {
	t.Helper()
	eventually(t, "lost commits are found to be done and not to be", func() bool {
		found := metricsOf(t, s.urlList(), "quotad_lost_commits_total")
		return found[`quotad_lost_commits_total{found="committed"}`] > 0 && found[`quotad_lost_commits_total{found="rolled_back"}`] > 0
	})
}

// vanish makes callers hang up in the middle of their requests.
func vanish(t *testing.T, s *stage) func() {
	s.vanishing.Store(true)
	vanished := s.vanished.Load()
	eventually(t, "callers hang up", func() bool { return s.vanished.Load() >= vanished+crashCalls })
	return func() { s.vanishing.Store(false) }
}

// stormCallers ask at the same time, each on a connection of its own.
const stormCallers = 5000

// oneKey has every caller ask for the same, once.
func oneKey(t *testing.T, s *stage) func() {
	key := s.tag("one key", 0, 0)
	calls := s.storm(t, stormCallers, 1, func(int, int) sim.Request { return stormRequest(key, key, 2) })
	statuses, fresh := sim.Statuses(calls), 0
	for i := range calls {
		if c := &calls[i]; c.Outcome == sim.OutcomeAllowed && !c.Replayed {
			fresh++
		}
	}
	if statuses[http.StatusOK] != len(calls) || fresh != 1 {
		t.Errorf("statuses = %v, %d answers not marked as replayed; want 200 for all, and one", statuses, fresh)
	}
	return over
}

// twoBodies has half of the callers ask for something else with the key: one of the two
// is decided, the other one refused.
func twoBodies(t *testing.T, s *stage) func() {
	key := s.tag("two bodies", 0, 0)
	calls := s.storm(t, stormCallers, 1, func(caller, _ int) sim.Request {
		return stormRequest(key, fmt.Sprint(key, caller%2), int64(1+caller%2))
	})
	statuses, costs := sim.Statuses(calls), make(map[int64]bool)
	for i := range calls {
		if c := &calls[i]; c.Outcome == sim.OutcomeAllowed {
			costs[c.Costs["posts"]] = true
		}
	}
	if n := len(calls) / 2; statuses[http.StatusOK] != n || statuses[http.StatusUnprocessableEntity] != n || len(costs) != 1 {
		t.Errorf("statuses = %v, for the costs %v; want one body decided, and 422 for the other", statuses, costs)
	}
	return over
}

// stormRequest is on a meter without a limit that denies.
func stormRequest(key, tag string, cost int64) sim.Request {
	return sim.Request{
		Tenant: "hot", Key: key, Tag: tag,
		Charges: []sim.Charge{{Meter: "posts", Cost: cost}}, Costs: map[string]int64{"posts": cost},
	}
}

// oppositeOrders has callers charge the meters of the same tenants in opposite orders:
// whoever locks limit by limit deadlocks.
func oppositeOrders(t *testing.T, s *stage) func() {
	meters := []string{"calls", "tokens", "mail", "posts"}
	s.storm(t, 500, 4, func(caller, n int) sim.Request {
		r := sim.Request{Tenant: "hot", Tag: s.tag("order", caller, n), Costs: make(map[string]int64)}
		if n%2 == 0 {
			r.Tenant = fmt.Sprint("cold-", caller%4)
		}
		for i := range meters {
			meter := meters[i]
			if (caller+n)%2 == 0 {
				meter = meters[len(meters)-1-i]
			}
			r.Charges, r.Costs[meter] = append(r.Charges, sim.Charge{Meter: meter, Cost: 1}), 1
		}
		return r
	})
	return over
}

// storm has callers ask instances in turn, each so many times, all at once, beside the
// load. Who has a key asks again until there is a decision. It returns their calls, which
// are checked with all others.
func (s *stage) storm(t *testing.T, callers, times int, request func(caller, n int) sim.Request) []sim.Call {
	t.Helper()
	urls, sent := s.urlList(), make([]atomic.Int64, callers)
	urlOf := func(caller int) string { return urls[caller%len(urls)] }
	calls := load(t, sim.Load{
		Token: s.token, Workers: callers, Calls: mixedCallsMax, Time: eventMax, Connect: urlOf,
		Next: func(caller int, last []sim.Call) []sim.Request {
			if len(last) > 0 && undecided(&last[0]) && last[0].Key != "" {
				<-time.After(retryPause)
				return []sim.Request{last[0].Request}
			}
			n := int(sent[caller].Add(1)) - 1
			if n >= times {
				return nil
			}
			r := request(caller, n)
			r.URL = urlOf(caller)
			return []sim.Request{r}
		},
	})
	s.extra = append(s.extra, calls...)
	t.Log("storm: ", sumUp(calls))
	return calls
}

// tag names a call of a storm.
func (s *stage) tag(what string, caller, n int) string {
	return fmt.Sprintf("%s %d/%d/%d", what, s.runs, caller, n)
}

// outsiderName tells sessions of an outsider from those of instances.
const outsiderName = "&application_name=outsider"

// endSessions ends the sessions of all instances.
func endSessions(t *testing.T, db *pgtest.DB) {
	t.Helper()
	db.Exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'quotad'")
}

func instanceSessions(t *testing.T, db *pgtest.DB) (n int) {
	t.Helper()
	err := db.Owner(t).QueryRow(t.Context(),
		"select count(*) from pg_stat_activity where datname = current_database() and application_name = 'quotad'").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// awaitRefused returns once every instance says that it is not ready, and calls are
// answered that there is no decision for now.
func (s *stage) awaitRefused(t *testing.T) {
	t.Helper()
	refused := s.refused.Load()
	eventually(t, "calls are refused", func() bool { return s.refused.Load() >= refused+mixedWorkers })
	for _, url := range s.urlList() {
		eventually(t, "an instance is not ready without its database", func() bool { return readiness(url) == http.StatusServiceUnavailable })
	}
}
