package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/sim"
)

// The end-to-end tests run quotad as processes of its own, which can be signalled and
// killed: this test binary, started with asQuotadEnv, is the very program. Building
// the real one takes seconds and would not carry the race detector along.
const (
	asQuotadEnv = "QUOTAD_TEST_AS_QUOTAD"
	// eventMax bounds each wait for a process.
	eventMax = time.Minute
	logBytes = 4 << 10

	sigint  = syscall.SIGINT
	sigterm = syscall.SIGTERM
	sigkill = syscall.SIGKILL
)

// asQuotad is main in a process that a test has started. It dies with the test: a
// killed or timed-out one leaves no instance behind.
func asQuotad() {
	go func() {
		io.Copy(io.Discard, os.Stdin) // ends when the test does
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}()
	main()
}

// A process is a running quotad.
type process struct {
	command *exec.Cmd
	stdout  *os.File
	lines   *bufio.Reader // of stdout
	logs    string        // the file of stderr
	waiting errgroup.Group
	exited  chan struct{} // closed when the process has been waited for
}

// start starts quotad with arguments, and environment variables beside those of the
// test. It is killed when the test ends.
func start(t *testing.T, env []string, arguments ...string) *process {
	t.Helper()
	p := &process{exited: make(chan struct{}), logs: t.TempDir() + "/stderr"}
	logs, err := os.Create(p.logs)
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	in, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	stdout, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	p.stdout, p.lines = stdout, bufio.NewReader(stdout)
	p.command = exec.Command(os.Args[0], arguments...)
	p.command.Env = append(append(os.Environ(), asQuotadEnv+"=1"), env...)
	p.command.Stdin, p.command.Stdout, p.command.Stderr = in, out, logs
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	p.waiting.Go(func() error {
		defer close(p.exited)
		return p.command.Wait()
	})
	t.Cleanup(func() {
		keep.Close()
		<-p.exited
		stdout.Close()
		if t.Failed() {
			t.Logf("the end of what quotad %s logged:\n%s", strings.Join(arguments, " "), p.logged())
		}
	})
	return p
}

// logged is the end of what the process wrote to stderr.
func (p *process) logged() string {
	text, err := os.ReadFile(p.logs)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logBytes):])
}

// line returns the next line of stdout.
func (p *process) line(t *testing.T) string {
	t.Helper()
	if err := p.stdout.SetReadDeadline(time.Now().Add(eventMax)); err != nil {
		t.Fatal(err)
	}
	line, err := p.lines.ReadString('\n')
	if err != nil {
		t.Fatalf("read a line of %s: %v; it logged:\n%s", p.command, err, p.logged())
	}
	return strings.TrimSuffix(line, "\n")
}

// signal sends a signal. A process that has ended already is an error.
func (p *process) signal(signal syscall.Signal) error { return p.command.Process.Signal(signal) }

// wait waits for the end and returns the exit code, -1 for a signal.
func (p *process) wait(t *testing.T) int {
	t.Helper()
	timer := time.NewTimer(eventMax)
	defer timer.Stop()
	select {
	case <-p.exited:
		return p.command.ProcessState.ExitCode()
	case <-timer.C:
		t.Fatalf("%s did not end in %s; it logged:\n%s", p.command, eventMax, p.logged())
		return 0
	}
}

// stop asks a process to end and wants exit code 0.
func (p *process) stop(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := p.signal(signal); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 0 {
		t.Errorf("%s ends with %d after %s, want 0", p.command, code, signal)
	}
}

// output runs quotad to its end and returns the exit code and stdout.
func output(t *testing.T, arguments ...string) (code int, stdout string) {
	t.Helper()
	p := start(t, nil, arguments...)
	text, err := io.ReadAll(p.lines)
	if err != nil {
		t.Fatal(err)
	}
	return p.wait(t), string(text)
}

// An instance is a running `quotad serve`.
type instance struct {
	*process
	url string
}

func startServe(t *testing.T, db *pgtest.DB, flags ...string) *instance {
	t.Helper()
	p := start(t, nil, append([]string{"serve", "--database-url", db.URL, "--listen", "127.0.0.1:0"}, flags...)...)
	line := p.line(t)
	url, ok := strings.CutPrefix(line, "listening on ")
	if !ok {
		t.Fatalf("first line = %q, want where it listens", line)
	}
	return &instance{p, url}
}

func startServes(t *testing.T, db *pgtest.DB, n int, flags ...string) (instances []*instance, urls []string) {
	t.Helper()
	for range n {
		i := startServe(t, db, flags...)
		instances, urls = append(instances, i), append(urls, i.url)
	}
	return instances, urls
}

// configure applies a configuration and returns a key that may do everything. It leaves no
// session behind.
func configure(t *testing.T, db *pgtest.DB, config string) (token string) {
	t.Helper()
	withCatalog(t, db, func(store *catalog.Store) (err error) {
		if err := apply(t.Context(), store, config); err != nil {
			return err
		}
		_, token, err = store.CreateKey(t.Context(), "test", catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyAdmin}})
		return err
	})
	return token
}

