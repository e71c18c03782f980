package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/quota"
)

var wholeSeconds = regexp.MustCompile(`^[1-9][0-9]*$`)

// wantWait checks that every place which tells the wait of a denial tells the same: a
// whole number of seconds, rounded up and never 0, and the longest of the violated
// limits' waits in milliseconds.
func wantWait(t *testing.T, a answer, d quota.Decision) {
	t.Helper()
	wait := retryMillis(t, d)
	field := a.header.Get("Retry-After")
	if want := strconv.FormatInt((wait+999)/1000, 10); !wholeSeconds.MatchString(field) || field != want {
		t.Errorf("Retry-After = %q for a wait of %d ms, want %s", field, wait, want)
	}
	var longest int64
	for _, l := range d.Limits {
		if l.Violated != (l.RetryMS != nil) {
			t.Errorf("limit %+v: its wait does not go with its being violated", l)
		}
		if l.RetryMS != nil {
			longest = max(longest, *l.RetryMS)
		}
	}
	if wait != longest || wait < 1 {
		t.Errorf("retry_after_ms = %d, want the longest of the violated limits, %d", wait, longest)
	}
}

// Whoever sleeps for what a denial says gets in, unless somebody else was faster, and
// nobody is told to sleep for longer than that: for every algorithm alone and all of
// them together, after any traffic. The wait is what is left of it, so it falls as time
// goes by, and being denied meanwhile does not put it off.
func TestWaitingExactlyRetryAfterPassesForEveryAlgorithm(t *testing.T) {
	t.Parallel()
	c := configOf(5)
	var together []string
	for i, k := range kinds {
		together = append(together, k.limitOf(k.name, int64(5+i)))
	}
	c.tenant("together", planOf(together...))
	s := newKinds(t, c)
	for i, tenant := range append(kindNames(), "together") {
		t.Run(tenant, func(t *testing.T) {
			s := s.in(t)
			s.db.SetClock(t, startOfTest)
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for denials := 0; denials < 3; {
				cost := random.Int64N(5) + 1
				a, d := s.spend(tenant, cost)
				if d.Allowed {
					if a.header.Get("Retry-After") != "" || strings.Contains(a.body, "retry_after") {
						t.Errorf("an allowed answer speaks of waiting: %s", a.body)
					}
					s.pass(time.Duration(random.Int64N(int64(9*time.Second/time.Microsecond))) * time.Microsecond)
					continue
				}
				denials++
				wantWait(t, a, d)
				s.waitOut(tenant, cost, retryMillis(t, d))
			}
		})
	}
}

// waitOut asks again a third into a wait, a millisecond before its end, at its end, and
// after the whole seconds of Retry-After.
func (s *service) waitOut(tenant string, cost, wait int64) {
	s.t.Helper()
	passed := int64(0)
	for _, at := range []int64{wait / 3, wait - 1} {
		s.passMillis(at - passed)
		passed = at
		a, d := s.spend(tenant, cost)
		wantWait(s.t, a, d)
		if got := retryMillis(s.t, d); got != wait-passed {
			s.t.Errorf("%d ms into a wait of %d ms another %d ms are told", passed, wait, got)
		}
	}
	s.passMillis(1)
	if d := s.would(tenant, cost)[0]; !d.Allowed {
		s.t.Errorf("after its wait of %d ms: %+v, want it to pass", wait, d)
	}
	s.passMillis((wait+999)/1000*1000 - wait)
	s.admitted(tenant, cost)
}

func kindNames() (names []string) {
	for _, k := range kinds {
		names = append(names, k.name)
	}
	return names
}

// Just before a window ends the wait is a millisecond and a second, not 0 and not less.
func TestTheLastMicrosecondOfAWaitIsStillAWait(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		s.admitted(k.name, 5)
		wait := retryMillis(t, s.denied(k.name, 5))
		s.pass(time.Duration(wait)*time.Millisecond - time.Microsecond)
		if k.level {
			s.pass(-time.Millisecond + time.Microsecond) // the exact instant is some fraction of a millisecond earlier
		}
		a, d := s.spend(k.name, 5)
		wantWait(t, a, d)
		if got := retryMillis(t, d); got != 1 || a.header.Get("Retry-After") != "1" {
			t.Errorf("a wait of %d ms and Retry-After %q, want 1 and 1", got, a.header.Get("Retry-After"))
		}
	})
}

