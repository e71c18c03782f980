package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// read gets a path with a key of one scope for every tenant.
func (s *service) read(scope catalog.KeyScope, path string) answer {
	s.t.Helper()
	return s.do(request{method: http.MethodGet, path: path, token: s.token(scope, "")})
}

func TestLimitsAreThoseThatDecide(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":4}`).want(t, 200)
	golden(t, "limits", s.read(catalog.KeyRead, "/v1/tenants/acme/limits").want(t, 200))

	var body struct{ Limits []quota.LimitResult }
	if err := json.Unmarshal([]byte(s.read(catalog.KeyRead, "/v1/tenants/acme/limits").body), &body); err != nil {
		t.Fatal(err)
	}
	dry := s.consume(`{"tenant":"acme","meter":"api.calls","cost":0,"dry_run":true}`).want(t, 200).decision(t)
	for i, l := range dry.Limits {
		l.WouldDeny = false // of a decision, not of a limit
		if diff := cmp.Diff(l, body.Limits[i]); diff != "" {
			t.Errorf("limit %s, decision-, read+:\n%s", l.Name, diff)
		}
	}
}

func TestLimitsOfASubject(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"users","subject":"u/1 é","meter":"api.calls"}`).want(t, 200)
	golden(t, "limits_subject", s.read(catalog.KeyRead, "/v1/tenants/users/limits?subject="+url.QueryEscape("u/1 é")).want(t, 200))
	var body struct{ Limits []quota.LimitResult }
	text := s.read(catalog.KeyRead, "/v1/tenants/users/limits").want(t, 200).body
	if err := json.Unmarshal([]byte(text), &body); err != nil || len(body.Limits) > 0 {
		t.Errorf("limits without a subject = %s, want none of them", text)
	}
}

// What was said at an instant is said of it later on.
func TestLimitsOfThePast(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":4}`).want(t, 200)
	said := s.read(catalog.KeyRead, "/v1/tenants/acme/limits").want(t, 200)
	var body struct{ At string }
	if err := json.Unmarshal([]byte(said.body), &body); err != nil {
		t.Fatal(err)
	}
	s.pass(3 * time.Second)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 200)
	s.admin("PUT", "/v1/tenants/acme", `{"plan":"huge"}`).want(t, 200)
	path := "/v1/tenants/acme/limits?at=" + url.QueryEscape(body.At)
	if diff := cmp.Diff(said.body, s.read(catalog.KeyRead, path).want(t, 200).body); diff != "" {
		t.Errorf("said-, of the same instant later+:\n%s", diff)
	}
	s.read(catalog.KeyRead, "/v1/tenants/nobody/limits?at="+url.QueryEscape(body.At)).want(t, 404, codeTenantNotFound)
}

