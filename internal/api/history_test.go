package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// history reads GET /v1/changes and names each as "by object name".
func (s *service) history(token, query string) []string {
	s.t.Helper()
	var page changesPage
	a := s.do(request{method: "GET", path: "/v1/changes?" + query, token: token}).want(s.t, 200)
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		s.t.Fatal(err)
	}
	names := []string{}
	for _, c := range page.Changes {
		names = append(names, fmt.Sprintf("%s %s %s", c.By, c.Object, c.Name))
	}
	return names
}

func TestHistorySaysWhoChangedWhatAndKeepsSecrets(t *testing.T) {
	t.Parallel()
	s := newService(t)
	audit, bound := s.token(catalog.KeyAudit, ""), s.token(catalog.KeyAudit, "acme")
	s.admin("PUT", "/v1/tenants/acme", `{"plan":"huge"}`).want(t, 200)
	s.admin("PUT", "/v1/settings", `{"default_plan":"pro"}`).want(t, 200)
	s.consume(`{"tenant":"newcomer","meter":"api.calls"}`).want(t, 200)
	made := s.admin("POST", "/v1/keys", `{"scopes":["read"]}`).want(t, 201)
	var key struct{ ID, Token string }
	if err := json.Unmarshal([]byte(made.body), &key); err != nil {
		t.Fatal(err)
	}
	admin := "key:" + strings.Split(s.token(catalog.KeyAdmin, ""), "_")[2]
	for _, tt := range []struct {
		token, query string
		want         []string
	}{
		{audit, "object=tenant&limit=2", []string{"default_plan tenant newcomer", admin + " tenant acme"}},
		{audit, "object=settings", []string{admin + " settings global"}},
		{audit, "by=default_plan&order=asc", []string{"default_plan tenant newcomer"}},
		{audit, "name=" + key.ID, []string{admin + " key " + key.ID}},
		{audit, "object=plan&name=acme", []string{}},
		{audit, "object=tenant&name=acme&order=asc", []string{"test tenant acme", admin + " tenant acme"}},
		{audit, "from=2100-01-01T00:00:00Z", []string{}},
		{audit, "object=tenant&order=desc&limit=1&to=" + url.QueryEscape(time.Now().Add(time.Hour).Format(time.RFC3339)), []string{"default_plan tenant newcomer"}},
		{bound, "", []string{admin + " tenant acme", "test tenant acme"}},
		{bound, "object=tenant&name=acme&by=test", []string{"test tenant acme"}},
		{bound, "object=key", []string{}},
		{bound, "name=globex", []string{}},
	} {
		if diff := cmp.Diff(tt.want, s.history(tt.token, tt.query)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.query, diff)
		}
	}
	all := s.do(request{method: "GET", path: "/v1/changes?limit=1000", token: audit})
	for _, token := range []string{key.Token, audit, bound} {
		parsed, _ := catalog.ParseToken(token)
		hash := parsed.Hash()
		if strings.Contains(all.body, parsed.Secret) || strings.Contains(all.body, fmt.Sprintf("%x", hash)) {
			t.Errorf("the history holds the secret of %s", parsed)
		}
	}
	if got, want := s.names("changes", "id", "/v1/changes?limit=3", audit), len(s.history(audit, "")); len(got) != want {
		t.Errorf("%d changes in pages of 3, want %d", len(got), want)
	}
	for field, query := range map[string]string{
		"object": "object=plans", "name": "name=", "by": "by=%00", "order": "order=up", "to": "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
		"limit": "limit=0", "cursor": "cursor=AQ", "names": "names=x",
	} {
		s.do(request{method: "GET", path: "/v1/changes?" + query, token: audit}).wantFault(t, field, "")
	}
}

