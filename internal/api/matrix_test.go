package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// matrixBodies are valid bodies of the routes that take one; {tenant} is replaced.
var matrixBodies = map[string]string{
	"POST /v1/consume":              `{"tenant":"{tenant}","meter":"api.calls","dry_run":true}`,
	"POST /v1/consume/batch":        `{"items":[{"tenant":"{tenant}","meter":"api.calls","dry_run":true}]}`,
	"POST /v1/holds":                `{"tenant":"{tenant}","meter":"api.calls","dry_run":true}`,
	"POST /v1/holds/batch":          `{"items":[{"tenant":"{tenant}","meter":"api.calls","dry_run":true}]}`,
	"POST /v1/holds/{hold}/settle":  `{"tenant":"{tenant}","cost":0,"dry_run":true}`,
	"POST /v1/holds/{hold}/release": `{"tenant":"{tenant}","dry_run":true}`,
	"POST /v1/holds/{hold}/extend":  `{"tenant":"{tenant}","dry_run":true}`,
	"POST /v1/reversals":            `{"tenant":"{tenant}","seq":1,"dry_run":true}`,
	"PUT /v1/meters/{meter}":        `{"unit":"call"}`,
	"PUT /v1/plans/{plan}":          `{"limits":[{"name":"l","meter":"api.calls","algorithm":"sliding_log","limit":1,"window":"1h"}]}`,
	"PUT /v1/tenants/{tenant}":      `{"plan":"huge"}`,
	"PUT /v1/settings":              `{"default_plan_rate":0}`,
	"POST /v1/keys":                 `{"scopes":["read"]}`,
}

// matrixQueries are what a route's query must have.
var matrixQueries = map[string]string{
	"GET /v1/tenants/{tenant}/explain": "?seq=1",
	"GET /v1/tenants/{tenant}/usage":   "?meter=api.calls",
	"GET /v1/holds":                    "?tenant={tenant}",
	"GET /v1/holds/{hold}":             "?tenant={tenant}",
}

// matrixHeaders are what a route's request must have.
var matrixHeaders = map[string]map[string]string{"/v1/reversals": {idempotencyKeyHeader: "matrix"}}

// noHold is the id of no hold.
const noHold = "019c143a-1c00-7000-8000-000000000000"

// matrixPlans are plans that a tenant alone has, of those that the matrix is tried with.
var matrixPlans = map[string]string{"huge": "huge", "globex": "pro", "nobody": "nothing"}

// matrixParams fills the parameters of a pattern, all but {tenant}.
var matrixParams = strings.NewReplacer("{meter}", "api.calls", "{plan}", "pro", "{seq}", "1", "{version}", "1")

// openRoutes need no key: they name no tenant, and whoever watches an instance has none.
var openRoutes = []string{"GET /healthz", "GET /readyz", "GET /metrics", "GET /openapi.json"}

// A route cannot be added without saying who may call it: what its row says fits what its
// requests name, and the matrix below then tries it.
func TestEveryRouteSaysWhoMayCallIt(t *testing.T) {
	t.Parallel()
	for _, rt := range newService(t).handler.Routes() {
		name := rt.Method + " " + rt.Pattern
		body, query := matrixBodies[name], matrixQueries[name]
		changes := rt.Method != http.MethodGet
		for _, rule := range []struct {
			broken bool
			says   string
		}{
			{rt.Scope == "" && !slices.Contains(openRoutes, name), "has a scope, or is one of the few that need no key"},
			{rt.Scope != "" && !slices.Contains(catalog.KeyScopes(), rt.Scope), "has a scope that keys have"},
			{rt.Scope == "" && (rt.Tenancy != TenancyNone || changes), "without a key names no tenant and changes nothing"},
			{rt.Tenancy < TenancyNone || rt.Tenancy > TenancyUnbound, "has a tenancy"},
			{strings.Contains(rt.Pattern, "{tenant}") != (rt.Tenancy == TenancyPath), "with {tenant} in the path is TenancyPath"},
			{strings.Contains(query, "{tenant}") != (rt.Tenancy == TenancyQuery), "with the tenant in the query is TenancyQuery"},
			{strings.Contains(rt.Pattern, "{hold}") && !rt.namesTenant(), "about a hold names its tenant"},
			{strings.Contains(rt.Pattern, "{plan}") && rt.Tenancy != TenancyPlan && rt.Tenancy != TenancyUnbound, "about a plan is TenancyPlan"},
			{(rt.Tenancy == TenancyBody || rt.Tenancy == TenancyItems) != strings.Contains(body, "{tenant}"), "with the tenant in the body is TenancyBody or TenancyItems"},
			{changes && !rt.namesTenant() && rt.Tenancy != TenancyUnbound, "that changes what tenants share is TenancyUnbound"},
			{(rt.Method == http.MethodPut || rt.Method == http.MethodPost) && body == "", "that takes a body has one in matrixBodies"},
		} {
			if rule.broken {
				t.Errorf("%s breaks the rule that a route %s", name, rule.says)
			}
		}
	}
}