func TestBadReads(t *testing.T) {
	t.Parallel()
	s := newService(t)
	read, audit := catalog.KeyRead, catalog.KeyAudit
	for _, tt := range []struct {
		scope       catalog.KeyScope
		path        string
		field, rule string
	}{
		{read, "/v1/tenants/acme/limits?subject=", "subject", "1 to 256 bytes"},
		{read, "/v1/tenants/acme/limits?subject=%00", "subject", "control characters"},
		{read, "/v1/tenants/acme/limits?subject=%ff", "subject", "UTF-8"},
		{read, "/v1/tenants/acme/limits?at=2100-01-01T00:00:00Z", "at", "future"},
		{read, "/v1/tenants/acme/limits?at=2001-01-01T00:00:00Z", "at", "before the tenant was made"},
		{read, "/v1/tenants/acme/limits?at=yesterday", "at", "RFC 3339"},
		{read, "/v1/tenants/acme/limits?subjct=a", "subjct", "not a parameter"},
		{read, "/v1/tenants/acme/limits?subject=%zz", "query", "percent-encoded"},
		{read, "/v1/tenants/%2e%2e/limits", "tenant", "must not be . or .."},
		{read, "/v1/tenants/%00/limits", "tenant", "control characters"},
		{read, "/v1/tenants/%ff/limits", "tenant", "UTF-8"},
		{read, "/v1/tenants/" + strings.Repeat("x", 300) + "/limits", "tenant", "1 to 256 bytes"},
		{audit, "/v1/tenants/acme/entries?limit=0", "limit", "1 to 1000"},
		{audit, "/v1/tenants/acme/entries?limit=1001", "limit", "1 to 1000"},
		{audit, "/v1/tenants/acme/entries?limit=ten", "limit", "1 to 1000"},
		{audit, "/v1/tenants/acme/entries?limit=", "limit", "1 to 1000"},
		{audit, "/v1/tenants/acme/entries?limit=01", "limit", "1 to 1000"},
		{audit, "/v1/tenants/acme/entries?limit=%2B1", "limit", "1 to 1000"},
		{audit, "/v1/tenants/acme/explain?seq=01", "seq", "whole number from 1"},
		{audit, "/v1/tenants/acme/entries/01", "seq", "whole number from 1"},
		{audit, "/v1/tenants/acme/entries?=1", "query", "empty name"},
		{audit, "/v1/tenants/acme/entries?limit=1&limit=2", "limit", "only once"},
		{audit, "/v1/tenants/acme/entries?order=up", "order", "asc, desc"},
		{audit, "/v1/tenants/acme/entries?kind=spent", "kind", "one of consume"},
		{audit, "/v1/tenants/acme/entries?meter=API", "meter", "must match"},
		{audit, "/v1/tenants/acme/entries?plan=API", "plan", "must match"},
		{audit, "/v1/tenants/acme/entries?request_id=7", "request_id", "must be a UUID"},
		{audit, "/v1/tenants/acme/entries?request_id=%7B0198c5d7-8f5e-7c4e-9d6c-3f2a1b0c9d8e%7D", "request_id", "must be a UUID"},
		{audit, "/v1/tenants/acme/entries?until=2026-01-01T00:00:00Z", "until", "not a parameter"},
		{audit, "/v1/tenants/acme/entries?subject=", "subject", "1 to 256 bytes"},
		{audit, "/v1/tenants/acme/entries?from=yesterday", "from", "RFC 3339"},
		{audit, "/v1/tenants/acme/entries?to=0001-01-01T00:00:00Z", "to", "1970"},
		{audit, "/v1/tenants/acme/entries?from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "to", "after from"},
		{audit, "/v1/tenants/acme/entries?cursor=abc", "cursor", "next_cursor"},
		{audit, "/v1/tenants/acme/entries/0", "seq", "whole number from 1"},
		{audit, "/v1/tenants/acme/entries/-1", "seq", "whole number from 1"},
		{audit, "/v1/tenants/acme/entries/9999999999999999", "seq", "whole number from 1"},
		{audit, "/v1/tenants/acme/entries/1?limit=1", "limit", "not a parameter"},
		{read, "/v1/meters/API", "meter", "must match"},
		{read, "/v1/plans/%20", "plan", "must match"},
		{read, "/v1/meters?limit=-1", "limit", "1 to 1000"},
		{read, "/v1/tenants?cursor=", "cursor", "next_cursor"},
	} {
		s.read(tt.scope, tt.path).wantFault(t, tt.field, tt.rule)
	}
	for _, tt := range []struct {
		scope catalog.KeyScope
		path  string
		code  code
	}{
		{read, "/v1/tenants/nobody/limits", codeTenantNotFound},
		{audit, "/v1/tenants/nobody/entries", codeTenantNotFound},
		{audit, "/v1/tenants/acme/entries/1", codeNotFound},
		{read, "/v1/tenants/nobody", codeTenantNotFound},
		{read, "/v1/meters/nope", codeNotFound},
		{read, "/v1/plans/nope", codeNotFound},
		{read, "/v1/nope", codeRouteNotFound},
		{read, "/", codeRouteNotFound},
		{read, "/v1/tenants/a/b/limits", codeRouteNotFound},
	} {
		s.read(tt.scope, tt.path).want(t, 404, tt.code)
	}
}

// An id may hold what a path may not; each of these is another tenant.
func TestTenantsOfAnyNameHaveAPath(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, tenant := range []string{"acme", "a/b", "a b%", "café"} {
		cost := i + 1
		s.consume(fmt.Sprintf(`{"tenant":%q,"meter":"api.calls","cost":%d}`, tenant, cost)).want(t, 200)
		var body struct {
			Tenant string
			Limits []quota.LimitResult
		}
		a := s.read(catalog.KeyRead, "/v1/tenants/"+url.PathEscape(tenant)+"/limits").want(t, 200)
		if err := json.Unmarshal([]byte(a.body), &body); err != nil {
			t.Fatal(err)
		}
		if body.Tenant != tenant || body.Limits[0].Used != int64(cost) {
			t.Errorf("limits of %q = tenant %q, used %d; want used %d", tenant, body.Tenant, body.Limits[0].Used, cost)
		}
		own := s.do(request{
			method: http.MethodGet, path: "/v1/tenants/" + url.PathEscape(tenant) + "/entries/1",
			token: s.token(catalog.KeyAudit, tenant),
		}).want(t, 200)
		if !strings.Contains(own.body, fmt.Sprintf(`"tenant":%q`, tenant)) {
			t.Errorf("entry 1 of %q = %s", tenant, own.body)
		}
	}
	// The same path with every byte escaped.
	s.read(catalog.KeyRead, "/v1/tenants/%61%63%6d%65/limits").want(t, 200)
}

// entriesOf reads a list to its end and returns the numbers of its entries.
func (s *service) entriesOf(path string) (seqs []int64) {
	s.t.Helper()
	next := path
	for range 50 {
		var page struct {
			Entries []struct {
				Seq int64 `json:"seq"`
			} `json:"entries"`
			NextCursor string `json:"next_cursor"`
		}
		a := s.read(catalog.KeyAudit, next).want(s.t, 200)
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			s.t.Fatal(err)
		}
		for _, e := range page.Entries {
			seqs = append(seqs, e.Seq)
		}
		if page.NextCursor == "" {
			return seqs
		}
		next = path + "&cursor=" + url.QueryEscape(page.NextCursor)
	}
	s.t.Fatalf("%s has no last page", path)
	return nil
}

