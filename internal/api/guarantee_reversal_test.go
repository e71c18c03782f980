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

// reversal posts a reversal under a key; without one there is none.
func (s *service) reversal(key, body string) answer {
	s.t.Helper()
	r := request{method: http.MethodPost, path: "/v1/reversals", body: body, token: s.token(catalog.KeyAdmin, "")}
	if key != "" {
		r.header = map[string]string{idempotencyKeyHeader: key}
	}
	return s.do(r)
}

// reversing is a reversal of so many units; 0 is all that is left.
func reversing(tenant string, seq, units int64) string {
	body := fmt.Sprintf(`{"tenant":%q,"seq":%d`, tenant, seq)
	if units > 0 {
		body += fmt.Sprintf(`,"units":%d`, units)
	}
	return body + "}"
}

// What is given back fits again at once, whatever counts it, and no more than that. A
// queue has handed its turns out: it gives none back.
func TestWhatIsGivenBackFitsAgain(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(10))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		seq := s.admitted(k.name, 10).Receipt.Seq
		s.denied(k.name, 1)
		want := int64(4)
		if k.name == "queue" {
			want = 0
		}
		d := s.decided(s.reversal("a", reversing(k.name, seq, 4)))
		if d.Reversal == nil || *d.Reversal != (quota.Reversal{Seq: seq, Meter: "api.calls", Units: 4, Left: 6}) || left(t, d) != want {
			t.Errorf("reversal: %+v %+v, want 4 units back and %d left", d, d.Reversal, want)
		}
		if l := s.stand(k.name)[0]; l.Remaining != want || l.Used != 10-want {
			t.Errorf("limit = %+v, want %d remaining", l, want)
		}
		if want == 0 {
			return
		}
		s.denied(k.name, 5)
		s.admitted(k.name, 4)
		s.denied(k.name, 1)
	})
}

// Units that are given back count no more from the instant at which they were used: when
// that leaves the window, nothing is given back a second time.
func TestAWindowGetsUnitsBackFromTheInstantTheyWereUsed(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(10))
	for _, tenant := range []string{"log", "cell"} {
		s.db.SetClock(t, startOfTest)
		seq := s.admitted(tenant, 6).Receipt.Seq
		s.pass(30 * time.Second)
		s.admitted(tenant, 4)
		s.decided(s.reversal("a", reversing(tenant, seq, 0)))
		s.admitted(tenant, 6)
		s.denied(tenant, 1)
		s.pass(30*time.Second - time.Microsecond)
		s.denied(tenant, 1)
		s.pass(time.Microsecond) // the first minute is over, and so is what was given back
		if tenant == "cell" {
			s.admitted(tenant, 10)
			s.denied(tenant, 1)
			// Of a window that is over nothing comes back into another one.
			s.decided(s.reversal("b", reversing(tenant, seq+1, 0)))
			s.denied(tenant, 1)
			continue
		}
		s.denied(tenant, 1)
		s.pass(30 * time.Second)
		s.admitted(tenant, 10)
		s.denied(tenant, 1)
		s.decided(s.reversal("b", reversing(tenant, seq+1, 0)))
		s.denied(tenant, 1)
	}
}

// A bucket gets units back now, up to its capacity: what has come back meanwhile by itself
// does not come twice.
func TestABucketGetsUnitsBackNowAndNeverOverflows(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(10))
	for _, tenant := range []string{"bucket", "gcra"} {
		s.db.SetClock(t, startOfTest)
		seq := s.admitted(tenant, 10).Receipt.Seq
		s.pass(time.Minute) // seven are back
		s.admitted(tenant, 2)
		if d := s.decided(s.reversal("a", reversing(tenant, seq, 3))); left(t, d) != 8 {
			t.Errorf("%s: %d left, want 8", tenant, left(t, d))
		}
		if d := s.decided(s.reversal("b", reversing(tenant, seq, 0))); left(t, d) != 10 {
			t.Errorf("%s: %d left, want its 10", tenant, left(t, d))
		}
		s.admitted(tenant, 10)
		s.denied(tenant, 1)
	}
}