// No key ever sees or spends for a tenant that it is not for, on any route, whatever
// its scope: every route of the table against every kind of key.
func TestEveryRouteAgainstEveryKey(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	s.consume(`{"tenant":"globex","meter":"api.calls"}`).want(t, 200)
	revoked, revokedToken := s.newKey(catalog.KeySpec{Scopes: catalog.KeyScopes()})
	if _, err := s.store.RevokeKey(t.Context(), "test", revoked.ID); err != nil {
		t.Fatal(err)
	}
	for _, rt := range s.handler.Routes() {
		t.Run(rt.Method+" "+rt.Pattern, func(t *testing.T) {
			s := *s
			s.t = t
			for _, tenant := range []string{"huge", "globex", "nobody"} {
				s.checkKeys(rt, tenant, revokedToken)
			}
		})
	}
}

// checkKeys tries a route, as it is for one tenant, with every kind of key. Bound keys
// are bound to huge.
func (s *service) checkKeys(rt Route, tenant, revoked string) {
	const own = "huge"
	s.t.Helper()
	try := func(token string) answer {
		a := s.do(s.matrixRequest(rt, tenant, token))
		if rt.Tenancy == TenancyItems && a.status == http.StatusOK {
			return a.results(s.t)[0] // what the item would have got alone
		}
		return a
	}
	if rt.Scope == "" {
		for _, token := range []string{"", revoked, s.token(catalog.KeyRead, own)} {
			if a := try(token); a.status != http.StatusOK {
				s.t.Errorf("status with key %q = %d, want 200: the route needs none", token, a.status)
			}
		}
		return
	}
	for _, token := range []string{"", "x", "qk_live_000000000000_" + strings.Repeat("0", 33), revoked} {
		a := try(token).want(s.t, http.StatusUnauthorized, codeUnauthenticated)
		if got := a.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer ") {
			s.t.Errorf("WWW-Authenticate = %q, want Bearer", got)
		}
	}
	for _, scope := range catalog.KeyScopes() {
		allows := scope == rt.Scope || scope == catalog.KeyAdmin
		free := try(s.token(scope, ""))
		if allows {
			s.wantDone(rt, tenant, free)
		} else {
			free.want(s.t, http.StatusForbidden, codeInsufficientScope)
		}
		if scope == catalog.KeyAdmin {
			continue // is never bound
		}
		bound := try(s.token(scope, own))
		foreign := tenant != own && rt.namesTenant()
		switch {
		case !allows:
			bound.want(s.t, http.StatusForbidden, codeInsufficientScope)
		case foreign, rt.Tenancy == TenancyUnbound:
			// The same for a tenant that exists and for one that does not.
			bound.want(s.t, http.StatusForbidden, codeTenantForbidden)
		case tenant != own && rt.Tenancy == TenancyPlan:
			// The same for a plan that others have and for one that never was.
			bound.want(s.t, http.StatusNotFound, codeNotFound)
			never := s.do(s.matrixRequest(rt, "nobody", s.token(scope, ""))).problem(s.t)
			want := strings.ReplaceAll(never.Detail, matrixPlans["nobody"], matrixPlans[tenant])
			if got := bound.problem(s.t).Detail; got != want {
				s.t.Errorf("of another's plan a key bound to %s sees %q, want %q", own, got, want)
			}
		default:
			s.wantDone(rt, own, bound)
			for _, foreign := range []string{"globex", `"pro"`, "created_by"} {
				if strings.Contains(bound.body, foreign) {
					s.t.Errorf("a key bound to %s sees %s", own, bound.body)
				}
			}
		}
	}
}

// namesTenant reports whether a request of the route is about one tenant.
func (rt Route) namesTenant() bool {
	return rt.Tenancy == TenancyPath || rt.Tenancy == TenancyBody || rt.Tenancy == TenancyItems || rt.Tenancy == TenancyQuery
}

// wantDone checks that a request with a good key was carried out.
func (s *service) wantDone(rt Route, tenant string, a answer) {
	s.t.Helper()
	switch {
	case (rt.namesTenant() || rt.Tenancy == TenancyPlan) && tenant == "nobody" && rt.Method != http.MethodPut:
		a.want(s.t, http.StatusNotFound)
	case rt.Method == http.MethodPut, rt.Method == http.MethodPost && rt.Scope == catalog.KeyAdmin:
		if a.status != http.StatusOK && a.status != http.StatusCreated {
			s.t.Errorf("status = %d, want 200 or 201; body %s", a.status, a.body)
		}
	default:
		a.want(s.t, http.StatusOK)
	}
}

// matrixRequest is a valid request of a route for a tenant. A key to revoke is made
// anew each time.
func (s *service) matrixRequest(rt Route, tenant, token string) request {
	s.t.Helper()
	hold := ""
	if strings.Contains(rt.Pattern, "{hold}") {
		hold = s.matrixHold(tenant)
	}
	return s.matrixRequestOf(rt, tenant, token, hold)
}

