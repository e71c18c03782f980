package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// newHolding starts instances with a tenant for each of some plans about holds.
func newHolding(t *testing.T, instances int) []*service {
	t.Helper()
	const logOf100 = `{"name":"it","meter":%q,"algorithm":"sliding_log","limit":100,"window":"1m"}`
	c := &configuration{meters: []string{
		`"llm.tokens":{"unit":"token","weights":{"input":1,"output":4}}`, `"charged":{"unit":"call","on_expiry":"charge"}`,
	}}
	c.tenant("log", planOf(fmt.Sprintf(logOf100, "api.calls")))
	c.tenant("charged", planOf(fmt.Sprintf(logOf100, "charged")))
	c.tenant("both", planOf(fmt.Sprintf(logOf100, "api.calls"), strings.Replace(fmt.Sprintf(logOf100, "llm.tokens"), `"it"`, `"tpm"`, 1)))
	c.tenant("slots", planOf(`{"name":"inflight","meter":"api.calls","algorithm":"concurrency","limit":5}`))
	c.tenant("queue", planOf(kinds[len(kinds)-1].limitOf("it", 100)))
	c.tenant("huge", planOf(`{"name":"all","meter":"api.calls","algorithm":"sliding_log","unlimited":true,"window":"1h"}`))
	return newInstances(t, instances, c)
}

// holds posts to a path under /v1/holds with a key that may decide for every tenant.
func (s *service) holds(path, body string, header ...string) answer {
	s.t.Helper()
	if path != "" {
		path = "/" + path
	}
	return s.do(request{
		method: http.MethodPost, path: "/v1/holds" + path, body: body,
		token: s.token(catalog.KeyDecide, ""), header: pairs(header),
	})
}

// held sets api.calls aside and wants it to pass.
func (s *service) held(tenant string, cost int64, ttl time.Duration) (id string) {
	s.t.Helper()
	return s.heldOf(tenant, "api.calls", cost, ttl)
}

func (s *service) heldOf(tenant, meter string, cost int64, ttl time.Duration) (id string) {
	s.t.Helper()
	a := s.holds("", holding(tenant, meter, cost, ttl))
	d := s.decided(a)
	if !d.Allowed || d.Hold == nil || d.Hold.State != quota.HoldOpen || !d.Hold.ExpiresAt.Equal(d.DecidedAt.Add(ttl)) {
		s.t.Fatalf("%s holds %d for %v: %s, want it open", tenant, cost, ttl, a.body)
	}
	return d.Hold.ID.String()
}

func holding(tenant, meter string, cost int64, ttl time.Duration) string {
	return fmt.Sprintf(`{"tenant":%q,"meter":%q,"cost":%d,"ttl_ms":%d}`, tenant, meter, cost, ttl.Milliseconds())
}

func settling(tenant string, cost int64) string {
	return fmt.Sprintf(`{"tenant":%q,"cost":%d}`, tenant, cost)
}

func of(tenant string) string { return fmt.Sprintf(`{"tenant":%q}`, tenant) }

// wantStand checks what the first limit of a tenant says of itself.
func (s *service) wantStand(tenant string, used, held int64) {
	s.t.Helper()
	if l := s.stand(tenant)[0]; l.Used != used || l.Held != held {
		s.t.Errorf("%s has %d used and %d held, want %d and %d", tenant, l.Used, l.Held, used, held)
	}
}

// kindsOf lists the kinds of a tenant's entries.
func (s *service) kindsOf(tenant string) (list []string) {
	s.t.Helper()
	for _, e := range s.ledgerOf(tenant) {
		list = append(list, string(e.Kind))
	}
	return list
}

