package api

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// put replaces a kind's plan.
func (s *service) put(plan string, limits ...string) {
	s.t.Helper()
	a := s.admin("PUT", "/v1/plans/"+plan, planOf(limits...))
	if a.status != 200 && a.status != 201 {
		s.t.Fatalf("PUT of plan %s: %d %s", plan, a.status, a.body)
	}
}

// A changed number decides the very next call, on the instance that took it and on every
// other one. What was used stays used: a lowered limit leaves 0, a correct wait and no
// error; a level keeps what it has, up to its capacity. What is read of a limit is what
// decides.
func TestAChangedLimitDecidesTheNextCallOnEveryInstance(t *testing.T) {
	t.Parallel()
	instances := newInstances(t, 2, configOf(5))
	eachKind(t, instances[0], func(t *testing.T, s *service, k kind) {
		other := instances[1].in(t)
		s.admitted(k.name, 1)
		other.admitted(k.name, 3)
		for _, units := range []int64{8, 3, 5, 9, 2} {
			s.put(k.name, k.limitOf("it", units))
			want := max(0, units-4)
			if k.level && k.name != "queue" {
				want = 1 // one token is left, and no change of the capacity makes another
			}
			d := other.would(k.name, want)[0]
			if !d.Allowed || left(t, d) != want || d.Limits[0].Limit != units {
				t.Errorf("limit %d: %+v, want %d left", units, d, want)
			}
			for _, instance := range []*service{s, other} {
				if l := instance.stand(k.name)[0]; l.Limit != units || l.Remaining != want || l.Used != d.Limits[0].Used {
					t.Errorf("limit %d reads as %+v, want %d left", units, l, want)
				}
			}
			other.denied(k.name, want+1)
		}
		wait := retryMillis(t, other.denied(k.name, 2)) // of 2
		s.passMillis(wait - 1)
		other.denied(k.name, 2)
		s.passMillis(1)
		s.admitted(k.name, 2)
	})
}

// A limit is replaced as a whole: its number and its window, its burst and its rate. No
// decision sees one of them new and one of them old.
func TestAChangedLimitIsReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	instances := newInstances(t, 2, configOf(5))
	small := `{"name":"it","meter":"api.calls","algorithm":"fixed_window","limit":5,"window":"1m"}`
	large := `{"name":"it","meter":"api.calls","algorithm":"fixed_window","limit":50,"window":"1h"}`
	var changing errgroup.Group
	done := make(chan struct{})
	changing.Go(func() error {
		defer close(done)
		for i := range 40 {
			instances[0].put("cell", []string{large, small}[i%2])
		}
		return nil
	})
	seen := map[string]int{}
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		seen[instances[1].consume(charging("cell", 0)).header.Get("RateLimit-Policy")]++
	}
	if err := changing.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{large, small} {
		instances[0].put("cell", limit)
		seen[instances[1].consume(charging("cell", 0)).header.Get("RateLimit-Policy")]++
	}
	if len(seen) != 2 || seen[`"it";q=5;w=60`] == 0 || seen[`"it";q=50;w=3600`] == 0 {
		t.Errorf("policies = %v, want the small and the large one and no mixture", seen)
	}
	s := instances[0]
	for _, k := range kinds {
		if !k.level {
			continue
		}
		s.db.SetClock(t, startOfTest)
		s.admitted(k.name, 5)
		s.put(k.name, strings.ReplaceAll(k.limitOf("it", 2), "7/1m", "1/1s"))
		s.passMillis(s.stand(k.name)[0].ResetMS)
		s.admitted(k.name, 2)
		if got := retryMillis(t, s.denied(k.name, 1)); got != 1000 {
			t.Errorf("%s: after 2 of the new burst a wait of %d ms, want the new rate's 1000", k.name, got)
		}
	}
}

// A configuration that is applied again grants nothing, nor does one that changes a
// number and changes it back: counts and levels are as they were.
func TestApplyingTheConfigurationAgainGrantsNothing(t *testing.T) {
	t.Parallel()
	c := configOf(5)
	s := newKinds(t, c)
	waits := map[string]int64{}
	for _, k := range kinds {
		s.admitted(k.name, 5)
		waits[k.name] = retryMillis(t, s.denied(k.name, 1))
	}
	check := func(when string) {
		t.Helper()
		for _, k := range kinds {
			d := s.denied(k.name, 1)
			if got := retryMillis(t, d); left(t, d) != 0 || got != waits[k.name] {
				t.Errorf("%s, %s: %+v, want nothing left for %d ms", k.name, when, d, waits[k.name])
			}
		}
	}
	for range 100 {
		s.apply(c.String())
	}
	check("applied a hundred times")
	more := configOf(6)
	for range 10 {
		s.apply(more.String())
		s.apply(c.String())
	}
	check("changed and changed back")
	for _, k := range kinds {
		s.put(k.name, k.limitOf("it", 5))
	}
	check("put again")
}

