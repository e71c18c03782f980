package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/quotad/quotad/internal/devpg"
)

// urlEnv names a running server to use instead of a throwaway one.
const urlEnv = "QUOTAD_TEST_DATABASE_URL"

// shared is the server of this test process. It is the one package-level variable
// that changes: tests of a package have nothing else in common that could own it,
// and a server for each of them would cost a second each.
var shared process

// process starts its server for the first test that asks.
type process struct {
	once   sync.Once
	server *devpg.Server // nil if it was given by urlEnv
	made   *cluster
	err    error
}

// Main runs the tests of a package, as the whole body of its TestMain. Leaks are
// options for a library that leaves a goroutine it offers no way to end.
func Main(m *testing.M, leaks ...goleak.Option) { os.Exit(Run(m, leaks...)) }

// Run runs the tests, stops the server they used, and fails if a goroutine is left
// that nobody waited for. It returns the exit code. Use it instead of Main where m is
// wrapped.
func Run(m interface{ Run() int }, leaks ...goleak.Option) int {
	code := m.Run()
	if err := shared.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a failed test leaves goroutines, and they are not the news
	}
	if err := goleak.Find(leaks...); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 1
	}
	return 0
}

// Server starts a server for one test, for those that stop it, kill it or change its
// settings. It is stopped when the test ends. A Dir must come from [Dir].
func Server(t testing.TB, o devpg.Options) *devpg.Server {
	t.Helper()
	server, err := devpg.Start(t.Context(), o)
	if err != nil {
		noServer(t, err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	return server
}

// Dir returns a new directory's path for a server's files, removed when the test
// ends. Unlike t.TempDir it can be entered by the user that the server runs as.
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp(devpg.VolatileDir(), "quotad-test-")
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	})
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return dir
}

func (p *process) cluster(t testing.TB) *cluster {
	t.Helper()
	p.once.Do(func() { p.err = p.start(context.WithoutCancel(t.Context())) })
	if p.err != nil {
		noServer(t, p.err)
	}
	return p.made
}

func (p *process) start(ctx context.Context) (err error) {
	address := os.Getenv(urlEnv)
	outlives := address != ""
	if !outlives {
		p.server, err = devpg.Start(ctx, devpg.Options{Settings: map[string]string{"max_connections": "200"}})
		if err != nil {
			return err
		}
		address = p.server.URL("postgres")
	}
	if p.made, err = newCluster(ctx, address); err != nil {
		return fmt.Errorf("%s: %w", urlEnv, err)
	}
	p.made.outlives = outlives
	return nil
}

// stop ends what start began, if it did.
func (p *process) stop() error {
	p.once.Do(func() {})
	if p.made != nil {
		p.made.close()
	}
	if p.server != nil {
		return p.server.Stop()
	}
	return nil
}

// noServer fails the test: one that is skipped in silence proves nothing for years.
// Only -short, which asks for what needs no server, may skip.
func noServer(t testing.TB, err error) {
	t.Helper()
	if testing.Short() && errors.Is(err, devpg.ErrNoBinaries) {
		t.Skipf("pgtest: -short without a server: %v", err)
	}
	t.Fatalf("pgtest: %v", err)
}