func TestEntriesPageByPage(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i := range 7 {
		s.consume(fmt.Sprintf(`{"tenant":"huge","subject":"u%d","meter":"api.calls","cost":%d,"dims":{"n":"%d"}}`, i%2, i, i)).want(t, 200)
		s.db.AdvanceClock(t, time.Second)
	}
	golden(t, "entry", s.read(catalog.KeyAudit, "/v1/tenants/huge/entries/2").want(t, 200))
	golden(t, "entries", s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?limit=2&order=desc").want(t, 200))
	var third entriesPage
	if err := json.Unmarshal([]byte(s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?limit=1&from=2026-01-31T12:00:02Z").body), &third); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		query string
		want  []int64
	}{
		{"limit=3", []int64{1, 2, 3, 4, 5, 6, 7}},
		{"limit=7", []int64{1, 2, 3, 4, 5, 6, 7}},
		{"limit=1&order=desc", []int64{7, 6, 5, 4, 3, 2, 1}},
		{"limit=1000", []int64{1, 2, 3, 4, 5, 6, 7}},
		{"limit=2&subject=u1", []int64{2, 4, 6}},
		{"limit=2&kind=consume&meter=api.calls&order=desc&subject=u0", []int64{7, 5, 3, 1}},
		{"limit=2&meter=other", nil},
		{"limit=2&plan=huge&from=2026-01-31T12:00:05Z", []int64{6, 7}},
		{"limit=2&plan=pro", nil},
		{"request_id=" + third.Entries[0].RequestID.String(), []int64{3}},
		{"request_id=0198c5d7-8f5e-7c4e-9d6c-3f2a1b0c9d8e", nil},
		{"limit=2&kind=hold", nil},
		{"limit=1&from=2026-01-31T12:00:02Z&to=2026-01-31T12:00:05Z", []int64{3, 4, 5}},
		{"limit=1&from=2026-01-31T19:00:06%2B07:00", []int64{7}},
	} {
		if diff := cmp.Diff(tt.want, s.entriesOf("/v1/tenants/huge/entries?"+tt.query)); diff != "" {
			t.Errorf("entries?%s, want-, got+:\n%s", tt.query, diff)
		}
	}
}

// A page that ends with the last entry is the last page, also one of the largest size.
func TestTheLastPageIsNotFollowedByAnEmptyOne(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	s.fillLedger("huge", 999)
	for _, size := range []int{10, 100, 500, 1000} {
		pages, next := 0, "/v1/tenants/huge/entries?limit="+strconv.Itoa(size)
		for path := next; path != ""; pages++ {
			var page entriesPage
			if err := json.Unmarshal([]byte(s.read(catalog.KeyAudit, path).want(t, 200).body), &page); err != nil {
				t.Fatal(err)
			}
			if path = ""; page.NextCursor != "" {
				path = next + "&cursor=" + url.QueryEscape(page.NextCursor)
			}
			if len(page.Entries) != size {
				t.Errorf("a page of %d entries, want %d", len(page.Entries), size)
			}
		}
		if pages != 1000/size {
			t.Errorf("%d pages of %d, want %d", pages, size, 1000/size)
		}
	}
}

// A cursor goes on in the list it came from; in another it is refused, not guessed at.
func TestCursorOfAnotherListIsRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for range 3 {
		s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
		s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200)
	}
	var page entriesPage
	if err := json.Unmarshal([]byte(s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?limit=1").body), &page); err != nil {
		t.Fatal(err)
	}
	cursor := url.QueryEscape(page.NextCursor)
	s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?limit=2&cursor="+cursor).want(t, 200)
	for _, path := range []string{
		"/v1/tenants/acme/entries?cursor=" + cursor,
		"/v1/tenants/huge/entries?order=desc&cursor=" + cursor,
		"/v1/tenants/huge/entries?meter=api.calls&cursor=" + cursor,
		"/v1/tenants/huge/entries?from=2026-01-01T00:00:00Z&cursor=" + cursor,
	} {
		s.read(catalog.KeyAudit, path).wantFault(t, "cursor", "next_cursor")
	}
}
