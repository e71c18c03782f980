//go:build unix

package devpg

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

const (
	// helperEnv makes this test binary start a server in the directory it names and
	// wait to be killed.
	helperEnv = "DEVPG_TEST_HELPER_DIR"
	eventMax  = 20 * time.Second
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperEnv); dir != "" {
		helper(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

// helper is the body of a process that dies without stopping its server.
func helper(dir string) {
	s, err := Start(context.Background(), Options{Dir: dir})
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(strconv.Itoa(s.PID()) + "\n")
	<-s.Exited()
}

// keptDir returns a directory that the server's user can reach; t.TempDir is closed
// to others.
func keptDir(t *testing.T) string {
	t.Helper()
	parent, err := os.MkdirTemp(VolatileDir(), "devpg-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	if err := os.Chmod(parent, 0o711); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(parent, "pg")
}

func startServer(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Start(t.Context(), o)
	if err != nil {
		t.Fatalf("Start(%+v): %v", o, err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	})
	return s
}

func query[T any](t *testing.T, s *Server, sql string) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), s.URL("postgres"))
	if err != nil {
		t.Fatalf("connect to %s: %v", s.URL("postgres"), err)
	}
	defer conn.Close(t.Context())
	var value T
	if err := conn.QueryRow(t.Context(), sql).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func waitExit(t *testing.T, s *Server) {
	t.Helper()
	select {
	case <-s.Exited():
	case <-time.After(eventMax):
		t.Fatal("the server did not end")
	}
}

// running reports whether process pid is still a live one; a zombie is not.
func running(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func TestThrowawayServerLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{})
	if got := query[string](t, s, "show fsync"); got != "off" {
		t.Errorf("fsync = %q, want off", got)
	}
	if err := s.Stop(); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if running(s.PID()) {
		t.Errorf("process %d still runs after Stop", s.PID())
	}
	if _, err := os.Stat(s.Dir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s after Stop: %v, want not exist", s.Dir(), err)
	}
	if err := s.Stop(); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestKeptDataSurvivesRestart(t *testing.T) {
	t.Parallel()
	o := Options{Dir: keptDir(t), Fsync: true, Settings: map[string]string{"max_connections": "17"}}
	first := startServer(t, o)
	query[int](t, first, "with made as (select 1) select 1 from made")
	conn, err := pgx.Connect(t.Context(), first.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "create table kept as select 42 as n"); err != nil {
		t.Fatal(err)
	}
	// The connection stays open: a fast shutdown does not wait for clients.
	if err := first.Stop(); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	conn.Close(t.Context())

	second := startServer(t, o)
	if got := query[int](t, second, "select n from kept"); got != 42 {
		t.Errorf("kept row = %d, want 42", got)
	}
	if got := query[string](t, second, "show max_connections"); got != "17" {
		t.Errorf("max_connections = %q, want 17", got)
	}
	if first.URL("x") != second.URL("x") {
		t.Errorf("URL changed with a restart: %s, then %s", first.URL("x"), second.URL("x"))
	}
}

func TestStartRecoversAfterTheServerWasKilled(t *testing.T) {
	t.Parallel()
	o := Options{Dir: keptDir(t), Fsync: true}
	first := startServer(t, o)
	query[string](t, first, "select pg_current_wal_lsn()::text")
	if err := syscall.Kill(first.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitExit(t, first)
	if err := first.Stop(); err != nil {
		t.Fatalf("Stop after a kill: %v", err)
	}
	if _, err := os.Stat(filepath.Join(o.Dir, "data", "postmaster.pid")); err != nil {
		t.Fatalf("the test wants a stale postmaster.pid: %v", err)
	}
	second := startServer(t, o)
	query[int](t, second, "select 1")
}

func TestStartRefusesDirectoryInUse(t *testing.T) {
	t.Parallel()
	o := Options{Dir: keptDir(t)}
	startServer(t, o)
	s, err := Start(t.Context(), o)
	if err == nil {
		s.Stop()
		t.Fatal("a second Start on the same directory succeeded")
	}
	if want := "is in use by process " + strconv.Itoa(os.Getpid()); !strings.Contains(err.Error(), want) {
		t.Errorf("error = %q, want it to contain %q", err, want)
	}
}

func TestStartRefusesDirectoryOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "give an empty directory") {
		t.Errorf("error = %v, want one that asks for an empty directory", err)
	}
}

