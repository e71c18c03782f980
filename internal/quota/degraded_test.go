package quota

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/spool"
)

// awayConfig has a tenant for each way of a plan to meet an outage.
const awayConfig = `
meters:
  calls:  {unit: call}
  tokens: {unit: token}
plans:
  denies:
    limits:
      - {name: ten, meter: calls, algorithm: sliding_log, limit: 1000, window: 1h}
  allows:
    limits:
      - {name: ten, meter: calls, algorithm: sliding_log, limit: 1000, window: 1h, on_error: allow}
      - {name: watched, meter: calls, algorithm: sliding_log, limit: 1, window: 1h, mode: shadow}
  locals:
    limits:
      - {name: ten, meter: calls, algorithm: sliding_log, limit: 10, window: 1h, on_error: local, local_share: 30}
  mixed:
    limits:
      - {name: free, meter: calls,  algorithm: sliding_log,  limit: 1000, window: 1h, on_error: allow}
      - {name: some, meter: calls,  algorithm: token_bucket, capacity: 10, refill: 10/1h, on_error: local, local_share: 50}
      - {name: none, meter: tokens, algorithm: sliding_log,  limit: 1000, window: 1h}
  watched:
    limits:
      - {name: shadow, meter: calls, algorithm: sliding_log, limit: 10, window: 1h, mode: shadow}
tenants:
  denies:  {plan: denies}
  allows:  {plan: allows}
  locals:  {plan: locals}
  mixed:   {plan: mixed}
  watched: {plan: watched}
`

var awayTenants = []string{"denies", "allows", "locals", "mixed", "watched"}

// spooled starts an engine that may grant without the database.
func (w *world) spooled(t testing.TB, change func(*Config)) *Engine {
	t.Helper()
	kept, err := spool.Open(t.TempDir(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	e := w.engine(t, func(c *Config) {
		hasty(c)
		c.Spool = kept
		if change != nil {
			change(c)
		}
	})
	return e
}

// spooledAt is spooled at another address of the database.
func (w *world) spooledAt(t testing.TB, url string, change func(*Config)) *Engine {
	t.Helper()
	database, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return w.spooled(t, func(c *Config) {
		c.Database = database
		if change != nil {
			change(c)
		}
	})
}

// meet lets an engine see every tenant once, with a cost of 0.
func meet(t testing.TB, e *Engine) {
	t.Helper()
	for _, tenant := range awayTenants {
		mustDecide(t, e, consume(tenant, "calls", 0))
	}
	// An engine whose questions were never answered takes no database for away.
	awaitReach(t, e, "there", e.reach.known.Load)
}

// outages are the ways in which a database goes away; each returns how it comes back.
var outages = map[string]func(t *testing.T, server *devpg.Server, options devpg.Options) (back func()){
	"stopped": func(t *testing.T, server *devpg.Server, options devpg.Options) func() {
		if err := server.Stop(); err != nil {
			t.Fatal(err)
		}
		return func() { pgtest.Server(t, options) }
	},
	"crashed": func(t *testing.T, server *devpg.Server, options devpg.Options) func() {
		pgtest.Crash(t, server)
		return func() { pgtest.Server(t, options) }
	},
	"frozen": func(t *testing.T, server *devpg.Server, _ devpg.Options) func() { return pgtest.Freeze(t, server) },
}

// eachOutage runs a test in every kind of outage, with an engine that met all tenants.
func eachOutage(t *testing.T, test func(t *testing.T, w *world, e *Engine, strike func() (back func()))) {
	t.Helper()
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := devpg.Options{Dir: pgtest.Dir(t)}
			server := pgtest.Server(t, options)
			w := newWorldOf(t, pgtest.On(t, server), awayConfig)
			e := w.spooled(t, nil)
			meet(t, e)
			test(t, w, e, func() func() { return outage(t, server, options) })
		})
	}
}

// answerSlack is what a loaded machine may add to an answer.
const answerSlack = 2 * time.Second

