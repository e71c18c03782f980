package api

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// A cost of 0 fits wherever the limit is not blocked: in a full one too, and in one that
// was lowered below what is used. It uses nothing, and is recorded like any other call;
// dry_run is what asks without a trace.
func TestCostZeroFitsAndUsesNothing(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		full := s.admitted(k.name, 5)
		rows := s.rows()
		s.would(k.name, 0)
		if got := s.rows(); got["entry"] != rows["entry"] {
			t.Errorf("a dry run of cost 0 wrote %d entries", got["entry"]-rows["entry"])
		}
		free := s.admitted(k.name, 0)
		if free.Limits[0].Used != 5 || left(t, free) != 0 || free.Limits[0].ResetMS != full.Limits[0].ResetMS {
			t.Errorf("after cost 0: %+v, want what there was: %+v", free.Limits[0], full.Limits[0])
		}
		if got := s.rows(); got["entry"] != rows["entry"]+1 {
			t.Errorf("cost 0 wrote %d entries, want 1", got["entry"]-rows["entry"])
		}
		s.denied(k.name, 1)
		s.put(k.name, k.limitOf("it", 3)) // less than is used
		s.admitted(k.name, 0)
		s.denied(k.name, 1)
	})
}

// Amounts of fifteen digits are counted to the unit, in the body and in the header, and
// what would pass them is refused, not wrapped around.
func TestAmountsOfFifteenDigitsAreExact(t *testing.T) {
	t.Parallel()
	const most = int64(999_999_999_999_999)
	c := configOf(most)
	for i := range c.plans {
		c.plans[i] = strings.ReplaceAll(c.plans[i], "7/1m", "999999999999999/1h") // a queue must drain some day
	}
	s := newKinds(t, c)
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		for _, tt := range []struct{ cost, remaining int64 }{{most - 3, 3}, {4, 3}, {2, 1}, {1, 0}, {1, 0}, {most, 0}} {
			a, d := s.spend(k.name, tt.cost)
			wantRemaining(t, a, d, tt.remaining)
			if got := a.header.Get("X-RateLimit-Limit"); got != strconv.FormatInt(most, 10) {
				t.Errorf("X-RateLimit-Limit = %s, want %d", got, most)
			}
		}
		// All of it has come back, and the tenant's running total is full.
		s.passMillis(s.stand(k.name)[0].ResetMS)
		rows := s.rows()["entry"]
		s.consume(charging(k.name, 1)).want(t, 400, codeAmountOverflow)
		if got := left(t, s.would(k.name, 0)[0]); got != most || s.rows()["entry"] != rows {
			t.Errorf("remaining = %d after the overflow, want %d and no entry", got, most)
		}
	})
}

// A limit of 0 and a rate of 0 let nothing through, not even cost 0, not even the first
// call, and nobody is told to wait for it; "no limit" is another field.
func TestZeroBlocksForGoodAndUnlimitedIsSaidApart(t *testing.T) {
	t.Parallel()
	c := configOf(0)
	for _, k := range kinds {
		if rate := strings.ReplaceAll(k.limitOf("it", 5), "7/1m", "0/1m"); k.level {
			c.tenant(k.name+"-rate", planOf(rate))
		} else {
			c.tenant(k.name+"-free", planOf(strings.ReplaceAll(rate, `"limit":5`, `"unlimited":true`)))
		}
	}
	s := newKinds(t, c)
	blocked := func(tenant string) {
		t.Helper()
		for _, cost := range []int64{1, 0, 7} {
			a, d := s.spend(tenant, cost)
			if d.Allowed || d.Reason != quota.ReasonBlocked || left(t, d) != 0 {
				t.Errorf("%s, cost %d: %s, want it blocked", tenant, cost, a.body)
			}
			if a.header.Get("Retry-After") != "" || strings.Contains(a.body, "retry_after") {
				t.Errorf("%s is told to wait: %v %s", tenant, a.header, a.body)
			}
		}
	}
	for range 2 {
		for _, k := range kinds {
			blocked(k.name)
			if k.level {
				blocked(k.name + "-rate")
				continue
			}
			before := s.stand(k.name + "-free")[0].Used
			a := s.consume(charging(k.name+"-free", 999_999)).want(t, 200)
			if d := a.decision(t); !d.Limits[0].Unlimited || d.Limits[0].Used != 999_999 || before != 0 {
				t.Errorf("%s-free: %+v, want it counted", k.name, d.Limits[0])
			}
			if a.header.Get("RateLimit") != "" || strings.Contains(a.body, "remaining") || strings.Contains(a.body, `"limit":`) {
				t.Errorf("%s-free: %v %s, want no number where there is none", k.name, a.header, a.body)
			}
		}
		s.pass(100 * 365 * 24 * time.Hour)
	}
}

