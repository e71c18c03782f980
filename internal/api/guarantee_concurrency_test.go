package api

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/quota"
)

// atOnce sends bodies to the instances in turn, all at the same time, and returns the
// answers in their order.
func atOnce(t *testing.T, instances []*service, bodies []string, header ...string) []answer {
	t.Helper()
	answers := make([]answer, len(bodies))
	var group errgroup.Group
	for i, body := range bodies {
		group.Go(func() error {
			answers[i] = instances[i%len(instances)].consume(body, header...)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return answers
}

// statusCounts counts answers by status.
func statusCounts(answers []answer) map[int]int {
	counts := map[int]int{}
	for _, a := range answers {
		counts[a.status]++
	}
	return counts
}

// Whoever reads a counter and then writes it lets all of a burst through. Here a thousand
// callers of a tenant without a past ask three instances at once, and some of every
// other kind of limit with them: exactly the limit passes, and nobody gets an error.
func TestExactlyTheLimitIsAdmittedOfParallelFirstCalls(t *testing.T) {
	t.Parallel()
	instances := newInstances(t, 3, configOf(10))
	var bodies, tenants []string
	for _, k := range kinds {
		calls := 60
		if k.name == "log" {
			calls = 1000
		}
		for range calls {
			bodies, tenants = append(bodies, charging(k.name, 1)), append(tenants, k.name)
		}
	}
	rand.New(rand.NewPCG(6, 0)).Shuffle(len(bodies), func(i, j int) {
		bodies[i], bodies[j] = bodies[j], bodies[i]
		tenants[i], tenants[j] = tenants[j], tenants[i]
	})
	answers := atOnce(t, instances, bodies)
	byTenant := map[string][]answer{}
	for i, a := range answers {
		byTenant[tenants[i]] = append(byTenant[tenants[i]], a)
	}
	for tenant, answers := range byTenant {
		want := map[int]int{200: 10, 429: len(answers) - 10}
		if diff := cmp.Diff(want, statusCounts(answers)); diff != "" {
			t.Errorf("%s: answers by status, want-, got+:\n%s", tenant, diff)
		}
		if entries := instances[0].ledgerOf(tenant); len(entries) != 10 {
			t.Errorf("%s: %d entries, want 10", tenant, len(entries))
		}
	}
}

// Subjects that nobody has seen before are many callers' first ones at the same moment:
// none of them fails, and none is let through for not being there yet.
func TestFirstCallsOfNewSubjectsNeverCollide(t *testing.T) {
	t.Parallel()
	const subjects, calls = 12, 15
	c := &configuration{}
	each := func(k kind) string { return strings.Replace(k.limitOf(k.name, 2), "}", `,"scope":"subject"}`, 1) }
	c.tenant("users", planOf(each(kinds[0]), each(kinds[8])))
	instances := newInstances(t, 3, c)
	var bodies []string
	for i := range subjects * calls {
		bodies = append(bodies, fmt.Sprintf(`{"tenant":"users","subject":"user %d","meter":"api.calls"}`, i%subjects))
	}
	answers := atOnce(t, instances, bodies)
	passed := make([]int, subjects)
	for i, a := range answers {
		if instances[0].decided(a).Allowed {
			passed[i%subjects]++
		}
	}
	for i, n := range passed {
		if n != 2 {
			t.Errorf("user %d: %d of %d calls pass, want 2", i, n, calls)
		}
	}
	if got := instances[0].rows()["subject"]; got != subjects {
		t.Errorf("%d subjects are kept, want %d", got, subjects)
	}
}

// Charges in any order, tenants of a batch in any order, the same ones twice: every
// answer is a decision, no transaction is a victim of a deadlock, and every unit is there.
func TestChargesAndTenantsInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	const callers, rounds, tenants, meters = 24, 6, 4, 4
	c := &configuration{}
	var limits []string
	for m := range meters {
		c.meters = append(c.meters, fmt.Sprintf(`"meter-%d":{"unit":"call"}`, m))
		for _, k := range []kind{kinds[0], kinds[8]} {
			limit := k.limitOf(fmt.Sprintf("%s-%d", k.name, m), 999_999)
			limits = append(limits, strings.Replace(limit, "api.calls", fmt.Sprintf("meter-%d", m), 1))
		}
	}
	for n := range tenants {
		c.tenant(fmt.Sprintf("tenant-%d", n), planOf(limits...))
	}
	instances := newInstances(t, 3, c)
	var mu sync.Mutex
	sent := map[string]int64{} // by tenant and limit
	var group errgroup.Group
	for caller := range callers {
		group.Go(func() error {
			random := rand.New(rand.NewPCG(7, uint64(caller)))
			for range rounds {
				var items []string
				for _, n := range append(random.Perm(tenants), random.IntN(tenants)) {
					var charges []string
					for _, m := range append(random.Perm(meters), random.IntN(meters)) {
						charges = append(charges, fmt.Sprintf(`{"meter":"meter-%d"}`, m))
						mu.Lock()
						sent[fmt.Sprintf("tenant-%d log-%d", n, m)]++
						mu.Unlock()
					}
					items = append(items, fmt.Sprintf(`{"tenant":"tenant-%d","charges":[%s]}`, n, strings.Join(charges, ",")))
				}
				s := instances[random.IntN(len(instances))]
				for _, a := range s.batch(items...).results(t) {
					a.want(t, 200)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for n := range tenants {
		tenant := fmt.Sprintf("tenant-%d", n)
		for _, l := range instances[0].stand(tenant) {
			if want := sent[tenant+" "+l.Name]; l.Used != want && l.Algorithm == "sliding_log" {
				t.Errorf("%s of %s: %d used, want %d", l.Name, tenant, l.Used, want)
			}
		}
	}
	for _, s := range instances { // a batch that a deadlock ends is run again, and counted
		metrics := s.do(request{method: http.MethodGet, path: "/metrics"}).want(t, 200).body
		if !strings.Contains(metrics, "quotad_batch_retries_total 0\n") {
			t.Errorf("batches were run again:\n%s", s.logs.String())
		}
	}
}

// What one limit denies no other limit is charged for, on that meter or another: all of
// them stand as before, and so does every row.
func TestADenialByOneLimitChargesNoOther(t *testing.T) {
	t.Parallel()
	c := &configuration{meters: []string{`"other":{"unit":"call"}`}}
	var limits []string
	for _, k := range kinds {
		limits = append(limits, k.limitOf(k.name, 5), strings.Replace(k.limitOf("other-"+k.name, 5), "api.calls", "other", 1))
	}
	tight := `{"name":"tight","meter":"api.calls","algorithm":"sliding_log","limit":2,"window":"1m"}`
	c.tenant("acme", planOf(append(limits, tight)...))
	s := newKinds(t, c)
	both := func(cost int64) quota.Decision {
		return s.decided(s.consume(fmt.Sprintf(
			`{"tenant":"acme","charges":[{"meter":"other","cost":%d},{"meter":"api.calls","cost":%d}]}`, cost, cost)))
	}
	if d := both(1); !d.Allowed {
		t.Fatalf("%+v, want it allowed", d)
	}
	rows, before := s.rows(), s.stand("acme")
	for range 5 {
		d := both(2)
		for _, l := range d.Limits {
			if d.Allowed || l.Violated != (l.Name == "tight") {
				t.Errorf("%+v, want a denial by tight alone", l)
			}
		}
	}
	if diff := cmp.Diff(before, s.stand("acme")); diff != "" {
		t.Errorf("limits, before-, after+:\n%s", diff)
	}
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("rows, before-, after+:\n%s", diff)
	}
	for _, l := range both(1).Limits {
		if l.Used != 2 {
			t.Errorf("limit %s: %d used after two calls, want 2", l.Name, l.Used)
		}
	}
}

// A queue of 10 that lets 2 a second leave, and 15 callers at once: ten get a turn, each
// its own, half a second apart and in the order in which they were taken; five are told
// at once when there is room. Nobody who comes later leaves earlier.
func TestALeakyBucketHandsOutDistinctTurnsInOrder(t *testing.T) {
	t.Parallel()
	c := &configuration{}
	c.tenant("queue", planOf(`{"name":"it","meter":"api.calls","algorithm":"leaky_bucket","queue":10,"rate":"2/1s"}`))
	instances := newInstances(t, 3, c)
	var turns []quota.Decision
	denied := 0
	for _, a := range atOnce(t, instances, slices.Repeat([]string{charging("queue", 1)}, 15)) {
		d := instances[0].decided(a)
		if d.Allowed {
			turns = append(turns, d)
			continue
		}
		denied++
		if got := retryMillis(t, d); got != 500 {
			t.Errorf("a full queue has room in %d ms, want 500", got)
		}
	}
	slices.SortFunc(turns, func(a, b quota.Decision) int { return int(a.Receipt.Seq - b.Receipt.Seq) })
	for i, d := range turns {
		if want := int64(i+1) * 500; d.DelayMS == nil || *d.DelayMS != want || *d.Limits[0].DelayMS != want {
			t.Errorf("turn %d: delay_ms = %s, want %d", i+1, value(d.DelayMS), want)
		}
	}
	if len(turns) != 10 || denied != 5 {
		t.Fatalf("%d queued and %d denied, want 10 and 5", len(turns), denied)
	}
	for later := range int64(6) {
		instances[0].pass(700 * time.Millisecond)
		if _, d := instances[later%3].spend("queue", 1); d.Allowed {
			leaves := time.Duration(*d.DelayMS)*time.Millisecond + time.Duration(later+1)*700*time.Millisecond
			if last := 5*time.Second + time.Duration(later+1)*500*time.Millisecond; leaves != last {
				t.Errorf("who came %d later leaves after %v, want %v", later+1, leaves, last)
			}
		} else {
			t.Errorf("who came %d later is denied with room in the queue: %+v", later+1, d)
		}
	}
}

// A key is charged once, however many ask with it and wherever: all of them get the one
// answer. It is the key of that request and of that tenant alone.
func TestAKeyIsChargedOnceHoweverManyAskAtOnce(t *testing.T) {
	t.Parallel()
	instances := newInstances(t, 3, configOf(100))
	s := instances[0]
	for _, k := range []kind{kinds[0], kinds[8], kinds[10]} {
		answers := atOnce(t, instances, slices.Repeat([]string{charging(k.name, 7)}, 60), "Idempotency-Key", "order-1")
		fresh := 0
		for _, a := range answers {
			if a.want(t, 200).body != answers[0].body {
				t.Errorf("%s: two answers to one key:\n%s\n%s", k.name, a.body, answers[0].body)
			}
			if a.header.Get("Idempotent-Replayed") == "" {
				fresh++
			}
		}
		if got := s.stand(k.name)[0].Used; got != 7 || fresh != 1 || len(s.ledgerOf(k.name)) != 1 {
			t.Errorf("%s: %d used and %d charged of 60 with one key, want 7 and 1", k.name, got, fresh)
		}
		for _, other := range []string{
			charging(k.name, 8),
			fmt.Sprintf(`{"tenant":%q,"subject":"u","meter":"api.calls","cost":7}`, k.name),
			fmt.Sprintf(`{"tenant":%q,"meter":"api.calls","cost":7,"dims":{"a":"b"}}`, k.name),
		} {
			s.consume(other, "Idempotency-Key", "order-1").want(t, 422, codeKeyReused)
		}
		if got := s.stand(k.name)[0].Used; got != 7 {
			t.Errorf("%s: %d used after requests that were refused, want 7", k.name, got)
		}
	}
}
