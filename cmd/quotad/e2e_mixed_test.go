package main

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/sim"
)

const (
	mixedWorkers = 48
	mixedTime    = 4 * time.Second
	// mixedRoundMax keeps what is held in memory of a long run bounded: it is cut into
	// rounds, each with a database and a seed of its own.
	mixedRoundMax = time.Minute
	mixedCallsMax = 1_000_000
	// mixedCallsMin is made whatever the machine is busy with: a run in which nothing
	// was denied proves nothing about limits.
	mixedCallsMin = 2_500
)

// Every kind of limit, three instances, one hot tenant and two hundred cold ones, keys
// sent to two instances at once, sent again and reused, a plan that changes all the
// time: whatever was admitted and answered must follow from the ledger, and the ledger
// from the rules. SIM_SEED repeats a run's requests, though not their interleaving.
func TestMixedTrafficOnThreeInstancesIsExact(t *testing.T) {
	t.Parallel()
	rounds(t, mixedTime, mixedRound)
}

// rounds runs a long test in rounds, each under a seed of its own.
func rounds(t *testing.T, otherwise time.Duration, round func(t *testing.T, seed uint64, length time.Duration)) {
	t.Helper()
	roundsFrom(t, simSeed(t), soak(t, otherwise), round)
}

func roundsFrom(t *testing.T, seed uint64, length time.Duration, round func(t *testing.T, seed uint64, length time.Duration)) {
	t.Helper()
	for left := length; left > 0; left -= mixedRoundMax {
		t.Run(fmt.Sprint("SIM_SEED=", seed), func(t *testing.T) {
			round(t, seed, min(left, mixedRoundMax))
		})
		seed++
	}
}

// simSeed is the seed of a run, from SIM_SEED if it is set.
func simSeed(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("SIM_SEED")
	if text == "" {
		return uint64(time.Now().UnixNano())
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("SIM_SEED: %v", err)
	}
	return seed
}

func mixedRound(t *testing.T, seed uint64, length time.Duration) {
	db := migrated(t)
	token := configure(t, db, mixedConfig(0))
	instances, urls := startServes(t, db, 3)
	traffic := newTraffic(seed, urls, length)
	changes := reconfigure(t, applying(db))
	calls := load(t, sim.Load{
		Token: token, Workers: mixedWorkers, Calls: mixedCallsMax, Time: length + eventMax, Next: traffic.next,
	})
	changes.stop(t)
	for _, i := range instances {
		i.stop(t, sigterm)
	}
	t.Log(sumUp(calls))
	wantNoFailures(t, calls)
	wantMixture(t, calls)
	ledger := wantSound(t, db, calls)
	changes.wantFollowed(t, ledger, calls)
	if n := ledger.Lost(calls); n != 0 {
		t.Errorf("%d entries are in the ledger whose callers got no answer", n)
	}
	n := deadlocks(t, db)
	if n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	t.Logf("%d entries, %d of them of the hot tenant; %d changes of its plan; %d deadlocks",
		ledger.Entries(), ledger.EntriesOf("hot"), len(changes.done)-1, n)
}

// wantMixture wants the traffic to have been what it is meant to be. How often the
// fastest limits deny depends on the machine; the log says.
func wantMixture(t *testing.T, calls []sim.Call) {
	t.Helper()
	kinds := make(map[string]int)
	for i := range calls {
		c := &calls[i]
		if c.Tenant == "hot" {
			kinds[fmt.Sprint("hot ", c.Outcome)]++
		} else {
			kinds[fmt.Sprint("cold ", c.Outcome)]++
		}
		if c.Kind != "" && c.Outcome == sim.OutcomeAllowed {
			kinds[string(c.Kind)]++
		}
		if c.Replayed {
			kinds["replayed"]++
		}
		if c.DryRun {
			kinds["dry run"]++
		}
		for _, v := range c.Violated {
			kinds["denied by "+v.Name]++
		}
		if c.Status == http.StatusUnprocessableEntity {
			kinds["key reused"]++
		}
		if c.Status == http.StatusConflict {
			kinds["too late for a hold"]++
		}
		if c.Outcome == sim.OutcomeRefused && c.Status != http.StatusUnprocessableEntity && c.Status != http.StatusConflict {
			t.Errorf("%s: status %d: %s", c, c.Status, c.Body)
		}
	}
	t.Log(kinds)
	for _, want := range []string{
		"hot allowed", "hot denied", "cold allowed", "cold denied", "replayed", "dry run", "key reused",
		"denied by log", "denied by pool", "denied by shape", "denied by smooth", "denied by each",
		"hold", "extend", "settle", "release", "reverse",
	} {
		if kinds[want] == 0 {
			t.Errorf("the traffic had no %s", want)
		}
	}
}