// Limits are told apart by their names: two with the same numbers on one meter count each
// unit once each, and so does one that counts per subject beside them.
func TestLimitsOnOneMeterCountApart(t *testing.T) {
	t.Parallel()
	c := &configuration{}
	for _, k := range kinds {
		each := strings.Replace(k.limitOf("each", 5), "}", `,"scope":"subject"}`, 1)
		c.tenant(k.name, planOf(k.limitOf("a", 5), k.limitOf("b", 5), each))
	}
	s := newKinds(t, c)
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		by := func(subject string, cost int64) []quota.LimitResult {
			d := s.decided(s.consume(fmt.Sprintf(`{"tenant":%q,"subject":%q,"meter":"api.calls","cost":%d}`, k.name, subject, cost)))
			if !d.Allowed {
				t.Errorf("%s spends %d: %+v, want it allowed", subject, cost, d)
			}
			return d.Limits
		}
		by("ann", 3)
		for i, l := range by("bob", 2) {
			if want := []int64{5, 5, 2}[i]; l.Used != want {
				t.Errorf("limit %s: %d used, want %d", l.Name, l.Used, want)
			}
		}
		s.passMillis(s.stand(k.name)[0].ResetMS) // from here on what each used before is behind it
		by("ann", 1)
		for i, l := range by("bob", 2) {
			if want := []int64{3, 3, 2}[i]; l.Used != want {
				t.Errorf("limit %s, after all came back: %d used, want %d", l.Name, l.Used, want)
			}
		}
	})
}

// A window of another length, another kind of window, another algorithm: what they count
// is in the ledger, so a changed limit finds what was used within its new window, at
// once. A bucket that a limit newly is starts full, once.
func TestAChangedWindowCountsWhatTheLedgerHolds(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	limit := func(fields string) string { return `{"name":"it","meter":"api.calls",` + fields + `}` }
	s.admitted("log", 4)
	s.pass(2 * time.Minute)
	for _, tt := range []struct {
		fields string
		used   int64
	}{
		{`"algorithm":"sliding_log","limit":5,"window":"1h"`, 4},
		{`"algorithm":"sliding_log","limit":5,"window":"1m"`, 0},
		{`"algorithm":"sliding_counter","limit":5,"window":"1h"`, 4},
		{`"algorithm":"sliding_counter","limit":5,"window":"1m"`, 0},
		{`"algorithm":"fixed_window","limit":5,"window":"1h"`, 4},
		{`"algorithm":"fixed_window","limit":5,"window":"month"`, 4},
		{`"algorithm":"fixed_window","limit":5,"window":"1m"`, 0},
	} {
		s.put("log", limit(tt.fields))
		if l := s.would("log", 0)[0].Limits[0]; l.Used != tt.used || l.Remaining != 5-tt.used {
			t.Errorf("%s: %+v, want %d used", tt.fields, l, tt.used)
		}
	}
	bucket, log := limit(`"algorithm":"token_bucket","capacity":5,"refill":"1/1h"`), limit(`"algorithm":"sliding_log","limit":9,"window":"1h"`)
	s.put("log", bucket)
	s.admitted("log", 5)
	for range 3 {
		s.put("log", bucket)
		s.denied("log", 1)
	}
	s.put("log", log)
	if d := s.denied("log", 1); d.Limits[0].Used != 9 {
		t.Errorf("a log again: %+v, want what both used", d.Limits[0])
	}
	s.put("log", bucket) // another new one, not the empty one from before
	s.admitted("log", 5)
	s.denied("log", 1)
}

// A configuration that is refused leaves the one before it in force, whole, with all that
// was used; who sent it is told, and nobody else notices.
func TestARefusedConfigurationLeavesTheOldOneInForce(t *testing.T) {
	t.Parallel()
	instances := newInstances(t, 2, configOf(5))
	eachKind(t, instances[0], func(t *testing.T, s *service, k kind) {
		plan := func() string { return s.read(catalog.KeyRead, "/v1/plans/"+k.name).want(t, 200).body }
		s.admitted(k.name, 3)
		before := plan()
		s.admin("PUT", "/v1/plans/"+k.name, planOf(k.limitOf("it", 500), k.limitOf("it", 500))).want(t, 400, codeInvalidRequest)
		s.admin("PUT", "/v1/plans/"+k.name, planOf(k.limitOf("it", -1))).want(t, 400, codeInvalidRequest)
		s.admin("PUT", "/v1/plans/"+k.name, planOf(k.limitOf("it", 500), `{"name":"x"}`)).want(t, 400, codeInvalidRequest)
		s.admin("PUT", "/v1/tenants/"+k.name, `{"plan":"no-such-plan"}`).want(t, 400, codeInvalidRequest)
		if diff := cmp.Diff(before, plan()); diff != "" {
			t.Errorf("plan, before-, after+:\n%s", diff)
		}
		for _, instance := range instances {
			if got := left(t, instance.in(t).would(k.name, 0)[0]); got != 2 {
				t.Errorf("remaining = %d, want 2", got)
			}
			instance.in(t).denied(k.name, 3)
		}
	})
	var version struct{ Version int32 }
	if err := json.Unmarshal([]byte(instances[0].read(catalog.KeyRead, "/v1/plans/log").body), &version); err != nil || version.Version != 1 {
		t.Errorf("plan version = %d, %v, want 1", version.Version, err)
	}
}
