package main

import (
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/sim"
)

const restartTime = 3 * time.Second

// The same traffic while instances are killed, stopped and replaced. What was admitted
// does not depend on who lives: no limit is passed, no key is charged twice, and only
// callers without a key, of an instance that was killed, are left not knowing.
func TestRestartsNeverChangeWhatIsAdmitted(t *testing.T) {
	t.Parallel()
	rounds(t, restartTime, restartRound)
}

func restartRound(t *testing.T, seed uint64, length time.Duration) {
	db := migrated(t)
	token := configure(t, db, mixedConfig(0))
	instances, urls := startServes(t, db, 3)
	traffic := newTraffic(seed, urls, length)
	var calls []sim.Call
	var sending errgroup.Group
	sending.Go(func() (err error) {
		calls, err = sim.Load{
			Token: token, Workers: mixedWorkers, Calls: mixedCallsMax, Time: length + eventMax, Next: traffic.next,
		}.Run(t.Context())
		return err
	})
	const restarts = 6
	var killed, stopped []string
	tick := time.NewTicker(length / (restarts + 2))
	defer tick.Stop()
	for n := range restarts {
		<-tick.C
		i := n % len(instances)
		if n%2 == 0 {
			killed = append(killed, urls[i])
			if err := instances[i].signal(sigkill); err != nil {
				t.Error(err)
			}
		} else {
			stopped = append(stopped, urls[i])
			instances[i].stop(t, sigterm)
		}
		instances[i] = startServe(t, db)
		urls[i] = instances[i].url
		traffic.use(urls)
	}
	if err := sending.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, i := range instances {
		i.stop(t, sigterm)
	}
	t.Log(sumUp(calls))
	wantSettled(t, calls)
	lostMax := 0
	for i := range calls {
		c := &calls[i]
		gone := slices.Contains(killed, c.URL) || slices.Contains(stopped, c.URL)
		switch {
		case c.Status >= 500, c.Status == 0 && !gone:
			t.Errorf("%s at %s: status %d, %s", c, c.URL, c.Status, c.Body)
		case c.Status == 0 && c.Key == "" && slices.Contains(killed, c.URL):
			lostMax++
		}
	}
	lost := wantSound(t, db, calls).Lost(calls)
	if lost > lostMax {
		t.Errorf("%d entries have callers who do not know of them; only the %d without a key at a killed instance may not", lost, lostMax)
	}
	if n := deadlocks(t, db); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	t.Logf("%d instances killed, %d stopped; %d of %d callers without a key and an answer were charged",
		len(killed), len(stopped), lost, lostMax)
}