// However many give back from one entry at the same time, under keys of their own and on
// three instances: never more than it used.
func TestNeverMoreIsGivenBackThanWasUsed(t *testing.T) {
	t.Parallel()
	instances := newInstances(t, 3, configOf(100))
	s := instances[0]
	s.token(catalog.KeyAdmin, "")
	seq := s.admitted("log", 10).Receipt.Seq
	s.admitted("log", 90)
	answers := make([]answer, 30)
	for _, other := range instances[1:] {
		other.tokens = s.tokens
	}
	var group errgroup.Group
	for i := range answers {
		group.Go(func() error {
			answers[i] = instances[i%3].reversal(fmt.Sprintf("key-%d", i), reversing("log", seq, 3))
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]int{200: 3, 409: 27}, statusCounts(answers)); diff != "" {
		t.Errorf("answers by status, want-, got+:\n%s", diff)
	}
	s.wantStand("log", 91, 0)
	s.reversal("more", reversing("log", seq, 2)).want(t, 409, codeReversalTooLarge)
	s.reversal("rest", reversing("log", seq, 0)).want(t, 200)
	s.reversal("none", reversing("log", seq, 0)).want(t, 409, codeReversalTooLarge)
	s.wantStand("log", 90, 0)
}

// Giving back without a key would be given twice by a retry: it is refused. With one it
// happens once.
func TestAReversalNeedsAKeyAndHappensOnce(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(10))
	seq := s.admitted("log", 10).Receipt.Seq
	s.reversal("", reversing("log", seq, 1)).wantFault(t, "Idempotency-Key", "is required")
	first := s.reversal("k", reversing("log", seq, 1)).want(t, 200)
	for range 3 {
		a := s.reversal("k", reversing("log", seq, 1)).want(t, 200)
		if a.body != first.body || a.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("repeated reversal = %v %s, want a replay", a.header, a.body)
		}
	}
	s.reversal("k", reversing("log", seq, 2)).want(t, 422, codeKeyReused)
	s.consume(charging("log", 1), "Idempotency-Key", "k").want(t, 422, codeKeyReused)
	dry := strings.TrimSuffix(reversing("log", seq, 9), "}") + `,"dry_run":true}`
	if d := s.decided(s.reversal("d", dry)); !d.DryRun || d.Reversal.Left != 0 || d.Receipt != nil {
		t.Errorf("dry run = %+v", d)
	}
	s.wantStand("log", 9, 0)
}

// Only an entry that used something can be given back from, and a hold is not: it is
// settled with the truth.
func TestWhatUsedNothingCannotBeGivenBack(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	s.heldOf("charged", "charged", 10, time.Second)               // 1
	s.pass(time.Second)                                           // expires as 2
	id := s.heldOf("charged", "charged", 10, time.Minute)         // 3
	s.holds(id+"/extend", of("charged")).want(t, 200)             // 4
	s.holds(id+"/settle", settling("charged", 8)).want(t, 200)    // 5
	s.reversal("a", reversing("charged", 5, 3)).want(t, 200)      // 6
	released := s.heldOf("charged", "charged", 10, time.Minute)   // 7
	s.holds(released+"/release", of("charged")).want(t, 200)      // 8
	s.consume(`{"tenant":"charged","meter":"charged","cost":0}`). // 9
									want(t, 200)
	for _, seq := range []int64{1, 2, 3, 4, 6, 7, 8, 9} {
		s.reversal("b", reversing("charged", seq, 0)).want(t, 409, codeNotReversible)
	}
	s.reversal("b", reversing("charged", 10, 0)).want(t, 404, codeEntryNotFound)
	s.reversal("b", reversing("nobody", 1, 0)).want(t, 404, codeTenantNotFound)
	s.wantStand("charged", 15, 0)
}
