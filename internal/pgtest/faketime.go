//go:build unix

package pgtest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/devpg"
)

// A Clock is the clock of a server's machine, which a test steps while the server runs:
// every reading of the time of day by its processes is shifted, and none of what measures
// durations. SetClock is for a database's decisions alone, and stands still.
type Clock struct {
	file string
}

// NewClock changes o so that a server of it has the clock, which goes right at first. It
// needs libfaketime on the machine.
func NewClock(t testing.TB, o *devpg.Options) *Clock {
	t.Helper()
	library := ""
	for _, pattern := range []string{
		"/usr/lib/*/faketime/libfaketime.so.1", // Debian
		"/usr/lib*/faketime/libfaketime.so.1",  // Red Hat, Alpine, Arch
		"/usr/local/lib/faketime/libfaketime.so.1",
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			library = found[0]
			break
		}
	}
	if library == "" {
		t.Fatal("pgtest: a server's clock is stepped with libfaketime: install it (`apt-get install libfaketime`, `dnf install libfaketime`)")
	}
	c := &Clock{file: filepath.Join(Dir(t), "clock")}
	c.Step(t, 0)
	o.Env = append(o.Env,
		"LD_PRELOAD="+library, "FAKETIME_TIMESTAMP_FILE="+c.file, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1", "DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1", // the second is the older name of the first
	)
	return c
}

// Step sets how far the clock is from the right time, at once and for every process.
func (c *Clock) Step(t testing.TB, to time.Duration) {
	t.Helper()
	// It gets its name last: a process may read it at any time.
	next := c.file + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+d\n", int64(to/time.Second)), 0o644); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if err := os.Rename(next, c.file); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}
