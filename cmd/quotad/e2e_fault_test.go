package main

import (
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/sim"
)

// Faults under load.
//
// A [fault] is a row of [faults]: what goes wrong, how it is made to, and how it ends.
// [TestFaults] runs each row through one loop: three instances on one PostgreSQL serve a
// [crashLoad]; the fault is injected in the middle of it and lifted; each instance must
// allow a call again within [servingAgainMax], and the ledger must follow from itself.
// Once the load has settled what it asked for, the instances must have leaked nothing, and
// every answer and every entry must follow from each other ([wantCrashSafe]).
//
// To add a fault, add a row. inject gets the [stage], and returns when the fault is in
// force; what it returns ends it. A row that needs a server of its own says with which
// options; one that breaks the wire says that it is proxied.
//
// A row runs once in `go test` unless it is slow, once in `make faults`, and again and again
// with QUOTAD_SOAK. SIM_SEED repeats a
// run's requests, though not their interleaving.
type fault struct {
	name string
	// slow rows are left out of a plain go test: others there are of their kind.
	slow bool
	// server has the options of a PostgreSQL of the row's own; nil shares that of the tests.
	server *devpg.Options
	// place changes what the server stands on, where options do not say it all, before an
	// instance starts.
	place func(t *testing.T, s *stage)
	// proxied puts a [pgtest.Proxy] between instances and PostgreSQL.
	proxied bool
	// flags are those of every instance.
	flags []string
	// patience is how long callers wait before they ask another instance; 0 is for ever.
	patience time.Duration
	// silent is a fault that leaves no caller in doubt: each gets a decision, or at worst,
	// on a machine that is busy with other things, that there is none for now.
	silent bool
	// ignorant is a fault after which a caller without a key, who got no answer, may have
	// been charged and not know of it. Without it nobody ever is.
	ignorant bool
	// inject makes the fault happen and returns once it has. lift ends it, and returns when
	// PostgreSQL and the instances could serve again: from then on the recovery is timed.
	inject func(t *testing.T, s *stage) (lift func())
}

const (
	// faultInstances serve in each row.
	faultInstances = 3
	// faultSoakShare is the part of QUOTAD_SOAK that one row is repeated for.
	faultSoakShare = 10
)

func TestFaults(t *testing.T) {
	t.Parallel()
	seed := simSeed(t)
	report := &faultReport{started: time.Now(), seed: seed, rows: make(map[string]faultRow)}
	t.Cleanup(func() { report.print(t) })
	all := os.Getenv(faultTableEnv) != "" || os.Getenv("QUOTAD_SOAK") != ""
	for _, f := range faults {
		if f.slow && !all {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			roundsFrom(t, seed, soak(t, faultSoakShare)/faultSoakShare, func(t *testing.T, seed uint64, length time.Duration) {
				row := &faultRow{}
				defer func() { report.add(f.name, row, t.Failed()) }()
				playFault(t, f, seed, length, row)
			})
		})
	}
}

// A stage is what a fault happens on.
type stage struct {
	*crashLoad
	fault
	db        *pgtest.DB // as the test sees it
	behind    *pgtest.DB // as the instances see it
	postgres  *devpg.Server
	proxy     *pgtest.Proxy
	disk      *pgtest.Disk
	clock     *pgtest.Clock
	pair      *pair
	token     string
	instances []*instance
	runs      int        // how often the fault was lifted so far
	extra     []sim.Call // beside those of the load
}

// playFault brings a fault about, at least once, and checks all that must hold.
func playFault(t *testing.T, f fault, seed uint64, length time.Duration, row *faultRow) {
	t.Helper()
	s := newStage(t, f, seed)
	goroutines := goroutinesOf(t, s.urlList())
	for until := time.Now().Add(length); s.runs == 0 || time.Now().Before(until); s.runs++ {
		s.awaitAllowed(t, crashCalls)
		lift := f.inject(t, s)
		lift()
		row.recovered(s.wantServing(t, time.Now()))
		row.runs++
		for _, finding := range readLedger(t, s.db).Check() { // in the middle of the load
			t.Error(finding)
		}
	}
	s.awaitAllowed(t, crashCalls)
	s.end(t)
	s.calls = append(s.calls, s.extra...)
	wantNothingLeaked(t, s.db, s.urlList(), goroutines)
	for _, i := range s.instances {
		i.stop(t, sigterm)
	}
	if f.silent {
		wantNoDoubt(t, s.calls)
	}
	ledger := wantCrashSafe(t, s.db, s.crashLoad)
	if n := ledger.Lost(s.calls); n > 0 && !f.ignorant {
		t.Errorf("%d entries are in the ledger whose callers got no answer", n)
	}
	if n := deadlocks(t, s.db); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	row.Tally = ledger.Tally(s.calls)
}

func newStage(t *testing.T, f fault, seed uint64) *stage {
	t.Helper()
	s := &stage{fault: f}
	if f.server == nil {
		s.db = migrated(t)
	} else {
		options := *f.server
		options.Dir = pgtest.Dir(t)
		s.server = &options // with its directory: a row may start it again
		s.postgres = pgtest.Server(t, options)
		s.db = pgtest.On(t, s.postgres)
	}
	s.behind = s.db
	if f.proxied {
		s.proxy = pgtest.NewProxy(t, s.db.URL)
		behind := *s.db
		behind.URL = s.proxy.URL
		s.behind = &behind
	}
	if f.place != nil {
		f.place(t, s)
	}
	s.token = configure(t, s.db, mixedConfig(0))
	instances, urls := startServes(t, s.behind, faultInstances, f.flags...)
	s.instances = instances
	s.crashLoad = startCrashLoad(t, s.db, s.token, seed, urls, f.patience)
	return s
}

// urlList is where the instances are.
func (s *stage) urlList() (urls []string) {
	for _, i := range s.instances {
		urls = append(urls, i.url)
	}
	return urls
}

// victim is the instance whose turn it is.
func (s *stage) victim() *instance { return s.instances[s.runs%len(s.instances)] }

// replace starts an instance in place of one that has ended.
func (s *stage) replace(t *testing.T, gone *instance) {
	t.Helper()
	for i := range s.instances {
		if s.instances[i] == gone {
			s.instances[i] = startServe(t, s.behind, s.flags...)
		}
	}
	s.use(s.urlList())
}

// wantServing wants every instance to be ready, and to allow a call that was begun after
// an instant, soon after it. It returns how long that took.
func (s *stage) wantServing(t *testing.T, since time.Time) (took time.Duration) {
	t.Helper()
	for _, url := range s.urlList() {
		eventually(t, url+" allows a call and is ready after the fault", func() bool {
			began, ok := s.began.Load(url)
			return ok && began.(time.Time).After(since) && readiness(url) == http.StatusOK
		})
	}
	if took = time.Since(since); took > servingAgainMax {
		t.Errorf("the instances serve again %s after the fault has ended, want within %s", took, servingAgainMax)
	}
	return took
}
