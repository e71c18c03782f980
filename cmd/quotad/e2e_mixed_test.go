package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
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

// Every kind of limit, three instances, one hot tenant and a thousand cold ones, keys
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
		if c.Outcome == sim.OutcomeRefused && c.Status != http.StatusUnprocessableEntity {
			t.Errorf("%s: status %d: %s", c, c.Status, c.Body)
		}
	}
	t.Log(kinds)
	for _, want := range []string{
		"hot allowed", "hot denied", "cold allowed", "cold denied", "replayed", "dry run", "key reused",
		"denied by log", "denied by pool", "denied by shape", "denied by smooth", "denied by each",
	} {
		if kinds[want] == 0 {
			t.Errorf("the traffic had no %s", want)
		}
	}
}

// mixedConfig is the n-th configuration of a run.
func mixedConfig(n int) string {
	tenants := ""
	if n == 0 {
		for i := range mixedCold {
			tenants += fmt.Sprintf("  cold-%d: {plan: cold, timezone: %s}\n", i, []string{"UTC", "Asia/Jakarta"}[i%2])
		}
		tenants = "tenants:\n  hot: {plan: hot}\n" + tenants
	}
	more := n % 3 * 10
	return fmt.Sprintf(`
meters:
  calls:  {unit: call}
  tokens: {unit: token, weights: {input: 1, output: 4, cached: 0.1}}
  jobs:   {unit: job}
  mail:   {unit: mail}
  logins: {unit: attempt}
  posts:  {unit: post}
plans:
  hot:
    limits:
      - {name: log,     meter: calls,  algorithm: sliding_log,     limit: %d, window: 1s}
      - {name: burst,   meter: calls,  algorithm: token_bucket,    capacity: 30, refill: %d/1s}
      - {name: second,  meter: calls,  algorithm: fixed_window,    limit: 50, window: 700ms}
      - {name: month,   meter: calls,  algorithm: fixed_window,    limit: 900000000, window: month}
      - {name: counter, meter: tokens, algorithm: sliding_counter, limit: %d, window: 900ms}
      - {name: pool,    meter: tokens, algorithm: token_bucket,    capacity: 1500, refill: 14001/7s}
      - {name: shape,   meter: jobs,   algorithm: leaky_bucket,    queue: %d, rate: 301/7s}
      - {name: smooth,  meter: mail,   algorithm: gcra,            burst: 20, rate: 173/3s}
      - {name: each,    meter: logins, algorithm: sliding_log,     limit: 2, window: 1100ms, scope: subject}
      - {name: drip,    meter: logins, algorithm: token_bucket,    capacity: 3, refill: 4/3s, scope: subject}
      - {name: watch,   meter: posts,  algorithm: token_bucket,    capacity: 10, refill: 7/1s, mode: shadow}
      - {name: unused,  meter: posts,  algorithm: sliding_log,     limit: 0, window: 1m, mode: off}
      - {name: free,    meter: posts,  algorithm: sliding_counter, unlimited: true, window: 1m}
  cold:
    limits:
      - {name: log,    meter: calls,  algorithm: sliding_log,     limit: 2, window: 2s}
      - {name: day,    meter: calls,  algorithm: fixed_window,    limit: 40, window: day}
      - {name: pool,   meter: tokens, algorithm: sliding_counter, limit: 300, window: 2s}
      - {name: shape,  meter: jobs,   algorithm: leaky_bucket,    queue: 2, rate: 1/3s}
      - {name: smooth, meter: mail,   algorithm: gcra,            burst: 2, rate: 1/3s}
      - {name: each,   meter: logins, algorithm: sliding_log,     limit: 1, window: 2s, scope: subject}
      - {name: free,   meter: posts,  algorithm: sliding_log,     unlimited: true, window: 1m}
%s`, 60+more, 40+more, 3000+20*more, 15+more, tenants)
}

const mixedCold = 1000

// traffic makes requests, each worker by its own random numbers.
type traffic struct {
	urls    atomic.Pointer[[]string]
	workers []*trafficWorker
	until   time.Time
	sent    atomic.Int64
}

type trafficWorker struct {
	*traffic
	number int
	random *rand.Rand
	tags   int
	tries  int // of the key that was sent last
}