func TestStartNamesTheClosedDirectory(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(filepath.Dir(keptDir(t)), "closed")
	if err := os.Mkdir(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), Options{Dir: filepath.Join(closed, "deep", "pg")})
	if os.Geteuid() != 0 {
		if err != nil {
			t.Fatalf("Start without a change of user: %v", err)
		}
		s.Stop()
		return
	}
	if want := "chmod o+x " + closed + "`"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want it to contain %q", err, want)
	}
}

func TestStartFailureShowsTheLog(t *testing.T) {
	t.Parallel()
	_, err := Start(t.Context(), Options{Settings: map[string]string{"shared_buffers": "plenty"}})
	if want := "invalid value for parameter \"shared_buffers\""; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error = %v, want it to contain %q", err, want)
	}
}

func TestStartSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	_, err := start(t.Context(), Options{}, []string{t.TempDir(), "/nonexistent"})
	if !errors.Is(err, ErrNoBinaries) {
		t.Errorf("error = %v, want %v", err, ErrNoBinaries)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := Start(ctx, Options{}); !errors.Is(err, context.Canceled) {
		if err == nil {
			s.Stop()
		}
		t.Errorf("error = %v, want %v", err, context.Canceled)
	}
}

func TestConcurrentStartsDoNotCollide(t *testing.T) {
	t.Parallel()
	type result struct {
		server *Server
		err    error
	}
	results := make(chan result)
	const servers = 3
	for range servers {
		go func() {
			s, err := Start(t.Context(), Options{})
			results <- result{s, err}
		}()
	}
	for range servers {
		r := <-results
		if r.err != nil {
			t.Errorf("Start: %v", r.err)
			continue
		}
		query[int](t, r.server, "select 1")
		if err := r.server.Stop(); err != nil {
			t.Errorf("Stop: %v", err)
		}
	}
}

func TestLongDirectoryStillHasASocket(t *testing.T) {
	t.Parallel()
	s := startServer(t, Options{Dir: filepath.Join(keptDir(t), strings.Repeat("long", 40))})
	query[int](t, s, "select 1")
	if err := s.Stop(); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	if _, err := os.Stat(s.home.run); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stat %s after Stop: %v, want not exist", s.home.run, err)
	}
}

// Loses a machine full of servers if it breaks: nobody stops them after a test run
// was killed.
func TestServerEndsWithItsKilledOwner(t *testing.T) {
	t.Parallel()
	dir := keptDir(t)
	owner := exec.Command(os.Args[0])
	owner.Env = append(os.Environ(), helperEnv+"="+dir)
	owner.Stderr = os.Stderr
	output, err := owner.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 20)
	n, err := output.Read(text)
	if err != nil {
		t.Fatalf("read the server's process id: %v", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	owner.Wait()

	// Start waits until the old server has let go of the directory.
	s := startServer(t, Options{Dir: dir})
	query[int](t, s, "select 1")
	if running(pid) {
		t.Errorf("process %d outlived its owner", pid)
	}
}

func TestSweepRemovesOnlyAbandonedHomes(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	old := time.Now().Add(-2 * abandonedAfter)
	make := func(name string, at time.Time) string {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		lock := filepath.Join(dir, "lock")
		if err := errors.Join(os.WriteFile(lock, nil, 0o600), os.Chtimes(lock, at, at)); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	abandoned := make(temporaryPrefix+"1", old)
	young := make(temporaryPrefix+"2", time.Now())
	held := make(temporaryPrefix+"3", old)
	foreign := make("other-4", old)
	lock, err := takeLock(t.Context(), held)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := os.Chtimes(lock.Name(), old, old); err != nil {
		t.Fatal(err)
	}
	sweep(parent)
	for dir, kept := range map[string]bool{abandoned: false, young: true, held: true, foreign: true} {
		if _, err := os.Stat(dir); (err == nil) != kept {
			t.Errorf("after sweep, %s: stat = %v, want kept = %t", dir, err, kept)
		}
	}
}