// matrixRequestOf is matrixRequest about a given hold.
func (s *service) matrixRequestOf(rt Route, tenant, token, hold string) request {
	s.t.Helper()
	if rt.Method == http.MethodPut && tenant == "nobody" {
		tenant = "newcomer" // nobody stays unknown
	}
	path := rt.Pattern + matrixQueries[rt.Method+" "+rt.Pattern]
	if plan, own := matrixPlans[tenant]; own && rt.Tenancy == TenancyPlan {
		path = strings.ReplaceAll(path, "{plan}", plan)
	}
	path = strings.ReplaceAll(matrixParams.Replace(path), "{tenant}", tenant)
	if strings.Contains(path, "{key}") {
		key, _ := s.newKey(catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyRead}})
		path = strings.ReplaceAll(path, "{key}", key.ID)
	}
	path = strings.ReplaceAll(path, "{hold}", hold)
	body := strings.ReplaceAll(matrixBodies[rt.Method+" "+rt.Pattern], "{tenant}", tenant)
	return request{method: rt.Method, path: path, body: body, token: token, header: matrixHeaders[rt.Pattern]}
}

// matrixHold is an open hold of a tenant; of one that is unknown, a hold that never was.
func (s *service) matrixHold(tenant string) string {
	s.t.Helper()
	if tenant == "nobody" {
		return noHold
	}
	body := `{"tenant":"` + tenant + `","meter":"api.calls","cost":0}`
	a := s.do(request{method: http.MethodPost, path: "/v1/holds", body: body, token: s.token(catalog.KeyDecide, "")})
	return a.want(s.t, http.StatusOK).decision(s.t).Hold.ID.String()
}

// A key that is bound to a tenant goes on to see the plans that its tenant once had, page by
// page, whatever becomes of them.
func TestABoundKeySeesThePlansThatItsTenantHad(t *testing.T) {
	t.Parallel()
	s := newService(t)
	bound, free := s.token(catalog.KeyRead, "acme"), s.token(catalog.KeyRead, "")
	get := func(token, path string) answer { return s.do(request{method: "GET", path: path, token: token}) }
	for _, plan := range []string{"huge", "per-user"} {
		get(bound, "/v1/plans/"+plan).want(t, 404)
		s.admin("PUT", "/v1/tenants/acme", `{"plan":"`+plan+`"}`).want(t, 200)
		get(bound, "/v1/plans/"+plan).want(t, 200)
	}
	if diff := cmp.Diff([]string{"huge", "per-user", "pro"}, s.names("plans", "name", "/v1/plans?limit=1", bound)); diff != "" {
		t.Errorf("plans by acme's key (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"blocked", "huge", "per-user", "pro"}, s.names("plans", "name", "/v1/plans?limit=1", free)); diff != "" {
		t.Errorf("plans by a key of all tenants (-want +got):\n%s", diff)
	}
	s.db.Exec(t, "update quotad.plan set removed = true, catalog_version = 999 where plan = 'huge'")
	get(bound, "/v1/plans/huge").want(t, 404)
	const version = "/v1/plans/huge/versions/1"
	if a := get(bound, version).want(t, 200); strings.Contains(a.body, "created_by") {
		t.Errorf("acme's key sees %s, want nobody who made it", a.body)
	}
	if a := get(free, version).want(t, 200); !strings.Contains(a.body, `"created_by":"test"`) {
		t.Errorf("a key of all tenants sees %s, want who made it", a.body)
	}
	get(bound, "/v1/plans/blocked/versions").want(t, 404)
	get(bound, "/v1/plans/blocked/versions/1").want(t, 404)
}

// A key that an old database may hold, admin and bound, changes nothing that other
// tenants share.
func TestBoundAdminKeyChangesItsOwnTenantAlone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	key, token := s.newKey(catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyAdmin}})
	s.db.Exec(t, "update quotad.api_key set tenant = 'acme' where key_id = $1", key.ID)
	for _, rt := range s.handler.Routes() {
		if rt.Scope == "" || rt.Method == http.MethodGet && rt.Tenancy == TenancyNone {
			continue
		}
		if rt.Tenancy == TenancyPlan {
			s.do(s.matrixRequest(rt, "huge", token)).want(t, http.StatusNotFound, codeNotFound)
			continue
		}
		a := s.do(s.matrixRequest(rt, "globex", token))
		if rt.Tenancy == TenancyItems {
			a = a.results(t)[0]
		}
		if rt.Tenancy == TenancyList {
			if strings.Contains(a.body, "globex") {
				t.Errorf("%s %s shows %s", rt.Method, rt.Pattern, a.body)
			}
			continue
		}
		a.want(t, http.StatusForbidden, codeTenantForbidden)
	}
	s.do(request{method: "PUT", path: "/v1/tenants/acme", body: `{"plan":"pro"}`, token: token}).want(t, 200)
}