// The contract of an outage, from the first call on: nothing is granted but where a limit
// says so, nobody waits much longer than the deadline, and the next ones do not wait.
func TestOnErrorDecidesWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	eachOutage(t, func(t *testing.T, w *world, e *Engine, strike func() func()) {
		back := strike()
		started := time.Now()
		d := mustDecide(t, e, consume("allows", "calls", 1))
		if took := time.Since(started); !d.Allowed || !d.Degraded || d.DegradedBy() != catalog.OnErrorAllow || d.Receipt != nil ||
			took > decisionDefault+answerSlack {
			t.Errorf("the first answer is %+v after %s, want it allowed, degraded and without a receipt", d, took)
		}
		refused := 0
		for _, r := range []Request{
			consume("denies", "calls", 1), consume("denies", "calls", 0), consume("watched", "calls", 1),
			charging2("mixed", Charge{Meter: "calls", Cost: 1}, Charge{Meter: "tokens", Cost: 1}),
			consume("mixed", "tokens", 1), consume("stranger", "calls", 1), consume("allows", "tokens", 1),
			dry(consume("allows", "calls", 1)),
		} {
			_, err := e.Decide(t.Context(), r)
			if wantCode(t, err, CodeUnavailable).RetryAfter <= 0 {
				t.Errorf("%+v is refused without Retry-After", r)
			}
			refused++
		}
		_, err := e.Limits(t.Context(), "allows", "")
		wantCode(t, err, CodeUnavailable)
		_, err = e.Decide(t.Context(), consume("allows", "no.such.meter", 1))
		wantCode(t, err, CodeMeterNotFound)
		started = time.Now()
		for range 100 {
			mustDecide(t, e, consume("allows", "calls", 1))
		}
		if took := time.Since(started); took > 100*decisionDefault/5 {
			t.Errorf("100 answers took %s: they waited for the database", took)
		}
		wantGauge(t, e, 101)
		back()
		awaitBack(t, e)
		if d := mustDecide(t, e, consume("denies", "calls", 1)); !d.Allowed || d.Degraded || d.Receipt == nil {
			t.Errorf("with the database back: %+v", d)
		}
		w.awaitPosted(t, e)
		for _, entry := range w.entries(t, "allows") { // what was given up is not decided later as well
			if entry.Kind == ledger.KindConsume && entry.Units > 0 {
				t.Errorf("request %s was granted without the database and then decided", entry.RequestID)
			}
		}
		w.verify(t)
	})
}

// Local limits grant their share and no more, and say when more comes; the strictest of a
// request wins.
func TestLocalLimitsGrantTheirShareOfTheLimit(t *testing.T) {
	t.Parallel()
	eachOutage(t, func(t *testing.T, w *world, e *Engine, strike func() func()) {
		back := strike()
		for i := range 5 {
			d := mustDecide(t, e, consume("locals", "calls", 1))
			if want := i < 3; d.Allowed != want || !d.Degraded || d.DegradedBy() != catalog.OnErrorLocal {
				t.Fatalf("answer %d of a share of 3 is %+v", i+1, d)
			}
			if l := d.DegradedLimits[0]; *l.Limit != 3 || *l.Used != min(int64(i)+1, 3) || l.Violated == d.Allowed {
				t.Errorf("answer %d says %+v", i+1, l)
			}
			if !d.Allowed && (d.Reason != ReasonQuotaExceeded || d.RetryMS == nil || *d.RetryMS > time.Hour.Milliseconds()) {
				t.Errorf("a denial of a share says %+v", d)
			}
		}
		_, err := e.Decide(t.Context(), consume("locals", "calls", 4))
		wantCode(t, err, CodeUnavailable) // the limit may hold it when the database is back
		for i := range 6 {
			d := mustDecide(t, e, consume("mixed", "calls", 1))
			if want := i < 5; d.Allowed != want || d.DegradedBy() != catalog.OnErrorLocal || len(d.DegradedLimits) != 2 {
				t.Errorf("answer %d of allow beside a share of 5 is %+v", i+1, d)
			}
		}
		back()
		awaitBack(t, e)
		w.awaitPosted(t, e)
		if d := mustDecide(t, e, consume("locals", "calls", 7)); !d.Allowed || *d.Remaining != 0 {
			t.Errorf("after 3 granted locally 7 of 10: %+v", d)
		}
		w.verify(t)
	})
}

// A request whose commit was sent may be in the ledger: it gets the truth, however long
// that takes, and not a second grant.
func TestACommitThatWasSentIsNeverDegraded(t *testing.T) {
	t.Parallel()
	options := devpg.Options{Dir: pgtest.Dir(t)}
	server := pgtest.Server(t, options)
	w := newWorldOf(t, pgtest.On(t, server), awayConfig)
	var faults pgtest.Faults
	e := w.spooled(t, func(c *Config) { faults.Attach(&c.Database.Config) })
	meet(t, e)
	struck := faults.Arm(pgtest.Fault{OnStatement: commitRound, Deliver: true, Hang: true})
	done := make(chan outcome, 1)
	go func() {
		d, err := e.Decide(t.Context(), consume("allows", "calls", 1))
		done <- outcome{d, err}
	}()
	<-struck
	thaw := pgtest.Freeze(t, server)
	e.Suspect()
	awaitAway(t, e)
	if d := mustDecide(t, e, consume("locals", "calls", 1)); !d.Degraded {
		t.Fatalf("another tenant got %+v", d)
	}
	select {
	case out := <-done:
		t.Fatalf("got %+v while its commit is unknown", out)
	default:
	}
	thaw()
	faults.CutAll()
	out := <-done
	if out.err != nil || out.decision.Degraded || out.decision.Receipt == nil {
		t.Errorf("got %+v, %v; want the ledger's answer", out.decision, out.err)
	}
	if n := w.requestIDs(t, "allows")[out.decision.RequestID]; n != 1 {
		t.Errorf("it stands %d times in the ledger, want once", n)
	}
	w.awaitPosted(t, e)
	w.verify(t)
}