// createKey makes a key of one scope.
func createKey(t *testing.T, db *pgtest.DB, scope catalog.KeyScope) (token string) {
	t.Helper()
	withCatalog(t, db, func(store *catalog.Store) (err error) {
		_, token, err = store.CreateKey(t.Context(), "test", catalog.KeySpec{Scopes: []catalog.KeyScope{scope}})
		return err
	})
	return token
}

// withCatalog runs do on a pool of its own.
func withCatalog(t *testing.T, db *pgtest.DB, do func(*catalog.Store) error) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := do(catalog.NewStore(pool)); err != nil {
		t.Fatal(err)
	}
}

func apply(ctx context.Context, store *catalog.Store, config string) error {
	parsed, err := catalog.ParseFile([]byte(config), "test.yaml")
	if err != nil {
		return err
	}
	_, err = store.Apply(ctx, "test", parsed, catalog.ApplyOptions{})
	return err
}

func load(t *testing.T, l sim.Load) []sim.Call {
	t.Helper()
	calls, err := l.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// wantSound checks the ledger against all calls that were made to it, and has quotad
// verify it as well. It returns the ledger and what was found.
func wantSound(t *testing.T, db *pgtest.DB, calls []sim.Call) *sim.Ledger {
	t.Helper()
	ledger := readLedger(t, db)
	findings := ledger.CheckCalls(calls)
	findings = append(findings, ledger.CheckOutside(calls)...)
	disordered, unsure := smallCounter.Linear(calls, func(tenant string) bool { return strings.HasPrefix(tenant, smallPrefix) })
	if unsure > 0 {
		t.Logf("the histories of %d small tenants were too long to search", unsure)
	}
	for _, finding := range append(findings, disordered...) {
		t.Error(finding)
	}
	if code, out := output(t, "verify", "--database-url", db.OwnerURL); code != 0 {
		t.Errorf("verify ends with %d: %s", code, out)
	}
	return ledger
}

func readLedger(t *testing.T, db *pgtest.DB) (ledger *sim.Ledger) {
	t.Helper()
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(t.Context(), db.Owner(t), options, func(tx pgx.Tx) (err error) {
		ledger, err = sim.Read(t.Context(), tx)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return ledger
}

// wantNoFailures wants an answer to every call, and none of it a 5xx.
func wantNoFailures(t *testing.T, calls []sim.Call) {
	t.Helper()
	shown := 0
	for i := range calls {
		if c := &calls[i]; (c.Status == 0 || c.Status >= 500) && shown < 10 {
			t.Errorf("%s at %s: status %d, %s", c, c.URL, c.Status, c.Body)
			shown++
		}
	}
}

// sumUp says what a run of calls came to.
func sumUp(calls []sim.Call) string {
	counts := sim.Count(calls)
	replayed, first, last := 0, calls[0].Started, calls[0].Started
	for i := range calls {
		if calls[i].Replayed {
			replayed++
		}
		if end := calls[i].Started.Add(calls[i].Took); end.After(last) {
			last = end
		}
	}
	return fmt.Sprintf("%d calls in %s: %d allowed (%d replayed), %d denied, %d refused, %d unknown; p50 %s, p99 %s, most %s; statuses %v",
		len(calls), last.Sub(first).Round(time.Millisecond),
		counts[sim.OutcomeAllowed], replayed, counts[sim.OutcomeDenied], counts[sim.OutcomeRefused], counts[sim.OutcomeUnknown],
		sim.TookAt(calls, 500), sim.TookAt(calls, 990), sim.TookAt(calls, 1000), sim.Statuses(calls))
}

// deadlocks returns how many the database has seen. Backends say so at their end, so
// the instances must have ended.
func deadlocks(t *testing.T, db *pgtest.DB) (n int64) {
	t.Helper()
	waitUntil(t, "the instances' sessions have ended", func() bool {
		var sessions int
		err := db.Owner(t).QueryRow(t.Context(), `
select count(*)
from pg_stat_activity
where datname = current_database() and pid not in (select pid from pg_stat_activity where usename = current_user)`).Scan(&sessions)
		if err != nil {
			t.Fatal(err)
		}
		return sessions == 0
	})
	err := db.Owner(t).QueryRow(t.Context(), "select deadlocks from pg_stat_database where datname = current_database()").Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// alive reports whether a process exists.
func alive(pid int) bool { return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

// soak is how long a long test may run, from QUOTAD_SOAK; otherwise if it is not set.
func soak(t *testing.T, otherwise time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("QUOTAD_SOAK")
	if text == "" {
		return otherwise
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		t.Fatalf("QUOTAD_SOAK = %q, want a duration", text)
	}
	return d
}
