package api

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/quota"
)

// slotsMax is the concurrency limit of the tenant slots.
const slotsMax = 5

// However many ask at the same time, on however many instances: never more are at work
// than the limit has places, and each place is used again.
func TestInFlightNeverPassesAConcurrencyLimit(t *testing.T) {
	t.Parallel()
	const callers, rounds = 30, 12
	instances := newHolding(t, 3)
	var inFlight, most, admitted atomic.Int64
	var group errgroup.Group
	for caller := range callers {
		group.Go(func() error {
			random := rand.New(rand.NewPCG(85, uint64(caller)))
			for range rounds {
				s := instances[random.IntN(3)]
				a := s.holds("", holding("slots", "api.calls", int64(random.IntN(100)), time.Hour))
				d := s.decided(a)
				if !d.Allowed {
					continue
				}
				admitted.Add(1)
				now := inFlight.Add(1)
				for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				}
				inFlight.Add(-1) // before its place is free
				other, id := instances[random.IntN(3)], d.Hold.ID.String()
				if random.IntN(2) == 0 {
					other.holds(id+"/release", of("slots")).want(t, 200)
				} else {
					other.holds(id+"/settle", settling("slots", 1)).want(t, 200)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if most.Load() > slotsMax || admitted.Load() < slotsMax {
		t.Errorf("%d of %d calls were at work at once, want at most %d", most.Load(), admitted.Load(), slotsMax)
	}
	open := int64(0)
	for _, e := range instances[0].ledgerOf("slots") { // what the ledger says, in its order
		switch e.Kind {
		case "hold":
			open++
		case "settle", "release":
			open--
		}
		if open > slotsMax {
			t.Fatalf("entry %d: %d holds are open, want at most %d", e.Seq, open, slotsMax)
		}
	}
	instances[0].wantStand("slots", 0, 0)
}

// Who dies without a word gives its place back at its TTL, with nobody cleaning up: not a
// microsecond earlier, and the wait of the others says so.
func TestACrashedCallersPlaceComesBackAtItsTTL(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	for range slotsMax - 1 {
		s.held("slots", 1, time.Hour)
	}
	s.held("slots", 1, 30*time.Second)
	ask := holding("slots", "api.calls", 1, time.Hour)
	a := s.holds("", ask).want(t, 429)
	d := s.decided(a)
	if retryMillis(t, d) != 30_000 || a.header.Get("Retry-After") != "30" || a.header.Get("RateLimit") != `"inflight";r=0;t=3600` {
		t.Errorf("denied: %v %+v, want a wait of 30 s", a.header, d)
	}
	const want = `Limit \"inflight\" on api.calls is 5: 5 holds are open. Try again in 30s.`
	if !strings.Contains(a.body, want) {
		t.Errorf("denial = %s, want %s", a.body, want)
	}
	if l := s.stand("slots")[0]; l.Used != 5 || l.Held != 0 || l.Remaining != 0 {
		t.Errorf("limit = %+v, want 5 places used", l)
	}
	s.consume(charging("slots", 1)).want(t, 200) // consume takes no place and asks for none
	s.pass(30*time.Second - time.Microsecond)
	s.holds("", ask).want(t, 429)
	s.pass(time.Microsecond)
	s.holds("", ask).want(t, 200)
	s.holds("", ask).want(t, 429)
}

// A stream that goes on keeps its place by extending its hold, up to a day from its start.
func TestAnExtendedHoldKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	id := s.held("slots", 1, time.Minute)
	const extending = `{"tenant":"slots","ttl_ms":%d}`
	for range 23 {
		d := s.decided(s.holds(id+"/extend", fmt.Sprintf(extending, time.Hour.Milliseconds())))
		if !d.Hold.ExpiresAt.Equal(d.DecidedAt.Add(time.Hour)) || d.Hold.State != quota.HoldOpen {
			t.Fatalf("extended: %+v at %v, want an hour from then", d.Hold, d.DecidedAt)
		}
		s.pass(time.Hour - time.Microsecond)
		s.wantStand("slots", 1, 0)
	}
	s.holds(id+"/extend", fmt.Sprintf(extending, 2*time.Hour.Milliseconds())).wantFault(t, "ttl_ms", "within 24 hours")
	s.holds(id+"/extend", of("slots")).want(t, 200) // a minute
	s.pass(time.Minute)
	s.holds(id+"/extend", of("slots")).want(t, 409, codeHoldResolved)
	s.wantStand("slots", 0, 0)
}

// A tenant's open holds are bounded. One more is told when the first of them ends, and
// nothing else of the tenant is held up.
func TestOpenHoldsAreBounded(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	var items []string
	for range quota.HoldsOpenMax {
		items = append(items, holding("huge", "api.calls", 1, time.Minute))
	}
	first := s.holdBatch(append(items[1:], holding("huge", "api.calls", 1, 20*time.Second))...)
	for _, a := range first {
		a.want(t, 200)
	}
	a := s.holds("", items[0]).want(t, 429)
	d := s.decided(a)
	if d.Reason != quota.ReasonTooManyHolds || retryMillis(t, d) != 20_000 || a.header.Get("Retry-After") != "20" {
		t.Errorf("denied: %+v, want too_many_holds and 20 s", d)
	}
	const want = "The tenant has 1000 open holds, which is as many as it may have: settle or release some. Try again in 20s."
	if !strings.Contains(a.body, want) {
		t.Errorf("denial = %s, want %s", a.body, want)
	}
	s.consume(charging("huge", 1)).want(t, 200)
	s.held("log", 1, time.Minute)
	s.holds(first[0].decision(t).Hold.ID.String()+"/release", of("huge")).want(t, 200)
	s.holds("", items[0]).want(t, 200)
	s.holds("", items[0]).want(t, 429)
	s.pass(20 * time.Second)
	s.holds("", items[0]).want(t, 200)
	s.holds("", items[0]).want(t, 429)
}

// holdBatch posts holds in one batch and returns what each got.
func (s *service) holdBatch(items ...string) []answer {
	s.t.Helper()
	return s.holds("batch", `{"items":[`+strings.Join(items, ",")+`]}`).results(s.t)
}

// A batch of holds is for fanning out: each is decided as if it had been sent alone, in
// order, with a key of its own.
func TestABatchOfHoldsDecidesEachAlone(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	keyed := strings.TrimSuffix(holding("slots", "api.calls", 1, time.Minute), "}") + `,"idempotency_key":"k"}`
	results := s.holdBatch(
		keyed, keyed, holding("slots", "api.calls", 1, time.Minute), holding("slots", "nope", 1, time.Minute),
		holding("queue", "api.calls", 1, time.Minute), `{"tenant":"slots","meter":"api.calls","ttl_ms":0}`,
		`{"tenant":"slots","charges":[{"meter":"api.calls"}]}`, holding("slots", "api.calls", 1, time.Minute),
		holding("slots", "api.calls", 1, time.Minute), holding("slots", "api.calls", 1, time.Minute), charging("nobody", 1),
	)
	for i, want := range []int{200, 200, 200, 400, 400, 400, 200, 200, 200, 429, 404} {
		results[i].want(t, want)
	}
	if results[1].body != results[0].body || results[1].header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("repeated item = %v, want a replay", results[1])
	}
	results[4].want(t, 400, codeHoldsNotSupported)
	results[5].wantFault(t, "ttl_ms", "1 to 86400000")
	if d := results[6].decision(t); d.Hold.ExpiresAt.Sub(d.DecidedAt) != time.Minute {
		t.Errorf("a hold without ttl_ms lasts until %v, want a minute", d.Hold.ExpiresAt)
	}
	s.wantStand("slots", slotsMax, 0)
}