// Without a place to record it nothing is granted.
func TestWithoutADirectoryOrRoomNothingIsGranted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	for name, bytesMax := range map[string]int64{"no directory": 0, "no room": 10} {
		var faults pgtest.Faults
		e := w.engine(t, func(c *Config) {
			hasty(c)
			faults.Attach(&c.Database.Config)
			if bytesMax > 0 {
				kept, err := spool.Open(t.TempDir(), bytesMax)
				if err != nil {
					t.Fatal(err)
				}
				c.Spool = kept
			}
		})
		meet(t, e)
		if bytesMax == 0 && !slices.ContainsFunc(e.Health().Warnings, containing("on_error: allow and --degraded-dir is not set")) {
			t.Errorf("%s: warnings %q", name, e.Health().Warnings)
		}
		faults.Refuse(errors.New("nobody there"))
		faults.CutAll()
		for _, tenant := range []string{"allows", "locals"} {
			_, err := e.Decide(t.Context(), consume(tenant, "calls", 1))
			wantCode(t, err, CodeUnavailable)
		}
	}
}

// A suspended tenant gets nothing out of an outage.
func TestASuspendedTenantIsGrantedNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	var faults pgtest.Faults
	e := w.spooled(t, func(c *Config) { faults.Attach(&c.Database.Config) })
	meet(t, e)
	w.apply(t, awayConfig+"  allows2: {plan: allows, status: suspended}\n")
	mustDecide(t, e, consume("allows2", "calls", 1))
	faults.Refuse(errors.New("nobody there"))
	faults.CutAll()
	_, err := e.Decide(t.Context(), consume("allows2", "calls", 1))
	wantCode(t, err, CodeUnavailable)
	if d := mustDecide(t, e, consume("allows", "calls", 1)); !d.Degraded {
		t.Errorf("an active one got %+v", d)
	}
}

// A database that takes no writes is there and lets nothing be decided, whether it says so
// to the locks or, as with a schema of another version, to the commit.
func TestOnErrorDecidesWhileTheDatabaseTakesNoWrites(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, says, begin, end string }{
		{
			"read-only", "in a read-only transaction (SQLSTATE 25006)",
			"alter system set default_transaction_read_only = on", "alter system set default_transaction_read_only = off",
		},
		{
			"a column is gone", "(SQLSTATE 42703)",
			"alter table quotad.entry rename column batch_id to taken", "alter table quotad.entry rename column taken to batch_id",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorldOf(t, pgtest.On(t, pgtest.Server(t, devpg.Options{})), awayConfig)
			var log record
			e := w.spooled(t, func(c *Config) { c.Log = slog.New(slog.NewJSONHandler(&log, nil)) })
			meet(t, e)
			change := func(sql string) {
				w.db.Exec(t, sql)
				w.db.Exec(t, "select pg_reload_conf()")
			}
			change(tt.begin)
			stop := load(t, e, "denies")
			awaitHealth(t, e, "not ready", notReady(tt.says))
			stop() // else calls would be given up behind one that is tried again
			if d := mustDecide(t, e, consume("allows", "calls", 1)); !d.Degraded {
				t.Errorf("got %+v", d)
			}
			for range 3 {
				_, err := e.Decide(t.Context(), consume("denies", "calls", 1))
				if refusal := wantCode(t, err, CodeUnavailable); !errors.Is(refusal, errRefuses) {
					t.Errorf("got %v, want %v: it was not given up before its deadline", refusal, errRefuses)
				}
			}
			change(tt.end)
			awaitHealth(t, e, "ready again", isReady)
			if n := log.count(`"ready again"`); n != 1 { // an empty commit, of calls that were given up, says nothing
				t.Errorf("the engine was ready again %d times, want once", n)
			}
			w.awaitPosted(t, e)
			w.verify(t)
		})
	}
}

// The same key is granted once, whoever asks and whenever: during the outage, while its
// grant is recorded, and with another request never.
func TestAKeyIsGrantedOnceInAnOutage(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	var faults pgtest.Faults
	e := w.spooled(t, func(c *Config) { faults.Attach(&c.Database.Config) })
	meet(t, e)
	faults.Refuse(errors.New("nobody there"))
	faults.CutAll()
	e.Suspect()
	awaitAway(t, e)
	r := consume("locals", "calls", 1)
	r.Key = "order-1"
	var mu sync.Mutex
	answers := make(map[string]int)
	var callers sync.WaitGroup
	for range 20 {
		callers.Go(func() {
			d := mustDecide(t, e, r)
			mu.Lock()
			defer mu.Unlock()
			answers[string(d.Encoded)]++
		})
	}
	callers.Wait()
	if len(answers) != 1 {
		t.Errorf("%d different answers to one key: %v", len(answers), answers)
	}
	wantGauge(t, e, 1)
	other := r
	other.Charges = []Charge{{Meter: "calls", Cost: 2}}
	_, err := e.Decide(t.Context(), other)
	wantCode(t, err, CodeKeyReused)
	faults.Refuse(nil)
	awaitBack(t, e)
	w.awaitPosted(t, e)
	if d := mustDecide(t, e, r); !d.Replayed || answers[string(d.Encoded)] == 0 {
		t.Errorf("a retry after the outage got %+v, want the answer of then", d)
	}
	w.verify(t)
}
