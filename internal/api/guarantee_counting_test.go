package api

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/quota"
)

// wantRemaining checks that every place which tells the remaining units tells this.
func wantRemaining(t *testing.T, a answer, d quota.Decision, want int64) {
	t.Helper()
	if got := left(t, d); got != want || d.Limits[0].Remaining != want || d.Limits[0].Used != d.Limits[0].Limit-want {
		t.Errorf("remaining = %d and %+v, want %d", got, d.Limits[0], want)
	}
	seconds := (d.Limits[0].ResetMS + 999) / 1000
	if got, want := a.header.Get("RateLimit"), fmt.Sprintf(`"it";r=%d;t=%d`, want, seconds); got != want {
		t.Errorf("RateLimit = %s, want %s", got, want)
	}
	if got := a.header.Get("X-RateLimit-Remaining"); got != strconv.FormatInt(want, 10) {
		t.Errorf("X-RateLimit-Remaining = %s, want %d", got, want)
	}
}

// A limit of N lets N calls through and not one more, counts the first call once, and
// tells N-1 … 0, 0, 0; in every window anew, the first call of which is not free.
func TestExactlyTheLimitPassesInEveryWindow(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		for window := range 3 {
			for remaining := int64(4); remaining >= 0; remaining-- {
				a, d := s.spend(k.name, 1)
				if !d.Allowed {
					t.Fatalf("window %d: denied with %d left: %s", window, remaining+1, a.body)
				}
				wantRemaining(t, a, d, remaining)
			}
			var reset int64
			for range 3 {
				a, d := s.spend(k.name, 1)
				if d.Allowed || d.Reason != quota.ReasonQuotaExceeded {
					t.Fatalf("window %d: the sixth of five passes: %s", window, a.body)
				}
				wantRemaining(t, a, d, 0)
				reset = d.Limits[0].ResetMS
			}
			s.passMillis(reset)
		}
	})
}

// With 2 left a cost of 5 is denied and the 2 are still there, however often it is
// tried: nothing is written of a denial.
func TestADenialBurnsNothing(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		s.admitted(k.name, 3)
		rows := s.rows()
		for range 5 {
			a, d := s.spend(k.name, 5)
			if d.Allowed {
				t.Fatalf("cost 5 with 2 left: %s", a.body)
			}
			wantRemaining(t, a, d, 2)
		}
		if diff := cmp.Diff(rows, s.rows()); diff != "" {
			t.Errorf("rows, before-, after+:\n%s", diff)
		}
		for remaining := int64(1); remaining >= 0; remaining-- {
			if got := left(t, s.admitted(k.name, 1)); got != remaining {
				t.Errorf("remaining = %d, want %d", got, remaining)
			}
		}
	})
}

// Costs of any size are summed exactly: each call fits or does not by what was let
// through before it at the same instant, not by there being something left.
func TestMixedCostsAddUpExactly(t *testing.T) {
	t.Parallel()
	const units, calls = 100, 60
	s := newKinds(t, configOf(units))
	for i, k := range kinds {
		random := rand.New(rand.NewPCG(2, uint64(i)))
		costs := make([]int64, calls)
		items := make([]string, calls)
		for n := range costs {
			costs[n] = random.Int64N(31)
			items[n] = charging(k.name, costs[n])
		}
		used, denials := int64(0), 0
		for n, a := range s.batch(items...).results(t) {
			d := s.decided(a)
			if want := used+costs[n] <= units; d.Allowed != want {
				t.Fatalf("%s: cost %d with %d of %d used: allowed = %t", k.name, costs[n], used, units, d.Allowed)
			}
			if d.Allowed {
				used += costs[n]
			} else {
				denials++
			}
			if d.Limits[0].Used != used || left(t, d) != units-used {
				t.Fatalf("%s: %+v, want %d used", k.name, d.Limits[0], used)
			}
		}
		if used < units-5 || denials < 10 {
			t.Errorf("%s: %d used and %d denials, want the limit nearly reached and many", k.name, used, denials)
		}
	}
}

// remaining is what would be admitted now: that cost fits and one more does not,
// whatever was used when, allowed or denied.
func TestRemainingIsWhatFitsNow(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(9))
	random := rand.New(rand.NewPCG(3, 0))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		for range 15 {
			_, d := s.spend(k.name, random.Int64N(6))
			remaining := left(t, d)
			if got := s.stand(k.name)[0].Remaining; got != remaining {
				t.Errorf("remaining is %d in the answer and %d in the list", remaining, got)
			}
			for more, next := range s.would(k.name, remaining, remaining+1) {
				if next.Allowed != (more == 0) {
					t.Errorf("with %d remaining, cost %d: allowed = %t", remaining, remaining+int64(more), next.Allowed)
				}
			}
			s.pass(time.Duration(random.Int64N(int64(20*time.Second/time.Microsecond))) * time.Microsecond)
		}
	})
}
