//go:build unix

package pgtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/devpg"
)

const (
	// goneMax is what the kernel may take to end a killed process.
	goneMax  = 10 * time.Second
	gonePoll = 5 * time.Millisecond
)

// Crash kills a server and all of its processes at once, as when the machine's memory
// has run out: nothing is flushed, nobody says goodbye. Start it again on its directory
// and it recovers from its log.
func Crash(t testing.TB, server *devpg.Server) {
	t.Helper()
	// A postmaster that is stopped makes no more children while they are counted.
	signal(t, server.PID(), syscall.SIGSTOP)
	children := childrenOf(t, server.PID())
	signal(t, server.PID(), syscall.SIGKILL)
	for _, pid := range children {
		signal(t, pid, syscall.SIGKILL)
	}
	<-server.Exited()
	tick := time.NewTicker(gonePoll)
	defer tick.Stop()
	for deadline := time.Now().Add(goneMax); len(children) > 0; <-tick.C {
		if _, running := parentOf(children[0]); !running {
			children = children[1:]
		} else if time.Now().After(deadline) {
			t.Fatalf("pgtest: process %d was killed and is there after %s", children[0], goneMax)
		}
	}
	if err := server.Stop(); err != nil { // gives the directory's lock back
		t.Fatalf("pgtest: %v", err)
	}
}

func signal(t testing.TB, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil && err != syscall.ESRCH {
		t.Fatalf("pgtest: send %s to process %d: %v", signal, pid, err)
	}
}

// childrenOf lists the children of a process.
func childrenOf(t testing.TB, parent int) (children []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(names) == 0 {
		t.Fatalf("pgtest: no processes in /proc: %v", err)
	}
	for _, name := range names {
		pid, err := strconv.Atoi(filepath.Base(name))
		if err != nil {
			continue
		}
		if of, running := parentOf(pid); running && of == parent {
			children = append(children, pid)
		}
	}
	return children
}

// parentOf returns the parent of a process; false if it has ended, whether or not its
// end was waited for.
func parentOf(pid int) (parent int, running bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	text = text[bytes.LastIndexByte(text, ')')+1:] // the name before it may hold anything
	var state string
	if n, err := fmt.Sscan(string(text), &state, &parent); n != 2 || err != nil {
		return 0, false
	}
	return parent, state != "Z" && state != "X"
}
