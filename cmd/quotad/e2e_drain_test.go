package main

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/sim"
)

// An instance of two is stopped under load, as a rolling update does it: it says that
// it is not ready while it still answers, then it refuses connections, and whatever it
// took it has answered. Its callers go on at the other one.
func TestSIGTERMIsARollingUpdateWithoutALoss(t *testing.T) {
	t.Parallel()
	rounds(t, crashTime, func(t *testing.T, seed uint64, length time.Duration) {
		db := migrated(t)
		token := configure(t, db, mixedConfig(0))
		instances, urls := startServes(t, db, 2, "--drain-delay", "300ms")
		load := startCrashLoad(t, db, token, seed, urls)
		var stopped []string
		for until := time.Now().Add(length); len(stopped) < 2 || time.Now().Before(until); {
			load.awaitAllowed(t, crashCalls)
			i := len(stopped) % len(instances)
			stopped = append(stopped, urls[i])
			if err := instances[i].signal(sigterm); err != nil {
				t.Error(err)
			}
			eventually(t, "the instance says that it is not ready", func() bool {
				status := readiness(urls[i])
				if status == 0 {
					t.Fatal("the instance refuses connections and never said that it is not ready")
				}
				return status == http.StatusServiceUnavailable
			})
			if code := instances[i].wait(t); code != 0 {
				t.Errorf("serve ends with %d after SIGTERM, want 0", code)
			}
			instances[i] = startServe(t, db, "--drain-delay", "300ms")
			urls[i] = instances[i].url
			load.use(urls)
		}
		load.awaitAllowed(t, crashCalls)
		calls := load.end(t)
		for _, i := range instances {
			i.stop(t, sigterm)
		}
		if n := wantCrashSafe(t, db, load).Lost(calls); n != 0 {
			t.Errorf("%d entries are in the ledger whose callers got no answer", n)
		}
		for i := range calls {
			if c := &calls[i]; c.Status >= 500 || c.Outcome == sim.OutcomeUnknown && !refused(c) {
				t.Errorf("%s at %s: status %d, %s", c, c.URL, c.Status, c.Body)
			}
		}
	})
}

// refused reports whether a call's connection was never taken: nobody listened any more,
// or it was still in the kernel's queue when that began, and the kernel reset it.
func refused(c *sim.Call) bool {
	return strings.HasSuffix(c.Body, "connection refused") || strings.HasSuffix(c.Body, "connection reset by peer")
}