func newTraffic(seed uint64, urls []string, length time.Duration) *traffic {
	tr := &traffic{until: time.Now().Add(length)}
	tr.use(urls)
	for i := range mixedWorkers {
		tr.workers = append(tr.workers, &trafficWorker{
			traffic: tr, number: i, random: rand.New(rand.NewPCG(seed, uint64(i))),
		})
	}
	return tr
}

// use sends what follows to other instances.
func (tr *traffic) use(urls []string) {
	kept := slices.Clone(urls)
	tr.urls.Store(&kept)
}

func (tr *traffic) next(worker int, last []sim.Call) []sim.Request {
	w := tr.workers[worker]
	for i := range last {
		if c := &last[i]; c.Key != "" && c.Outcome == sim.OutcomeUnknown {
			r := c.Request // whoever got no answer asks again
			r.URL = w.url()
			return []sim.Request{r}
		}
	}
	if tr.sent.Add(int64(len(last))) >= mixedCallsMin && time.Now().After(tr.until) {
		return nil
	}
	return tr.more(worker, last)
}

// more is what a worker sends that has got its answers.
func (tr *traffic) more(worker int, last []sim.Call) []sim.Request {
	w := tr.workers[worker]
	if len(last) > 0 && last[0].Key != "" && w.tries < 3 && w.chance(30) {
		return w.again(&last[0])
	}
	w.tries = 0
	r := w.fresh()
	if r.Key == "" {
		return []sim.Request{r}
	}
	requests := []sim.Request{r}
	for range w.random.IntN(3) { // the same key to several instances at once
		r.URL = w.url()
		requests = append(requests, r)
	}
	return requests
}

// again sends the last keyed request once more, or another one with its key.
func (w *trafficWorker) again(last *sim.Call) []sim.Request {
	w.tries++
	r := last.Request
	r.URL = w.url()
	if last.Outcome == sim.OutcomeAllowed && w.chance(20) {
		w.tries = 3
		r.Tag = w.tag()
		r.Charges = append([]sim.Charge{{Meter: "posts", Cost: 7}}, r.Charges...)
		r.Costs = nil
	}
	return []sim.Request{r}
}

func (w *trafficWorker) chance(percent int) bool { return w.random.IntN(100) < percent }

func (w *trafficWorker) url() string {
	urls := *w.urls.Load()
	return urls[w.random.IntN(len(urls))]
}

func (w *trafficWorker) tag() string {
	w.tags++
	return fmt.Sprintf("%d-%d", w.number, w.tags)
}

// fresh is a request that was not sent before.
func (w *trafficWorker) fresh() sim.Request {
	r := sim.Request{URL: w.url(), Tenant: "hot", Tag: w.tag(), Costs: make(map[string]int64)}
	if w.chance(50) {
		r.Tenant = fmt.Sprint("cold-", w.random.IntN(mixedCold))
	}
	if w.chance(60) {
		r.Subject = fmt.Sprint("user-", w.random.IntN(30))
	}
	meters := []string{"calls", "tokens", "jobs", "mail", "posts", "logins"}
	for _, i := range w.random.Perm(len(meters))[:1+w.random.IntN(3)] {
		w.charge(&r, meters[i])
	}
	if w.chance(10) {
		w.charge(&r, r.Charges[0].Meter) // the same meter again: they are summed
	}
	switch {
	case w.chance(40):
		r.Key = "key-" + r.Tag
	case w.chance(5):
		r.DryRun = true
	}
	return r
}

func (w *trafficWorker) charge(r *sim.Request, meter string) {
	c := sim.Charge{Meter: meter, Cost: int64(w.random.IntN(4))}
	switch meter {
	case "logins":
		c.Cost = 1
		if r.Subject == "" {
			r.Subject = fmt.Sprint("user-", w.random.IntN(30))
		}
	case "tokens":
		in, out, cached := int64(w.random.IntN(100)), int64(w.random.IntN(20)), int64(w.random.IntN(50))
		c.Pools = map[string]int64{"input": in, "output": out, "cached": cached}
		c.Cost = in + 4*out + (cached+9)/10
	}
	r.Charges = append(r.Charges, c)
	r.Costs[meter] += c.Cost
}
