package quota

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
)

// awaitHealth looks at an engine's health until it is as wanted.
func awaitHealth(t *testing.T, e *Engine, what string, want func(Health) bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(answerMax); ; <-tick.C {
		switch h := e.Health(); {
		case want(h):
			return
		case time.Now().After(until):
			t.Fatalf("Health = %+v, want it %s", h, what)
		}
	}
}

func isReady(h Health) bool { return h.Ready }

// notReady wants a fault with a text in it.
func notReady(text string) func(Health) bool {
	return func(h Health) bool { return !h.Ready && strings.Contains(strings.Join(h.Faults, "\n"), text) }
}

// A record is what an engine logged.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

// lines lists the level and the text of what was logged about health, in its order.
func (r *record) lines(t *testing.T) (lines []string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	decoder := json.NewDecoder(bytes.NewReader(r.text.Bytes()))
	for {
		var line struct{ Level, Msg, Cause string }
		if err := decoder.Decode(&line); err == io.EOF {
			return lines
		} else if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(line.Msg, "ready") {
			lines = append(lines, line.Level+" "+line.Msg)
		}
	}
}

// count returns how many lines contain a text.
func (r *record) count(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.text.String(), text)
}

// recorded starts an engine that is ready, and keeps what it logs.
func (w *world) recorded(t *testing.T, change func(*Config)) (*Engine, *record) {
	t.Helper()
	var log record
	e := w.engine(t, func(c *Config) {
		c.Log = slog.New(slog.NewJSONHandler(io.MultiWriter(&log, t.Output()), nil))
		if change != nil {
			change(c)
		}
	})
	awaitHealth(t, e, "ready", isReady)
	return e, &log
}

// load sends calls, one after another, until stop.
func load(t *testing.T, e *Engine, tenant string) (stop func()) {
	t.Helper()
	ended := make(chan struct{})
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				_, _ = e.Decide(t.Context(), consume(tenant, "calls", 0))
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(ended)
		sending.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// set changes a setting of a test's own server; "" undoes it.
func set(t *testing.T, db *pgtest.DB, name, value string) {
	t.Helper()
	if value == "" {
		db.Exec(t, "alter system reset "+name)
	} else {
		db.Exec(t, "alter system set "+name+" = "+value)
	}
	db.Exec(t, "select pg_reload_conf()")
}

// changesOnce is what one outage logs.
var changesOnce = []string{"INFO ready", "WARN not ready", "INFO ready again"}

// A server that answers every read and acknowledges no commit decides nothing. Who
// waits must not be joined by more and more: each leaves a process on the server.
func TestAnEngineWhoseCommitsHangIsNotReady(t *testing.T) {
	t.Parallel()
	for name, loaded := range map[string]bool{"under load": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, pgtest.On(t, pgtest.Server(t, devpg.Options{})), callsConfig)
			e, log := w.recorded(t, func(c *Config) {
				c.readTimeout, c.commitTimeout, c.resolveTimeout = time.Second, time.Second, time.Second
			})
			mustDecide(t, e, consume("acme", "calls", 1))
			set(t, w.db, "synchronous_standby_names", "lost")
			stop := func() {}
			if loaded {
				stop = load(t, e, "acme")
			}
			awaitHealth(t, e, "not ready", notReady("commits wait for a standby"))
			for until := time.Now().Add(2 * checkEvery); time.Now().Before(until); {
				if h := e.Health(); h.Ready {
					t.Fatalf("Health = %+v while no commit is acknowledged", h)
				}
				var waiting int
				if err := w.db.Owner(t).QueryRow(t.Context(),
					"select count(*) from pg_stat_activity where wait_event = 'SyncRep'").Scan(&waiting); err != nil || waiting > 3 {
					t.Fatalf("%d processes of the server wait for a standby, %v; want 3 at most", waiting, err)
				}
			}
			stop()
			set(t, w.db, "synchronous_standby_names", "")
			awaitHealth(t, e, "ready again", isReady)
			if d := mustDecide(t, e, consume("acme", "calls", 1)); !d.Allowed || d.Limits[0].Used != 2 {
				t.Errorf("after the standby: %+v", d)
			}
			if diff := cmp.Diff(changesOnce, log.lines(t)); diff != "" {
				t.Errorf("logged (-want +got):\n%s", diff)
			}
			w.verify(t)
		})
	}
}

// Nobody has to wait until a hanging commit is given up.
func TestAHangingCommitIsNoticedBeforeItsBound(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, pgtest.On(t, pgtest.Server(t, devpg.Options{})), callsConfig)
	e, log := w.recorded(t, func(c *Config) { c.readTimeout = 2 * answerMax })
	set(t, w.db, "synchronous_standby_names", "lost")
	awaitHealth(t, e, "not ready", notReady("a transaction has waited for the database since "))
	set(t, w.db, "synchronous_standby_names", "")
	awaitHealth(t, e, "ready again", isReady)
	if diff := cmp.Diff(changesOnce, log.lines(t)); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
}

