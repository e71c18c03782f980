package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/sim"
)

// A devRun is a running `quotad dev --json`.
type devRun struct {
	*process
	URL      string `json:"url"`
	AdminKey string `json:"admin_key"`
	Tenant   string `json:"tenant"`
}

func startDev(t *testing.T, temporary string, arguments ...string) *devRun {
	t.Helper()
	d := &devRun{process: start(t, []string{"TMPDIR=" + temporary},
		append([]string{"dev", "--json", "--listen", "127.0.0.1:0"}, arguments...)...)}
	line := d.line(t)
	if err := json.Unmarshal([]byte(line), d); err != nil || d.URL == "" || d.AdminKey == "" || d.Tenant == "" {
		t.Fatalf("first line = %q, %v; want one JSON object with url, admin_key and tenant", line, err)
	}
	return d
}

// spend makes one call of the demo tenant and returns the number of its entry.
func (d *devRun) spend(t *testing.T, key, tag string) int64 {
	t.Helper()
	calls := load(t, sim.Load{
		Token: key, Workers: 1, Calls: 1, Time: eventMax,
		Next: func(int, []sim.Call) []sim.Request {
			return []sim.Request{{
				URL: d.URL, Tenant: d.Tenant, Tag: tag, Key: tag, Charges: []sim.Charge{{Meter: "api.calls", Cost: 1}},
			}}
		},
	})
	if c := &calls[0]; c.Status != http.StatusOK || c.Fault != "" {
		t.Fatalf("consume = %d %s, fault %q; want 200", c.Status, c.Body, c.Fault)
	}
	return calls[0].Receipt.Seq
}

// postmaster returns the id of the PostgreSQL process that runs on a directory.
func postmaster(t *testing.T, dir string) int {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "data", "postmaster.pid"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d servers run on %s, %v; want 1", len(files), dir, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// wantEmpty wants nothing to be left of a process in a directory.
func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range left {
		t.Errorf("%s is left behind in %s", entry.Name(), dir)
	}
}

// Trying quotad out costs nothing: one line tells a program all it needs, and Ctrl-C
// takes everything away.
func TestDevServesAndLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	temporary := pgtest.Dir(t)
	dev := startDev(t, temporary)
	dev.spend(t, dev.AdminKey, "first")
	server := postmaster(t, filepath.Join(temporary, "quotad-pg-*"))
	if !alive(server) {
		t.Fatalf("process %d is no server", server)
	}
	dev.stop(t, sigint)
	if alive(server) {
		t.Errorf("PostgreSQL (process %d) still runs", server)
	}
	wantEmpty(t, temporary)
}

// With --data the next start goes on: the same ledger, the same keys.
func TestDevKeepsItsData(t *testing.T) {
	t.Parallel()
	temporary := pgtest.Dir(t)
	data := filepath.Join(pgtest.Dir(t), "data")
	first := startDev(t, temporary, "--data", data)
	seq := first.spend(t, first.AdminKey, "first")
	server := postmaster(t, data)
	first.stop(t, sigint)
	if alive(server) {
		t.Errorf("PostgreSQL (process %d) still runs", server)
	}
	second := startDev(t, temporary, "--data", data)
	if got := second.spend(t, first.AdminKey, "first"); got != seq {
		t.Errorf("the same call after a restart has entry %d, want %d: it was forgotten", got, seq)
	}
	if got := second.spend(t, second.AdminKey, "second"); got != seq+1 {
		t.Errorf("the next call after a restart has entry %d, want %d: the demo was loaded again", got, seq+1)
	}
	closed := syscall.SIGHUP // the terminal's end
	if signal.Ignored(closed) {
		closed = sigint
	}
	second.stop(t, closed)
	wantEmpty(t, temporary)
}

// Whoever is impatient gets everything taken away all the same.
func TestDevStoppedWhileItStartsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	temporary := pgtest.Dir(t)
	dev := start(t, []string{"TMPDIR=" + temporary}, "dev", "--json", "--listen", "127.0.0.1:0")
	waitUntil(t, "the server's directory is there", func() bool {
		found, err := filepath.Glob(filepath.Join(temporary, "quotad-pg-*", "data"))
		return err == nil && len(found) == 1
	})
	if err := dev.signal(sigint); err != nil {
		t.Fatal(err)
	}
	if code := dev.wait(t); code != 0 {
		t.Errorf("dev ends with %d after SIGINT while it starts, want 0", code)
	}
	wantEmpty(t, temporary)
}

// A directory that cannot be used is a sentence about that directory, not a stack of
// PostgreSQL's.
func TestDevSaysWhatIsWrongWithADirectory(t *testing.T) {
	t.Parallel()
	closed := filepath.Join(pgtest.Dir(t), "closed")
	mode, advice := fs.FileMode(0o700), "choose another directory"
	if os.Geteuid() != 0 {
		mode, advice = 0, "permission denied"
	}
	if err := errors.Join(os.Mkdir(closed, 0o700), os.Chmod(closed, mode)); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(pgtest.Dir(t), "foreign")
	if err := errors.Join(os.Mkdir(foreign, 0o755), os.WriteFile(foreign+"/letter.txt", []byte("dear"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]string{filepath.Join(closed, "data"): advice, foreign: "give an empty directory"} {
		dev := start(t, nil, "dev", "--json", "--listen", "127.0.0.1:0", "--data", data)
		if code := dev.wait(t); code != 1 {
			t.Errorf("dev --data %s ends with %d, want 1", data, code)
		}
		said := dev.logged()
		last := said[strings.LastIndex(strings.TrimSpace(said), "\n")+1:]
		if !strings.Contains(said, data) || !strings.Contains(said, want) || strings.Count(said, "\n") > 3 {
			t.Errorf("dev --data %s says %q; want one sentence with the directory and %q", data, last, want)
		}
	}
}

// Somebody else's port is a sentence too, and the server that was started goes.
func TestDevOnATakenPortLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	temporary := pgtest.Dir(t)
	taken := startDev(t, temporary)
	address := strings.TrimPrefix(taken.URL, "http://")
	other := pgtest.Dir(t)
	dev := start(t, []string{"TMPDIR=" + other}, "dev", "--json", "--listen", address)
	if code := dev.wait(t); code != 1 || !strings.Contains(dev.logged(), "address already in use") {
		t.Errorf("dev on a taken port ends with %d and says %q; want 1 and why", code, dev.logged())
	}
	wantEmpty(t, other)
	taken.stop(t, sigint)
	wantEmpty(t, temporary)
}
