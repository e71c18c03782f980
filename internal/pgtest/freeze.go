//go:build unix

package pgtest

import (
	"sync"
	"syscall"
	"testing"

	"github.com/quotad/quotad/internal/devpg"
)

// Freeze stops a server and all of its processes where they are, as when the machine or
// its disk hangs: connections stay open, new ones are taken by the kernel, and nothing is
// answered. thaw lets it go on; it is called at the end of the test if not before.
func Freeze(t testing.TB, server *devpg.Server) (thaw func()) {
	t.Helper()
	// A postmaster that is stopped makes no more children while they are counted.
	signal(t, server.PID(), syscall.SIGSTOP)
	stopped := childrenOf(t, server.PID())
	for _, pid := range stopped {
		signal(t, pid, syscall.SIGSTOP)
	}
	thaw = sync.OnceFunc(func() {
		for _, pid := range append(stopped, server.PID()) {
			signal(t, pid, syscall.SIGCONT)
		}
	})
	t.Cleanup(thaw)
	return thaw
}