// A server that takes no writes answers everything else; under load it must not be
// ready by turns, and nobody may be told that it does not answer.
func TestAnEngineOnAReadOnlyDatabaseIsNotReady(t *testing.T) {
	t.Parallel()
	for name, loaded := range map[string]bool{"under load": true, "idle": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, pgtest.On(t, pgtest.Server(t, devpg.Options{})), callsConfig)
			e, log := w.recorded(t, func(c *Config) { c.Deadline = shortDeadline })
			set(t, w.db, "default_transaction_read_only", "on")
			stop := func() {}
			if loaded {
				stop = load(t, e, "acme")
			}
			awaitHealth(t, e, "not ready", notReady("in a read-only transaction (SQLSTATE 25006)"))
			for until := time.Now().Add(2 * checkEvery); time.Now().Before(until); {
				if h := e.Health(); h.Ready {
					t.Fatalf("Health = %+v while nothing can be written", h)
				}
			}
			if n := log.count("tried again"); n > 2 {
				t.Errorf("%d lines about attempts, want at most 2 before it was not ready", n)
			}
			set(t, w.db, "default_transaction_read_only", "off")
			awaitHealth(t, e, "ready again", isReady)
			stop()
			if diff := cmp.Diff(changesOnce, log.lines(t)); diff != "" {
				t.Errorf("logged (-want +got):\n%s", diff)
			}
		})
	}
}

// What a probe can do says nothing while decisions fail; a load balancer would send
// traffic there and back.
func TestAProbeDoesNotMakeAnEngineReadyWhoseBatchesFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e, log := w.recorded(t, func(c *Config) { c.Deadline = shortDeadline })
	w.db.Exec(t, "revoke update on quotad.account from quotad_service")
	stop := load(t, e, "acme")
	awaitHealth(t, e, "not ready", notReady("permission denied for table account (SQLSTATE 42501)"))
	for until := time.Now().Add(3 * checkEvery); time.Now().Before(until); {
		if h := e.Health(); h.Ready {
			t.Fatalf("Health = %+v while every batch fails", h)
		}
	}
	stop()
	awaitHealth(t, e, "ready once nothing fails any more", isReady)
	if diff := cmp.Diff(changesOnce, log.lines(t)); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
}

// After a restart of PostgreSQL every connection is dead and nobody has noticed. The
// first call is decided on a new one; it must not take the instance out of service, nor
// must the probe that meets one.
func TestDeadConnectionsDoNotMakeAnEngineNotReady(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e, log := w.recorded(t, nil)
	mustDecide(t, e, consume("acme", "calls", 1))
	const engines = "from pg_stat_activity where datname = current_database() and usename <> current_user"
	kill := func() { w.db.Exec(t, "select pg_terminate_backend(pid, 5000) "+engines) }
	stillReady := func(h Health) {
		if !h.Ready {
			t.Errorf("Health = %+v", h)
		}
	}
	kill()
	awaitHealth(t, e, "ready when its probe has connected anew", func(h Health) bool {
		stillReady(h)
		var connections int
		if err := w.db.Owner(t).QueryRow(t.Context(), "select count(*) "+engines).Scan(&connections); err != nil {
			t.Fatal(err)
		}
		return connections > 0 || t.Failed()
	})
	kill()
	if d := mustDecide(t, e, consume("acme", "calls", 1)); !d.Allowed {
		t.Errorf("got %+v", d)
	}
	stillReady(e.Health())
	if log.count("tried again") != 1 {
		t.Error("no batch met a dead connection")
	}
	if diff := cmp.Diff(changesOnce[:1], log.lines(t)); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
}

// A crash is one line when it is noticed and one when it is over.
func TestAnOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	options := devpg.Options{Dir: pgtest.Dir(t)}
	server := pgtest.Server(t, options)
	w := newWorldOf(t, pgtest.On(t, server), callsConfig)
	e, log := w.recorded(t, func(c *Config) { c.Deadline = shortDeadline })
	stop := load(t, e, "acme")
	pgtest.Crash(t, server)
	awaitHealth(t, e, "not ready", notReady("the database has not answered since "))
	pgtest.Server(t, options)
	awaitHealth(t, e, "ready again", isReady)
	stop()
	if diff := cmp.Diff(changesOnce, log.lines(t)); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
	if log.count(`"not_ready_for":`) != 1 || log.count(`"cause":"the database`) != 1 {
		t.Error("the lines lack how long it was, or why")
	}
}

// A row that the database refuses, and a tenant that someone holds, are no outage.
func TestOneTenantsTroubleIsNotTheEngines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.db.Exec(t, "alter table quotad.entry add constraint no_seven check (units <> 7)")
	e, log := w.recorded(t, func(c *Config) { c.Deadline = 2 * failingMax })
	_, err := e.Decide(t.Context(), consume("globex", "calls", 7))
	wantCode(t, err, CodeInternal)
	w.db.Hold(t, "acme")
	_, err = e.Decide(t.Context(), consume("acme", "calls", 1))
	wantCode(t, err, CodeUnavailable)
	_, err = e.Decide(t.Context(), consume("nobody", "calls", 1))
	wantCode(t, err, CodeTenantNotFound)
	if h := e.Health(); !h.Ready {
		t.Errorf("Health = %+v", h)
	}
	if diff := cmp.Diff(changesOnce[:1], log.lines(t)); diff != "" {
		t.Errorf("logged (-want +got):\n%s", diff)
	}
}