// A cursor of one filter is none of another.
func TestCursorsBelongToTheirFilters(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.admin("PUT", "/v1/plans/pro", `{"limits":[]}`).want(t, 200)
	s.token(catalog.KeyRead, "acme")
	s.token(catalog.KeyRead, "huge")
	for path, others := range map[string][]string{
		"/v1/tenants?limit=1&plan=pro":                        {"/v1/tenants?limit=1", "/v1/tenants?plan=huge", "/v1/tenants?plan=pro&status=active", "/v1/tenants?prefix=pro"},
		"/v1/keys?limit=1&scope=read":                         {"/v1/keys?limit=1", "/v1/keys?scope=decide", "/v1/keys?scope=read&revoked=false", "/v1/keys?scope=read&tenant=acme"},
		"/v1/changes?limit=1":                                 {"/v1/changes?order=asc", "/v1/changes?object=tenant", "/v1/changes?name=pro", "/v1/changes?by=test", "/v1/changes?from=2026-01-01T00:00:00Z"},
		"/v1/plans/pro/versions?limit=1":                      {"/v1/plans/huge/versions?limit=1", "/v1/plans?limit=1"},
		"/v1/tenants?limit=1&prefix=a&plan=pro&status=active": {"/v1/tenants?prefix=a&plan=pro", "/v1/tenants?prefix=ap&plan=ro&status=active"},
	} {
		var page struct {
			Next string `json:"next_cursor"`
		}
		a := s.admin("GET", path, "").want(t, 200)
		if err := json.Unmarshal([]byte(a.body), &page); err != nil || page.Next == "" {
			t.Fatalf("%s: %s has no next page, %v", path, a.body, err)
		}
		s.admin("GET", path+"&cursor="+page.Next, "").want(t, 200)
		for _, other := range others {
			separator := "?"
			if strings.Contains(other, "?") {
				separator = "&"
			}
			s.admin("GET", other+separator+"cursor="+page.Next, "").wantFault(t, "cursor", "this same list")
		}
	}
	for field, path := range map[string]string{
		"plan": "/v1/tenants?plan=P", "status": "/v1/tenants?status=open", "prefix": "/v1/tenants?prefix=", "tenant": "/v1/keys?tenant=",
		"scope": "/v1/keys?scope=write", "revoked": "/v1/keys?revoked=1", "unit": "/v1/meters?unit=x",
	} {
		s.admin("GET", path, "").wantFault(t, field, "")
	}
}

func TestTenantsAndKeysAreFiltered(t *testing.T) {
	t.Parallel()
	s := newService(t)
	read := s.token(catalog.KeyRead, "")
	for query, want := range map[string][]string{
		"plan=per-user": {"users"}, "status=suspended": {"suspended"}, "prefix=a": {"a b%", "a/b", "acme"}, "prefix=caf%C3%A9": {"café"},
		"plan=pro&prefix=g": {"globex"}, "plan=none": nil,
	} {
		if diff := cmp.Diff(want, s.names("tenants", "name", "/v1/tenants?limit=2&"+query, read)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	bound := s.token(catalog.KeyRead, "acme")
	for query, want := range map[string][]string{"plan=pro": {"acme"}, "plan=huge": nil, "prefix=g": nil, "status=active": {"acme"}} {
		if diff := cmp.Diff(want, s.names("tenants", "name", "/v1/tenants?limit=2&"+query, bound)); diff != "" {
			t.Errorf("%s by acme's key (-want +got):\n%s", query, diff)
		}
	}
	id := strings.Split(bound, "_")[2]
	admin := s.token(catalog.KeyAdmin, "")
	s.admin("DELETE", "/v1/keys/"+id, "").want(t, 200)
	if diff := cmp.Diff([]string{id}, s.names("keys", "id", "/v1/keys?tenant=acme&scope=read&revoked=true", admin)); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if got := s.names("keys", "id", "/v1/keys?tenant=acme&revoked=false", admin); got != nil {
		t.Errorf("good keys of acme = %v, want none", got)
	}
}

func TestPlanVersionsAreListedAndOutliveTheirPlan(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const limits = `{"limits":[{"name":"l","meter":"api.calls","algorithm":"sliding_log","limit":%d,"window":"1h"}]}`
	for i := range 4 {
		s.admin("PUT", "/v1/plans/p", fmt.Sprintf(limits, i)).want(t, []int{201, 200, 200, 200}[i])
	}
	read := s.token(catalog.KeyRead, "")
	for _, limit := range []string{"1", "2", "3", "4", "5"} {
		if diff := cmp.Diff([]string{"4", "3", "2", "1"}, s.names("versions", "version", "/v1/plans/p/versions?limit="+limit, read)); diff != "" {
			t.Errorf("versions by %s (-want +got):\n%s", limit, diff)
		}
	}
	s.apply("plans: {q: {limits: []}}\nmeters: {api.calls: {unit: call}}") // p stays: nothing is pruned
	s.db.Exec(t, "update quotad.plan set removed = true, catalog_version = 999 where plan = 'p'")
	s.read(catalog.KeyRead, "/v1/plans/p").want(t, 404)
	var v planVersionBody
	a := s.read(catalog.KeyRead, "/v1/plans/p/versions/2").want(t, 200)
	if err := json.Unmarshal([]byte(a.body), &v); err != nil || v.Version != 2 || *v.Limits[0].Limit != 1 ||
		!strings.HasPrefix(v.CreatedBy, "key:") || v.CreatedAt.IsZero() {
		t.Errorf("version 2 = %s, %v", a.body, err)
	}
	for _, path := range []string{"/v1/plans/none/versions", "/v1/plans/none/versions/1", "/v1/plans/p/versions/5"} {
		s.read(catalog.KeyRead, path).want(t, 404, codeNotFound)
	}
	for _, version := range []string{"0", "-1", "01", "x", "2147483648"} {
		s.read(catalog.KeyRead, "/v1/plans/p/versions/"+version).wantFault(t, "version", "whole number")
	}
	s.read(catalog.KeyRead, "/v1/plans/P/versions").wantFault(t, "plan", "must match")
}
