//go:build unix

package pgtest

import (
	"testing"
	"time"

	"github.com/quotad/quotad/internal/devpg"
)

// A server's clock is stepped ahead and back while its sessions go on, and lock_timeout
// and the like measure true durations.
func TestAServersClockIsSteppedWhileItRuns(t *testing.T) {
	t.Parallel()
	var options devpg.Options
	clock := NewClock(t, &options)
	db := On(t, Server(t, options))
	for _, step := range []time.Duration{0, time.Hour, -time.Hour, 0} {
		clock.Step(t, step)
		sent := time.Now()
		at := now(t, db)
		if off := at.Sub(sent); off < step-time.Second || off > step+time.Minute {
			t.Errorf("with the clock %s off, the server is %s from this process", step, off)
		}
		var slept time.Duration
		err := db.Owner(t).QueryRow(t.Context(), "select clock_timestamp() - now() from (select pg_sleep(0.2)) x").Scan(&slept)
		if err != nil || slept < 200*time.Millisecond || slept > 10*time.Second {
			t.Errorf("a sleep of 200 ms took %s by the server's clock, %v", slept, err)
		}
	}
}