// A cost above the limit has a reason of its own, no time to come back, and leaves
// everything as it was.
func TestACostThatCanNeverFitIsNotToldToWait(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		s.admitted(k.name, 2)
		rows := s.rows()
		for range 3 {
			a, d := s.spend(k.name, 6)
			if d.Allowed || d.Reason != quota.ReasonCostExceedsLimit {
				t.Fatalf("cost 6 of 5: %s, want %s", a.body, quota.ReasonCostExceedsLimit)
			}
			if a.header.Get("Retry-After") != "" || strings.Contains(a.body, "retry_after") {
				t.Errorf("cost 6 of 5 is told to wait: %v %s", a.header, a.body)
			}
		}
		if diff := cmp.Diff(rows, s.rows()); diff != "" {
			t.Errorf("rows, before-, after+:\n%s", diff)
		}
		if got := left(t, s.admitted(k.name, 3)); got != 0 {
			t.Errorf("remaining = %d, want 0", got)
		}
	})
}

// reset_after_ms is when nothing is used any more, of every limit in every answer; it is
// another thing than when the next unit fits. The header fields say the same in seconds
// from now, rounded up.
func TestResetIsWhenNothingIsUsedAnyMore(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		s.admitted(k.name, 3)
		s.passMillis(2345)
		s.admitted(k.name, 2)
		a, d := s.spend(k.name, 1)
		reset, wait := d.Limits[0].ResetMS, retryMillis(t, d)
		if wait > reset || (!k.fixed() && wait == reset) {
			t.Errorf("one unit fits after %d ms, nothing is used after %d ms", wait, reset)
		}
		if got := s.stand(k.name)[0].ResetMS; got != reset {
			t.Errorf("reset_after_ms is %d in the answer and %d in the list", reset, got)
		}
		seconds := (reset + 999) / 1000
		if want := fmt.Sprintf(`"it";r=0;t=%d`, seconds); a.header.Get("RateLimit") != want {
			t.Errorf("RateLimit = %s, want %s", a.header.Get("RateLimit"), want)
		}
		if got := a.header.Get("X-RateLimit-Reset"); got != strconv.FormatInt(seconds, 10) {
			t.Errorf("X-RateLimit-Reset = %s, want %d", got, seconds)
		}
		s.passMillis(reset - 1)
		if l := s.would(k.name, 0)[0].Limits[0]; l.Used == 0 || l.ResetMS != 1 {
			t.Errorf("a millisecond before the reset: %+v, want something used for 1 ms more", l)
		}
		s.passMillis(1)
		if l := s.would(k.name, 0)[0].Limits[0]; l.Used != 0 || l.Remaining != 5 || l.ResetMS != 0 {
			t.Errorf("at the reset: %+v, want nothing used", l)
		}
	})
}

// A client reads any limit's answer the same way: no algorithm lacks a member or has one
// of its own, but for the delay of a queue that shapes.
func TestEveryAlgorithmAnswersWithTheSameMembers(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	members := func(a answer) []string {
		var body map[string]json.RawMessage
		var limits []map[string]json.RawMessage
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body["limits"], &limits); err != nil {
			t.Fatal(err)
		}
		delete(body, "delay_ms")
		delete(limits[0], "delay_ms")
		return append(slices.Sorted(maps.Keys(body)), slices.Sorted(maps.Keys(limits[0]))...)
	}
	want := map[string][]string{}
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		for _, call := range []struct {
			name string
			cost int64
		}{{"allowed", 4}, {"denied", 3}, {"too large", 6}} {
			a, d := s.spend(k.name, call.cost)
			if len(d.Limits) != 1 || d.Limits[0].Name != "it" || d.Limits[0].Violated == d.Allowed {
				t.Errorf("%s: limits = %+v, want the one that decided", call.name, d.Limits)
			}
			if want[call.name] == nil {
				want[call.name] = members(a)
			}
			if diff := cmp.Diff(want[call.name], members(a)); diff != "" {
				t.Errorf("%s: members of %s-, of %s+:\n%s", call.name, kinds[0].name, k.name, diff)
			}
			for _, member := range members(a) {
				if strings.Contains(member, "after") && !strings.HasSuffix(member, "_ms") && member != "violated-policies" {
					t.Errorf("member %s is a time without its unit", member)
				}
			}
		}
	})
}
