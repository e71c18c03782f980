package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

func TestConfigurationIsPutAndRead(t *testing.T) {
	t.Parallel()
	s := newService(t)
	golden(t, "put_meter", s.admin("PUT", "/v1/meters/storage.bytes", `{"unit":"byte","weights":{"hot":1,"cold":"0.25"}}`).want(t, 201))
	golden(t, "get_meter", s.read(catalog.KeyRead, "/v1/meters/storage.bytes").want(t, 200))
	plan := `{"limits":[{"name":"daily","meter":"storage.bytes","algorithm":"fixed_window","limit":100,"window":"day"}]}`
	golden(t, "put_plan", s.admin("PUT", "/v1/plans/store", plan).want(t, 201))
	golden(t, "put_plan_unchanged", s.admin("PUT", "/v1/plans/store", plan).want(t, 200))
	golden(t, "put_plan_changed", s.admin("PUT", "/v1/plans/store", strings.Replace(plan, "100", "200", 1)).want(t, 200))
	golden(t, "get_plan", s.read(catalog.KeyRead, "/v1/plans/store").want(t, 200))
	golden(t, "put_tenant", s.admin("PUT", "/v1/tenants/new%2Fone", `{"plan":"store","timezone":"Asia/Jakarta","billing_anchor":31}`).want(t, 201))
	golden(t, "get_tenant", s.read(catalog.KeyRead, "/v1/tenants/new%2Fone").want(t, 200))

	// The new plan decides the very next call.
	d := s.consume(`{"tenant":"new/one","meter":"storage.bytes","pools":{"hot":10,"cold":3}}`).want(t, 200).decision(t)
	if d.Limits[0].Limit != 200 || d.Limits[0].Used != 11 {
		t.Errorf("limit = %+v, want 200 with 11 used", d.Limits[0])
	}
}

