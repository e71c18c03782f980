package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// get reads a path with a key of a scope for every tenant.
func (s *service) get(scope catalog.KeyScope, path string) answer {
	s.t.Helper()
	return s.do(request{method: http.MethodGet, path: path, token: s.token(scope, "")})
}

func read[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(a.want(t, http.StatusOK).body), &v); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	return v
}

// Who was just denied can read why at once: the whole answer, as it was sent.
func TestADenialIsKeptWithItsWholeAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":4}`).want(t, 200)
	denied := s.consume(`{"tenant":"acme","subject":"u1","meter":"api.calls","cost":3}`).want(t, 429).decision(t)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":3,"dry_run":true}`).want(t, 429)
	a := s.get(catalog.KeyAudit, "/v1/tenants/acme/denials")
	golden(t, "denials", a)
	page := read[denialsPage](t, a)
	if len(page.Denials) != 1 {
		t.Fatalf("denials = %s, want one: a dry run is none", a.body)
	}
	if diff := cmp.Diff(denied, page.Denials[0].Decision); diff != "" {
		t.Errorf("kept answer, want-, got+:\n%s", diff)
	}
	if got := page.Denials[0]; got.AfterSeq != 1 || got.RequestID != denied.RequestID || got.Subject != "u1" {
		t.Errorf("denial = %+v, want the one after entry 1 of u1", got)
	}
}

// A filter selects, a cursor goes on where its page ended, and the last page says so.
func TestDenialsAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i := range 5 {
		s.db.AdvanceClock(t, time.Second)
		s.consume(fmt.Sprintf(`{"tenant":"blocked","subject":"u%d","meter":"api.calls"}`, i%2)).want(t, 429)
		s.consume(`{"tenant":"acme","meter":"api.calls","cost":6}`).want(t, 429)
	}
	s.consume(`{"tenant":"blocked","meter":"unplanned"}`).want(t, 429)
	subjects := func(query string) (found []string) {
		path := "/v1/tenants/blocked/denials?limit=2" + query
		for cursor := ""; ; {
			page := read[denialsPage](t, s.get(catalog.KeyAudit, path+cursor))
			for _, d := range page.Denials {
				found = append(found, d.Subject+":"+string(d.Reason))
			}
			if page.NextCursor == "" {
				return found
			}
			cursor = "&cursor=" + page.NextCursor
		}
	}
	for query, want := range map[string][]string{
		"":                          {":meter_not_in_plan", "u0:blocked", "u1:blocked", "u0:blocked", "u1:blocked", "u0:blocked"},
		"&subject=u1":               {"u1:blocked", "u1:blocked"},
		"&limit_name=off":           {"u0:blocked", "u1:blocked", "u0:blocked", "u1:blocked", "u0:blocked"},
		"&reason=meter_not_in_plan": {":meter_not_in_plan"},
		"&meter=unplanned":          {":meter_not_in_plan"},
		"&from=2026-01-31T12:00:04Z&to=2026-01-31T12:00:05Z": {"u1:blocked"},
		"&reason=quota_exceeded":                             nil,
	} {
		got := subjects(query)
		if query == "" { // the last two are of one instant
			got, want = got[2:], want[2:]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("denials with %q, want-, got+:\n%s", query, diff)
		}
	}
	page := read[denialsPage](t, s.get(catalog.KeyAudit, "/v1/tenants/blocked/denials?limit=2"))
	s.get(catalog.KeyAudit, "/v1/tenants/acme/denials?cursor="+page.NextCursor).wantFault(t, "cursor", "same list")
	s.get(catalog.KeyAudit, "/v1/tenants/acme/denials?reason=bored").wantFault(t, "reason", "one of")
	s.get(catalog.KeyAudit, "/v1/tenants/acme/denials?from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z").wantFault(t, "to", "after from")
	s.get(catalog.KeyAudit, "/v1/tenants/nobody/denials").want(t, 404, codeTenantNotFound)
}

// Every denied request is counted once as a whole, and once for each limit that denied.
func TestDenialsAreCountedPerLimitAndMinute(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 200)
	for range 3 {
		s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 429)
	}
	s.db.AdvanceClock(t, time.Minute)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 200)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 429) // hourly denies, too
	a := s.get(catalog.KeyAudit, "/v1/tenants/acme/denials/counts?limit_name=*")
	golden(t, "denial_counts", a)
	counts := func(query string) (got []int64) {
		path := "/v1/tenants/acme/denials/counts?limit=1" + query
		for cursor := ""; ; {
			page := read[denialCountsPage](t, s.get(catalog.KeyAudit, path+cursor))
			for _, n := range page.Counts {
				got = append(got, n.Denials)
			}
			if page.NextCursor == "" {
				return got
			}
			cursor = "&cursor=" + page.NextCursor
		}
	}
	for query, want := range map[string][]int64{
		"":                         {1, 3},
		"&limit_name=burst":        {1, 3},
		"&limit_name=hourly":       {1},
		"&limit_name=*":            {1, 1, 1, 3, 3},
		"&reason=blocked":          nil,
		"&to=2026-01-31T12:01:00Z": {3},
	} {
		if diff := cmp.Diff(want, counts(query)); diff != "" {
			t.Errorf("counts with %q, want-, got+:\n%s", query, diff)
		}
	}
}
