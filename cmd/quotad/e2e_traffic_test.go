package main

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quotad/quotad/internal/sim"
)

const (
	// mixedCold is few enough for verify, which looks at each tenant, not to take longer
	// than the traffic.
	mixedCold = 200
	// Small tenants have one limit that counts for as long as any test is, and each has a
	// few calls, one tenant after another, so that their history can be searched for an
	// order that explains it.
	mixedSmall  = 200
	smallPrefix = "small-"
	smallCalls  = 60
	smallShare  = 6 // of so many workers one: a search takes long where too many ask at once
)

var smallCounter = sim.Counter{Meter: "calls", Limit: 25}

// traffic makes requests, each worker by its own random numbers.
type traffic struct {
	urls    atomic.Pointer[[]string]
	workers []*trafficWorker
	until   time.Time
	sent    atomic.Int64
	small   atomic.Int64 // requests for small tenants
}

type trafficWorker struct {
	*traffic
	number int
	random *rand.Rand
	tags   int
	tries  int             // of the key that was sent last
	known  map[string]bool // tags of what was allowed
	open   []*sim.Call     // holds that it was given, and has not ended
	used   []*sim.Call     // what it was allowed to consume, and may give back
}

func newTraffic(seed uint64, urls []string, length time.Duration) *traffic {
	tr := &traffic{until: time.Now().Add(length)}
	tr.use(urls)
	for i := range mixedWorkers {
		tr.workers = append(tr.workers, &trafficWorker{
			traffic: tr, number: i, random: rand.New(rand.NewPCG(seed, uint64(i))), known: make(map[string]bool),
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
	for i := range last {
		w.note(&last[i])
	}
	if len(last) > 0 && last[0].Key != "" && w.tries < 3 && w.chance(30) {
		return w.again(&last[0])
	}
	w.tries = 0
	var r sim.Request
	switch {
	case len(w.open) > 0 && w.chance(25):
		r = w.answer()
	case len(w.used) > 0 && w.chance(8):
		r = w.giveBack()
	default:
		r = w.fresh()
	}
	r.URL, r.Tag = w.url(), w.tag()
	switch {
	case strings.HasPrefix(r.Tenant, smallPrefix), r.Kind == sim.KindExtend, r.Kind == sim.KindReverse, w.chance(40):
		r.Key = "key-" + r.Tag
	case r.Kind == "" && w.chance(5):
		r.DryRun = true
	}
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

// rememberMax is how many holds and entries a worker may come back to.
const rememberMax = 8

// note remembers what a worker was given and may come back to.
func (w *trafficWorker) note(c *sim.Call) {
	if c.Outcome != sim.OutcomeAllowed || c.DryRun || w.known[c.Tag] {
		return
	}
	w.known[c.Tag] = true
	kept := *c
	switch {
	case c.Kind == sim.KindHold && len(w.open) < rememberMax:
		w.open = append(w.open, &kept)
	case c.Kind == "" && len(c.Charged) == 1 && c.Charged[c.Charges[0].Meter] > 0 && len(w.used) < rememberMax:
		w.used = append(w.used, &kept)
	}
}

// answer answers one of the worker's holds, in time or too late. Some are never ended.
func (w *trafficWorker) answer() sim.Request {
	i := w.random.IntN(len(w.open))
	held := w.open[i]
	r := sim.Request{Tenant: held.Tenant, Subject: held.Subject, Hold: held.HoldID, Costs: make(map[string]int64)}
	if w.chance(20) {
		r.Kind, r.TTL = sim.KindExtend, w.ttl(held.Tenant)
		for meter := range held.Charged {
			r.Costs[meter] = 0
		}
		return r
	}
	w.open = slices.Delete(w.open, i, i+1)
	if r.Kind = sim.KindSettle; w.chance(30) {
		r.Kind = sim.KindRelease
	}
	for meter, units := range held.Charged {
		r.Costs[meter] = 0
		if r.Kind == sim.KindSettle { // less, as much, or more
			r.Costs[meter] = w.random.Int64N(2*units + 1)
			r.Charges = append(r.Charges, sim.Charge{Meter: meter, Cost: r.Costs[meter]})
		}
	}
	return r
}

// giveBack reverses some of what the worker has used.
func (w *trafficWorker) giveBack() sim.Request {
	i := w.random.IntN(len(w.used))
	c := w.used[i]
	if w.chance(50) { // else it is given back from again, perhaps more than is left
		w.used = slices.Delete(w.used, i, i+1)
	}
	meter := c.Charges[0].Meter
	units := 1 + w.random.Int64N(c.Charged[meter])
	return sim.Request{
		Kind: sim.KindReverse, Tenant: c.Tenant, Subject: c.Subject, Seq: c.Receipt.FirstSeq, Units: units,
		Costs: map[string]int64{meter: -units},
	}
}

// ttl is how long a hold lasts: those of small tenants outlive the test, and steps of its clock.
func (w *trafficWorker) ttl(tenant string) time.Duration {
	if strings.HasPrefix(tenant, smallPrefix) {
		return 12 * time.Hour
	}
	return time.Duration(20+w.random.IntN(2000)) * time.Millisecond
}

// again sends the last keyed request once more, or another one with its key.
func (w *trafficWorker) again(last *sim.Call) []sim.Request {
	w.tries++
	r := last.Request
	r.URL = w.url()
	if last.Outcome == sim.OutcomeAllowed && r.Kind == "" && w.chance(20) {
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

// fresh is a request that was not sent before, to consume or to hold.
func (w *trafficWorker) fresh() sim.Request {
	r := sim.Request{Tenant: "hot", Costs: make(map[string]int64)}
	if w.chance(20) {
		r.Kind = sim.KindHold
	}
	if n := w.small.Load() / smallCalls; n < mixedSmall && w.number%smallShare == 0 && w.chance(75) {
		w.small.Add(1)
		r.Tenant = fmt.Sprint(smallPrefix, n)
		if n%2 > 0 { // while nothing is held, an instance may remember a denial
			r.Kind = ""
		}
		if r.Kind == sim.KindHold {
			r.TTL = w.ttl(r.Tenant)
		}
		w.charge(&r, smallCounter.Meter)
		return r
	}
	if w.chance(50) {
		r.Tenant = fmt.Sprint("cold-", w.random.IntN(mixedCold))
	}
	if w.chance(60) {
		r.Subject = fmt.Sprint("user-", w.random.IntN(30))
	}
	if r.Kind == sim.KindHold {
		r.TTL = w.ttl(r.Tenant)
	}
	meters := []string{"calls", "tokens", "mail", "posts", "logins", "jobs"}
	if r.Kind == sim.KindHold { // places in a queue cannot be held
		meters = meters[:len(meters)-1]
	}
	for _, i := range w.random.Perm(len(meters))[:1+w.random.IntN(3)] {
		w.charge(&r, meters[i])
	}
	if w.chance(10) {
		w.charge(&r, r.Charges[0].Meter) // the same meter again: they are summed
	}
	return r
}

func (w *trafficWorker) charge(r *sim.Request, meter string) {
	c := sim.Charge{Meter: meter, Cost: int64(w.random.IntN(4))}
	switch meter {
	case "mail":
		if r.Kind == sim.KindHold && r.Subject == "" { // cold tenants count places per subject
			r.Subject = fmt.Sprint("user-", w.random.IntN(30))
		}
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

// mixedConfig is the n-th configuration of a run.
func mixedConfig(n int) string {
	tenants := ""
	if n == 0 {
		for i := range mixedSmall {
			tenants += fmt.Sprintf("  %s%d: {plan: small}\n", smallPrefix, i)
		}
		for i := range mixedCold {
			tenants += fmt.Sprintf("  cold-%d: {plan: cold, timezone: %s}\n", i, []string{"UTC", "Asia/Jakarta"}[i%2])
		}
		tenants = "tenants:\n  hot: {plan: hot}\n" + tenants
	}
	more := n % 3 * 10
	return fmt.Sprintf(`
meters:
  calls:  {unit: call}
  tokens: {unit: token, weights: {input: 1, output: 4, cached: 0.1}, on_expiry: charge}
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
      - {name: pool,    meter: tokens, algorithm: token_bucket,    capacity: 1500, refill: 3501/7s}
      - {name: shape,   meter: jobs,   algorithm: leaky_bucket,    queue: %d, rate: 301/7s}
      - {name: smooth,  meter: mail,   algorithm: gcra,            burst: 20, rate: 173/3s}
      - {name: places,  meter: mail,   algorithm: concurrency,     limit: 6}
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
      - {name: places, meter: mail,   algorithm: concurrency,     limit: 1, scope: subject}
      - {name: each,   meter: logins, algorithm: sliding_log,     limit: 1, window: 2s, scope: subject}
      - {name: free,   meter: posts,  algorithm: sliding_log,     unlimited: true, window: 1m}
  small:
    limits:
      - {name: all,    meter: calls,  algorithm: sliding_log,     limit: %d, window: 24h}
%s`, 60+more, 40+more, 3000+20*more, 15+more, smallCounter.Limit, tenants)
}