// Every fault of a body is named with its path, and nothing of it is done.
func TestBadConfigurationChangesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	limit := func(fields string) string {
		return `{"limits":[{"name":"l","meter":"api.calls","algorithm":"sliding_log",` + fields + `}]}`
	}
	for _, tt := range []struct{ path, body, field, rule string }{
		{"/v1/meters/m", `{}`, "unit", "required"},
		{"/v1/meters/m", `{"unit":"u","wieghts":{}}`, "wieghts", "not a field"},
		{"/v1/meters/m", `{"unit":7}`, "unit", "must be a string"},
		{"/v1/meters/m", `{"unit":null}`, "unit", "must not be null"},
		{"/v1/meters/m", `{"unit":"u","unit":"v"}`, "unit", "only once"},
		{"/v1/meters/m", `{"unit":"a\u0000"}`, "unit", "control characters"},
		{"/v1/meters/m", `{"unit":"u","weights":{"p":0.1234567}}`, "weights.p", "6 decimals"},
		{"/v1/meters/m", `{"unit":"u","weights":{"p":true}}`, "weights.p", "6 decimals"},
		{"/v1/meters/m", `{"unit":"u","weights":{"P":1}}`, "weights.P", "must match"},
		{"/v1/meters/M", `{"unit":"u"}`, "meter", "must match"},
		{"/v1/meters/m?dry_run=1", `{"unit":"u"}`, "dry_run", "must be true or false"},
		{"/v1/meters/m?dryrun=true", `{"unit":"u"}`, "dryrun", "not a parameter"},
		{"/v1/meters/m", ` `, "body", "JSON object"},
		{"/v1/meters/m", `[]`, "body", "must be an object"},
		{"/v1/meters/m", `null`, "body", "must be an object"},
		{"/v1/meters/m", `{"unit":"call","":1}`, "body", "empty name"},
		{"/v1/plans/p", `{"limits":[{"":1}]}`, "limits[0]", "empty name"},
		{"/v1/plans/p", `{"limits":[[[[1]]]]}`, "limits[0]", "must be an object"},
		{"/v1/plans/p", strings.Repeat("[", 100), "body", "ends early"},
		{"/v1/meters/m", `{"unit":"u"}{}`, "body", "nothing after it"},
		{"/v1/meters/m", `{"unit":"u"`, "body", "ends early"},
		{"/v1/plans/p", `{"limits":{}}`, "limits", "must be an array"},
		{"/v1/plans/p", limit(`"limit":10`), "limits[0].window", ""},
		{"/v1/plans/p", limit(`"limit":10,"window":"0s"`), "limits[0].window", ""},
		{"/v1/plans/p", limit(`"limit":-1,"window":"1h"`), "limits[0].limit", "whole number"},
		{"/v1/plans/p", limit(`"limit":1.5,"window":"1h"`), "limits[0].limit", "whole number"},
		{"/v1/plans/p", limit(`"limit":"10","window":"1h"`), "limits[0].limit", "whole number"},
		{"/v1/plans/p", limit(`"limit":9223372036854775808,"window":"1h"`), "limits[0].limit", "whole number"},
		{"/v1/plans/p", limit(`"limit":10,"window":"1h","mode":"of"`), "limits[0].mode", "one of"},
		{"/v1/plans/p", limit(`"limit":10,"window":"1h","capacity":5`), "limits[0].capacity", ""},
		{"/v1/plans/p", strings.Replace(limit(`"limit":10,"window":"1h"`), "api.calls", "nope", 1), "limits[0].meter", ""},
		{"/v1/plans/p", strings.Replace(limit(`"limit":10,"window":"1h"`), "sliding_log", "magic", 1), "limits[0].algorithm", "one of"},
		{"/v1/tenants/t", `{"plan":"nope"}`, "plan", ""},
		{"/v1/tenants/t", `{"plan":"pro","timezone":"Mars/Olympus"}`, "timezone", "IANA"},
		{"/v1/tenants/t", `{"plan":"pro","billing_anchor":32}`, "billing_anchor", "1 to 31"},
		{"/v1/tenants/t", `{"plan":"pro","billing_anchor":1.5}`, "billing_anchor", "whole number"},
		{"/v1/tenants/t", `{"plan":"pro","status":"asleep"}`, "status", "one of"},
		{"/v1/tenants/%2e", `{"plan":"pro"}`, "tenant", "must not be"},
	} {
		t.Run(tt.path+" "+tt.body, func(t *testing.T) {
			s := *s
			s.t = t
			s.admin("PUT", tt.path, tt.body).wantFault(t, tt.field, tt.rule)
		})
	}
	for _, tt := range []struct{ body, field, rule string }{
		{`{}`, "scopes", "at least one"},
		{`{"scopes":["root"]}`, "scopes[0]", "one of"},
		{`{"scopes":"read"}`, "scopes", "must be an array"},
		{`{"scopes":["read"],"tenant":""}`, "tenant", "must not be empty"},
		{`{"scopes":["read"],"tenant":null}`, "tenant", "must not be null"},
		{`{"scopes":["read"],"tenant":"nobody"}`, "tenant", "must name a tenant"},
		{`{"scopes":["admin"],"tenant":"acme"}`, "tenant", "admin"},
		{`{"scopes":["read"],"env":"Live"}`, "env", "must match"},
	} {
		s.admin("POST", "/v1/keys", tt.body).wantFault(t, tt.field, tt.rule)
	}
	s.admin("PUT", "/v1/plans/p", `{"limits":[`+strings.Repeat(" ", 1<<20)+`]}`).want(t, 413, codeBodyTooLarge)
	s.do(request{
		method: "PUT", path: "/v1/plans/p", body: "limits: []", token: s.token(catalog.KeyAdmin, ""),
		header: pairs([]string{"Content-Type", "application/yaml"}),
	}).want(t, 415, codeMediaType)
	s.read(catalog.KeyRead, "/v1/meters/m").want(t, 404)
	s.read(catalog.KeyRead, "/v1/plans/p").want(t, 404)
	s.read(catalog.KeyRead, "/v1/tenants/t").want(t, 404)
}