// A client that asks all the time gets its burst and then the rate, to the unit: no read
// drops a fraction of what has come back, and none hands out a full bucket again.
func TestAPollingClientGetsExactlyItsRate(t *testing.T) {
	t.Parallel()
	const burst, polls, every = 3, 150, 70_003 * time.Microsecond // 10.4 s in all
	rates := []struct {
		units int64
		per   time.Duration
	}{{7, time.Minute}, {59, time.Minute}, {7, time.Second}, {41, 3 * time.Second}}
	c := &configuration{}
	var tenants []string
	admitted := map[string]int64{}
	want := map[string]int64{}
	for _, k := range kinds {
		for i, rate := range rates {
			if name := fmt.Sprintf("%s-%d", k.name, i); k.level {
				limit := strings.ReplaceAll(k.limitOf("it", burst), "7/1m", fmt.Sprintf("%d/%s", rate.units, rate.per))
				c.tenant(name, planOf(limit))
				tenants = append(tenants, charging(name, 1))
				want[name] = burst + int64((polls-1)*every)*rate.units/int64(rate.per)
			}
		}
	}
	s := newKinds(t, c)
	for range polls {
		for _, a := range s.batch(tenants...).results(t) {
			if d := s.decided(a); d.Allowed {
				admitted[d.Tenant]++
			}
		}
		s.pass(every)
	}
	for tenant, got := range admitted {
		if got < want[tenant]-1 || got > want[tenant] {
			t.Errorf("%s: %d admitted, want %d", tenant, got, want[tenant])
		}
	}
	if len(admitted) != len(want) {
		t.Errorf("%d tenants were admitted, want %d", len(admitted), len(want))
	}
}

// A bucket of 10 with 2 a second: 10 at once, the eleventh waits 500 ms, and three
// seconds later exactly 6 pass. Burst and rate are two numbers with names of their own,
// and the burst is not given again with every window; who means "10 in 5 s" and no more
// says sliding_log.
func TestABurstIsFollowedByTheRateAlone(t *testing.T) {
	t.Parallel()
	c := &configuration{}
	limits := map[string]string{
		"bucket": `"algorithm":"token_bucket","capacity":10,"refill":"2/1s"`,
		"gcra":   `"algorithm":"gcra","burst":10,"rate":"2/1s"`,
		"log":    `"algorithm":"sliding_log","limit":10,"window":"5s"`,
	}
	for name, fields := range limits {
		c.tenant(name, planOf(`{"name":"it","meter":"api.calls",`+fields+`}`))
	}
	s := newKinds(t, c)
	passing := func(tenant string) (n int) {
		for s.consume(charging(tenant, 1)).status == 200 {
			n++
		}
		return n
	}
	for tenant, want := range map[string][]int{"bucket": {10, 6, 4}, "gcra": {10, 6, 4}, "log": {10, 0, 10}} {
		s.db.SetClock(t, startOfTest)
		if got := passing(tenant); got != want[0] {
			t.Errorf("%s: %d at once, want %d", tenant, got, want[0])
		}
		if got := retryMillis(t, s.denied(tenant, 1)); got != 500 && tenant != "log" {
			t.Errorf("%s: the eleventh waits %d ms, want 500", tenant, got)
		}
		s.pass(3 * time.Second)
		if got := passing(tenant); got != want[1] {
			t.Errorf("%s: %d after 3 s, want %d", tenant, got, want[1])
		}
		s.pass(2 * time.Second)
		if got := passing(tenant); got != want[2] {
			t.Errorf("%s: %d after 5 s, want %d", tenant, got, want[2])
		}
	}
}

// A cost below 0 would give units back to whoever asks for it: it is refused in every
// place a cost can stand, and nothing of the request is done.
func TestANegativeCostIsRefusedAndGivesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"llm.tokens","cost":1000}`).want(t, 200)
	rows := s.rows()
	for _, members := range []string{
		`"meter":"llm.tokens","cost":-500`,
		`"meter":"llm.tokens","cost":-500,"dry_run":true`,
		`"meter":"llm.tokens","pools":{"input":-500}`,
		`"meter":"llm.tokens","pools":{"input":1,"output":-500}`,
		`"charges":[{"meter":"llm.tokens","cost":1},{"meter":"llm.tokens","cost":-500}]`,
		`"charges":[{"meter":"api.calls"},{"meter":"llm.tokens","pools":{"cached":-500}}]`,
	} {
		body := `{"tenant":"acme",` + members + `}`
		s.consume(body).want(t, 400, codeInvalidRequest)
		s.batch(body).results(t)[0].want(t, 400, codeInvalidRequest)
	}
	if got := s.rows(); fmt.Sprint(got) != fmt.Sprint(rows) {
		t.Errorf("rows = %v, want those before: %v", got, rows)
	}
	s.read(catalog.KeyRead, "/v1/tenants/acme/limits").want(t, 200)
	s.consume(`{"tenant":"acme","meter":"llm.tokens"}`).want(t, 429)
}