// What is set aside is nobody else's, and is not used: settling uses what it came to, and
// the rest comes back. Used and held are told apart in every place that shows them.
func TestAHoldIsSetAsideUntilItIsSettled(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	id := s.held("log", 60, time.Minute)
	s.wantStand("log", 0, 60)
	if d := s.denied("log", 41); !strings.Contains(s.consume(charging("log", 41)).body, "0 are used and 60 held") || left(t, d) != 40 {
		t.Errorf("%+v, want 40 left of 100 with 60 held", d)
	}
	s.admitted("log", 40)
	s.wantStand("log", 40, 60)
	d := s.decided(s.holds(id+"/settle", settling("log", 25)))
	if d.Hold.State != quota.HoldSettled || d.Hold.Late || d.Charges[0].Cost != 25 || *d.Charges[0].Held != 60 || left(t, d) != 35 {
		t.Errorf("settled: %+v, want 25 of 60 and 35 left", d)
	}
	s.wantStand("log", 65, 0)
	s.denied("log", 36)
	s.admitted("log", 35)
	if diff := cmp.Diff([]string{"hold", "consume", "settle", "consume"}, s.kindsOf("log")); diff != "" {
		t.Errorf("entries, want-, got+:\n%s", diff)
	}
}

// The truth is recorded when it is more than was set aside, and more than is left: the
// limit then denies until it has recovered, and says 0 and not less.
func TestASettleAboveItsHoldIsRecordedAndTheLimitThenDenies(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	s.admitted("log", 90)
	id := s.held("log", 10, time.Minute)
	d := s.decided(s.holds(id+"/settle", settling("log", 50)))
	if !d.Allowed || left(t, d) != 0 || d.Limits[0].Used != 140 {
		t.Errorf("settled above its hold: %+v, want 140 used and 0 left", d)
	}
	ms := retryMillis(t, s.denied("log", 1))
	s.passMillis(ms - 1)
	s.denied("log", 1)
	s.passMillis(1)
	s.admitted("log", 1)
}

// A hold lasts up to its last microsecond. From then on it is expired: its settle is
// recorded all the same, and says that it was late.
func TestAHoldEndsExactlyAtItsExpiry(t *testing.T) {
	t.Parallel()
	const ttl = 10 * time.Second
	for _, tt := range []struct {
		after time.Duration
		late  bool
	}{{ttl - time.Millisecond, false}, {ttl - time.Microsecond, false}, {ttl, true}, {ttl + time.Millisecond, true}} {
		t.Run(tt.after.String(), func(t *testing.T) {
			t.Parallel()
			s := newHolding(t, 1)[0]
			id, other := s.held("log", 100, ttl), ""
			s.pass(tt.after)
			want := []string{"hold", "settle"}
			if tt.late {
				other = s.held("log", 100, ttl) // has all of it
				want = []string{"hold", "expire", "hold", "settle"}
			} else if retry := retryMillis(t, s.denied("log", 1)); retry != 1 {
				t.Errorf("wait %v before the end = %d ms, want 1", ttl-tt.after, retry)
			}
			d := s.decided(s.holds(id+"/settle", settling("log", 7)))
			if !d.Allowed || d.Hold.Late != tt.late || d.Hold.State != quota.HoldSettled {
				t.Errorf("settled after %v: %+v, want late %t", tt.after, d.Hold, tt.late)
			}
			held := int64(0)
			if other != "" {
				held = 100
			}
			s.wantStand("log", 7, held)
			if diff := cmp.Diff(want, s.kindsOf("log")); diff != "" {
				t.Errorf("entries, want-, got+:\n%s", diff)
			}
		})
	}
}