// names reads a list to its end and returns the names in it.
func (s *service) names(list, member, path, token string) (names []string) {
	s.t.Helper()
	next := path
	for range 50 {
		var page map[string]json.RawMessage
		a := s.do(request{method: http.MethodGet, path: next, token: token}).want(s.t, 200)
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			s.t.Fatal(err)
		}
		var items []map[string]any
		if err := json.Unmarshal(page[list], &items); err != nil {
			s.t.Fatal(err)
		}
		for _, item := range items {
			names = append(names, fmt.Sprint(item[member]))
		}
		var cursor string
		if page["next_cursor"] == nil {
			return names
		}
		if err := json.Unmarshal(page["next_cursor"], &cursor); err != nil {
			s.t.Fatal(err)
		}
		next = path + "&cursor=" + url.QueryEscape(cursor)
	}
	s.t.Fatalf("%s has no last page", path)
	return nil
}

func TestListsPageByPage(t *testing.T) {
	t.Parallel()
	s := newService(t)
	token := s.token(catalog.KeyRead, "")
	tenants := []string{"a b%", "a/b", "acme", "blocked", "café", "globex", "huge", "suspended", "users"}
	for _, limit := range []string{"1", "4", "9", "1000"} {
		for _, tt := range []struct {
			list string
			want []string
		}{
			{"meters", []string{"api.calls", "llm.tokens", "unplanned"}},
			{"plans", []string{"blocked", "huge", "per-user", "pro"}},
			{"tenants", tenants},
		} {
			got := s.names(tt.list, "name", "/v1/"+tt.list+"?limit="+limit, token)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s by %s, want-, got+:\n%s", tt.list, limit, diff)
			}
		}
	}
	own := s.names("tenants", "name", "/v1/tenants?limit=1", s.token(catalog.KeyRead, "acme"))
	if diff := cmp.Diff([]string{"acme"}, own); diff != "" {
		t.Errorf("tenants that acme's key sees, want-, got+:\n%s", diff)
	}
	golden(t, "list_meters", s.read(catalog.KeyRead, "/v1/meters?limit=2").want(t, 200))
	golden(t, "list_plans", s.read(catalog.KeyRead, "/v1/plans?limit=1").want(t, 200))
	golden(t, "list_tenants", s.read(catalog.KeyRead, "/v1/tenants?limit=2").want(t, 200))
}

func TestKeysAreMadeListedAndRevoked(t *testing.T) {
	t.Parallel()
	s := newService(t)
	made := s.admin("POST", "/v1/keys", `{"name":"backend","scopes":["read","decide"],"tenant":"acme","env":"test"}`).want(t, 201)
	var key struct{ ID, Token string }
	if err := json.Unmarshal([]byte(made.body), &key); err != nil {
		t.Fatal(err)
	}
	golden(t, "create_key", made)
	consume := request{method: "POST", path: "/v1/consume", body: `{"tenant":"acme","meter":"api.calls"}`, token: key.Token}
	s.do(consume).want(t, 200)

	list := s.admin("GET", "/v1/keys", "").want(t, 200)
	if !strings.Contains(list.body, key.ID) || strings.Contains(list.body, key.Token[len(key.Token)-33:]) {
		t.Errorf("keys = %s, want %s without its secret", list.body, key.ID)
	}
	golden(t, "revoke_key", s.admin("DELETE", "/v1/keys/"+key.ID, "").want(t, 200))
	s.admin("DELETE", "/v1/keys/"+key.ID, "").want(t, 200) // again: the same
	s.admin("DELETE", "/v1/keys/000000000000", "").want(t, 404, codeNotFound)
	s.admin("DELETE", "/v1/keys/a%00", "").wantFault(t, "key", "control characters")
}