// An expiry is of the instant: with release the units are back, with charge they are used,
// and a late settle makes the truth of either.
func TestAnExpiredHoldFollowsItsMeterUntilTheTruthIsKnown(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		tenant, meter      string
		expired            int64 // used
		settle, used, mine int64 // cost, used after it, units of its entry
	}{
		{"log", "api.calls", 0, 15, 15, 15},
		{"log", "api.calls", 0, 0, 0, 0},
		{"charged", "charged", 10, 15, 15, 5},
		{"charged", "charged", 10, 4, 4, -6},
		{"charged", "charged", 10, 10, 10, 0},
	} {
		t.Run(fmt.Sprintf("%s settles %d", tt.tenant, tt.settle), func(t *testing.T) {
			t.Parallel()
			s := newHolding(t, 1)[0]
			id := s.heldOf(tt.tenant, tt.meter, 10, time.Second)
			s.pass(time.Second)
			s.wantStand(tt.tenant, tt.expired, 0)
			s.pass(time.Second)
			d := s.decided(s.holds(id+"/settle", settling(tt.tenant, tt.settle)))
			if !d.Hold.Late || *d.Charges[0].Held != 10 || d.Charges[0].Cost != tt.settle {
				t.Errorf("late settle: %+v", d)
			}
			s.wantStand(tt.tenant, tt.used, 0)
			entries := s.ledgerOf(tt.tenant)
			ref := int64(1)
			if tt.mine < 0 { // gives back of what the expiry took
				ref = 2
			}
			if last := entries[len(entries)-1]; last.Units != tt.mine || last.RefSeq != ref {
				t.Errorf("last entry = %+v, want %d units of entry %d", last, tt.mine, ref)
			}
			s.holds(id+"/release", of(tt.tenant)).want(t, 409, codeHoldResolved)
			again := s.holds(id+"/settle", settling(tt.tenant, tt.settle)).want(t, 200)
			if again.header.Get("Idempotent-Replayed") != "true" {
				t.Errorf("repeated late settle = %v, want a replay", again.header)
			}
		})
	}
}

// Each hold ends once, and repeating how it ended is safe without a key. Ending it
// otherwise is a conflict, and changes nothing.
func TestAHoldIsResolvedOnce(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	settled, released := s.held("log", 10, time.Minute), s.held("log", 20, time.Minute)
	first := s.holds(settled+"/settle", settling("log", 4)).want(t, 200)
	gone := s.holds(released+"/release", of("log")).want(t, 200)
	rows := s.rows()
	for i := range 3 {
		for path, want := range map[string]answer{settled + "/settle": first, released + "/release": gone} {
			body := of("log")
			if want.body == first.body {
				body = settling("log", 4)
			}
			a := s.holds(path, body, "Idempotency-Key", fmt.Sprintf("new-%d", i)).want(t, 200)
			if a.body != want.body || a.header.Get("Idempotent-Replayed") != "true" || a.header.Get("RateLimit") != "" {
				t.Errorf("repeated %s = %v %s, want a replay of %s", path, a.header, a.body, want.body)
			}
		}
		s.holds(settled+"/settle", settling("log", 5)).want(t, 409, codeHoldResolved)
		s.holds(settled+"/release", of("log")).want(t, 409, codeHoldResolved)
		s.holds(settled+"/extend", of("log")).want(t, 409, codeHoldResolved)
		s.holds(released+"/settle", settling("log", 0)).want(t, 409, codeHoldResolved)
	}
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("rows, before-, after+:\n%s", diff)
	}
	s.wantStand("log", 4, 0)
}

// Settle and release at the same moment, on three instances: exactly one wins, all others
// that wanted the same get its answer, and the ledger has one.
func TestOneOfManyResolutionsAtOnceWins(t *testing.T) {
	t.Parallel()
	instances := newHolding(t, 3)
	for range 10 {
		id := instances[0].held("log", 1, time.Minute)
		answers := make([]answer, 12)
		var group errgroup.Group
		for i := range answers {
			group.Go(func() error {
				s := instances[i%3]
				if i%2 == 0 {
					answers[i] = s.holds(id+"/settle", settling("log", 1))
				} else {
					answers[i] = s.holds(id+"/release", of("log"))
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
		fresh := 0
		for _, a := range answers {
			if a.status == 200 && a.header.Get("Idempotent-Replayed") == "" {
				fresh++
			}
		}
		if diff := cmp.Diff(map[int]int{200: 6, 409: 6}, statusCounts(answers)); diff != "" || fresh != 1 {
			t.Errorf("%d won; answers by status, want-, got+:\n%s", fresh, diff)
		}
	}
	resolved := map[int64]int{}
	for _, e := range instances[0].ledgerOf("log") {
		if e.RefSeq > 0 {
			resolved[e.RefSeq]++
		}
	}
	if len(resolved) != 10 {
		t.Errorf("%d holds are resolved, want 10", len(resolved))
	}
	for seq, n := range resolved {
		if n != 1 {
			t.Errorf("hold %d is resolved %d times", seq, n)
		}
	}
}

// A hold on several meters is set aside on all of them or on none, and its settle says
// what each came to.
func TestAHoldOnSeveralMetersIsAllOrNone(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	const charges = `{"tenant":"both","charges":[{"meter":"api.calls","cost":10},{"meter":"llm.tokens","pools":{"input":40,"output":%d}}]}`
	rows := s.rows()
	s.holds("", fmt.Sprintf(charges, 16)).want(t, 429)
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("a denied hold, rows before-, after+:\n%s", diff)
	}
	s.wantStand("both", 0, 0)
	id := s.decided(s.holds("", fmt.Sprintf(charges, 15))).Hold.ID.String()
	limits := s.stand("both")
	if limits[0].Held != 10 || limits[1].Held != 100 {
		t.Errorf("%+v, want 10 and 100 held", limits)
	}
	s.holds(id+"/settle", settling("both", 3)).wantFault(t, "meter", "is required")
	const one = `{"tenant":"both","charges":[{"meter":"api.calls","cost":3}]}`
	s.holds(id+"/settle", one).wantFault(t, "charges", "llm.tokens is missing")
	const other = `{"tenant":"both","charges":[{"meter":"api.calls","cost":3},{"meter":"charged","cost":1}]}`
	s.holds(id+"/settle", other).wantFault(t, "charges[1].meter", "must be a meter of the hold")
	const truth = `{"tenant":"both","charges":[{"meter":"llm.tokens","pools":{"input":40,"output":5}},{"meter":"api.calls","cost":3}]}`
	d := s.decided(s.holds(id+"/settle", truth))
	if len(d.Charges) != 2 || d.Charges[0].Cost != 3 || d.Charges[1].Cost != 60 || d.Receipt.Seq-d.Receipt.FirstSeq != 1 {
		t.Errorf("settled: %+v, want 3 and 60", d)
	}
	if limits = s.stand("both"); limits[0].Used != 3 || limits[0].Held != 0 || limits[1].Used != 60 || limits[1].Held != 0 {
		t.Errorf("%+v, want 3 and 60 used and nothing held", limits)
	}
}

// What is set aside is never given out twice: of holds and consumes at the same time on
// three instances exactly as many pass as fit.
func TestHeldUnitsAreNeverSpentTwice(t *testing.T) {
	t.Parallel()
	instances := newHolding(t, 3)
	answers := make([]answer, 100)
	var group errgroup.Group
	for i := range answers {
		group.Go(func() error {
			s := instances[i%3]
			if i%2 == 0 {
				answers[i] = s.holds("", holding("log", "api.calls", 3, time.Minute))
			} else {
				answers[i] = s.consume(charging("log", 3))
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]int{200: 33, 429: 67}, statusCounts(answers)); diff != "" {
		t.Errorf("answers by status, want-, got+:\n%s", diff)
	}
	if l := instances[0].stand("log")[0]; l.Used+l.Held != 99 || l.Remaining != 1 {
		t.Errorf("%+v, want 99 used or held", l)
	}
}

// What a late settle adds to what the expiry took is measured alone: a running total that
// has room for the rest takes it, and one that has not says so.
func TestALateSettleNeverPassesTheLargestAmount(t *testing.T) {
	t.Parallel()
	c := &configuration{meters: []string{`"charged":{"unit":"call","on_expiry":"charge"}`}}
	c.tenant("huge", planOf(`{"name":"all","meter":"charged","algorithm":"sliding_log","unlimited":true,"window":"1h"}`))
	s := newKinds(t, c)
	first, second := s.heldOf("huge", "charged", 10, time.Second), s.heldOf("huge", "charged", 10, time.Second)
	s.pass(time.Second)
	s.consume(fmt.Sprintf(`{"tenant":"huge","meter":"charged","cost":%d}`, catalog.UnitsMax-20-3)).want(t, 200)
	s.holds(first+"/settle", settling("huge", 14)).want(t, 400, codeAmountOverflow)
	s.holds(first+"/settle", settling("huge", 13)).want(t, 200)
	s.holds(second+"/settle", settling("huge", 11)).want(t, 400, codeAmountOverflow)
	s.holds(second+"/settle", settling("huge", 10)).want(t, 200)
}
