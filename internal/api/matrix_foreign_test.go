package api

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// A likeness is an answer with all left out that may differ between two that tell a
// caller the same.
type likeness struct {
	Status int
	Header http.Header
	Body   string
}

func (a answer) likeness(names ...string) likeness {
	header := a.header.Clone()
	for _, name := range []string{"Date", "Content-Length"} {
		header.Del(name)
	}
	body := uuidPattern.ReplaceAllString(a.body, "<uuid>")
	for _, name := range names {
		body = strings.ReplaceAll(body, name, "<name>")
	}
	return likeness{a.status, header, body}
}

// wantAlike checks that two answers tell nothing apart but the names that were sent.
func wantAlike(t *testing.T, what string, there, never answer, names ...string) {
	t.Helper()
	if diff := cmp.Diff(never.likeness(names...), there.likeness(names...)); diff != "" {
		t.Errorf("%s: what is another's differs from what never was (-never +another's):\n%s", what, diff)
	}
}

// What is another tenant's looks as if it never was, on every route: nobody finds out who
// the other customers are by asking.
func TestAnotherTenantLooksAsIfItNeverWas(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, tenant := range []string{"huge", "globex", "suspended"} {
		s.consume(`{"tenant":"` + tenant + `","meter":"api.calls"}`)
	}
	theirs := s.matrixHold("globex")
	for _, rt := range s.handler.Routes() {
		if !rt.namesTenant() && rt.Tenancy != TenancyPlan {
			continue
		}
		token := s.token(rt.boundScope(), "huge")
		ask := func(tenant string) answer {
			hold := noHold
			if tenant == "globex" {
				hold = theirs
			}
			return s.do(s.matrixRequestOf(rt, tenant, token, hold))
		}
		names := []string{"newcomer"}
		for name, plan := range matrixPlans {
			names = append(names, name, plan)
		}
		never := ask("nobody")
		others := []string{"globex", "suspended"}
		if rt.Tenancy == TenancyPlan {
			others = others[:1] // both have the same one
		}
		for _, other := range others {
			wantAlike(t, rt.Method+" "+rt.Pattern, ask(other), never, append(names, other)...)
		}
	}
}

// boundScope is one with which a bound key comes as far as it can on the route.
func (rt Route) boundScope() catalog.KeyScope {
	if rt.Scope == catalog.KeyAdmin {
		return catalog.KeyDecide
	}
	return rt.Scope
}

// Ids of another tenant's things, sent where one's own tenant is named, are those of
// nothing: holds, requests and places of lists are looked for in the tenant alone.
func TestIDsOfAnotherTenantAreThoseOfNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const own, other = "huge", "globex"
	s.consume(`{"tenant":"`+own+`","meter":"api.calls"}`).want(t, 200)
	theirs := s.consume(`{"tenant":"`+other+`","meter":"api.calls"}`, "Idempotency-Key", "k").want(t, 200).decision(t)
	denied := s.consume(`{"tenant":"`+other+`","meter":"api.calls","cost":99}`).want(t, 429).decision(t)
	hold := s.matrixHold(other)
	for _, tt := range []struct {
		scope        catalog.KeyScope
		method, path string // %s is the id
		body         string
		foreign      string
	}{
		{catalog.KeyRead, "GET", "/v1/holds/%s?tenant=" + own, "", hold},
		{catalog.KeyDecide, "POST", "/v1/holds/%s/settle", `{"tenant":"` + own + `","cost":1}`, hold},
		{catalog.KeyDecide, "POST", "/v1/holds/%s/release", `{"tenant":"` + own + `"}`, hold},
		{catalog.KeyDecide, "POST", "/v1/holds/%s/extend", `{"tenant":"` + own + `"}`, hold},
		{catalog.KeyAudit, "GET", "/v1/tenants/" + own + "/explain?request_id=%s", "", theirs.RequestID.String()},
		{catalog.KeyAudit, "GET", "/v1/tenants/" + own + "/explain?request_id=%s", "", denied.RequestID.String()},
		{catalog.KeyAudit, "GET", "/v1/tenants/" + own + "/entries?request_id=%s", "", theirs.RequestID.String()},
		{catalog.KeyRead, "GET", "/v1/tenants?prefix=%s", "", other},
		{catalog.KeyRead, "GET", "/v1/tenants?plan=%s", "", "pro"},
		{catalog.KeyAudit, "GET", "/v1/changes?name=%s", "", other},
		{catalog.KeyAudit, "GET", "/v1/changes?object=plan&name=%s", "", "pro"},
	} {
		ask := func(id string) answer {
			return s.do(request{method: tt.method, path: fmt.Sprintf(tt.path, id), body: tt.body, token: s.token(tt.scope, own)})
		}
		never := noHold
		if !uuidPattern.MatchString(tt.foreign) {
			never = "never-was"
		}
		wantAlike(t, tt.method+" "+tt.path, ask(tt.foreign), ask(never), tt.foreign, never)
	}
	for path, costs := range map[string]string{"/settle": `,"cost":0`, "/release": "", "/extend": ""} { // the hold is as it was
		s.do(request{
			method: "POST", path: "/v1/holds/" + hold + path, body: `{"tenant":"` + other + `","dry_run":true` + costs + `}`,
			token: s.token(catalog.KeyDecide, other),
		}).want(t, 200)
	}
}

// One idempotency key sent for two tenants is two keys: neither replays, blocks or learns
// of the other's, in one call or within a batch.
func TestIdempotencyKeysOfTwoTenantsAreTwo(t *testing.T) {
	t.Parallel()
	s := newService(t)
	use := func(tenant string, cost int) quota.Decision {
		a := s.do(request{
			method: "POST", path: "/v1/consume", token: s.token(catalog.KeyDecide, tenant),
			body: fmt.Sprintf(`{"tenant":%q,"meter":"api.calls","cost":%d}`, tenant, cost), header: pairs([]string{"Idempotency-Key", "shared"}),
		})
		if a.header.Get("Idempotency-Replayed") != "" && cost != 1 {
			t.Errorf("%s was answered with another's answer %s", tenant, a.body)
		}
		return a.want(t, 200).decision(t)
	}
	first := use("globex", 2)
	if d := use("huge", 3); d.Tenant != "huge" || d.Charges[0].Cost != 3 || d.RequestID == first.RequestID {
		t.Errorf("huge's call = %+v, want one of its own", d)
	}
	const items = `{"items":[` +
		`{"tenant":"acme","meter":"api.calls","cost":1,"idempotency_key":"b"},` +
		`{"tenant":"huge","meter":"api.calls","cost":2,"idempotency_key":"b"}]}`
	for range 2 {
		results := s.do(request{method: "POST", path: "/v1/consume/batch", body: items, token: s.token(catalog.KeyDecide, "")}).results(t)
		for i, tenant := range []string{"acme", "huge"} {
			if d := results[i].want(t, 200).decision(t); d.Tenant != tenant || d.Charges[0].Cost != int64(i+1) {
				t.Errorf("item %d = %+v, want %s's", i, d, tenant)
			}
		}
	}
	results := s.do(request{method: "POST", path: "/v1/consume/batch", body: items, token: s.token(catalog.KeyDecide, "acme")}).results(t)
	results[0].want(t, 200)
	results[1].want(t, 403, codeTenantForbidden) // though the key has an answer
}

// A cursor of another tenant's list is refused as garbage is, and one of one's own list
// with the other's place in it shows one's own rows.
func TestCursorsOfAnotherTenantOpenNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.fillLists()
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	const garbage = "AAAA"
	for _, rt := range s.handler.Routes() {
		path, paged := pagedPaths[rt.Method+" "+rt.Pattern]
		if !paged || rt.Tenancy == TenancyUnbound || rt.Tenancy == TenancyNone || rt.Tenancy == TenancyPlan {
			continue // of no tenant, or refused whatever the cursor is
		}
		token := s.token(rt.Scope, "huge")
		own := strings.ReplaceAll(path, "users", "huge")
		ask := func(cursor string) answer {
			return s.do(request{method: "GET", path: own + "&cursor=" + cursor, token: token})
		}
		foreign := s.nextCursor(path)
		wantAlike(t, rt.Pattern, ask(foreign), ask(garbage))
		ask(garbage).wantFault(t, "cursor", cursorRule)

		var page struct {
			Next string `json:"next_cursor"`
		}
		a := s.do(request{method: "GET", path: own, token: token}).want(t, 200)
		if err := json.Unmarshal([]byte(a.body), &page); err != nil {
			t.Fatal(err)
		}
		if page.Next == "" {
			continue // a bound key's list of tenants is of one
		}
		b := s.do(request{method: "GET", path: own + "&cursor=" + graft(t, page.Next, foreign), token: token})
		if b.status != 400 && (b.status != 200 || strings.Contains(b.body, "users")) {
			t.Errorf("%s with another's place = %d %s", own, b.status, b.body)
		}
	}
}

// graft puts the place of one cursor into another.
func graft(t *testing.T, into, place string) string {
	t.Helper()
	const head = 1 + cursorDigestBytes
	var raw [2][]byte
	for i, cursor := range []string{into, place} {
		var err error
		if raw[i], err = base64.RawURLEncoding.DecodeString(cursor); err != nil {
			t.Fatal(err)
		}
	}
	return base64.RawURLEncoding.EncodeToString(append(raw[0][:head:head], raw[1][head:]...))
}

// A key of a tenant that is suspended or closed sees what it saw and spends nothing; what
// it had set aside it may still end or keep. Every route of its tenant is in the table.
func TestEveryRouteForASuspendedTenant(t *testing.T) {
	t.Parallel()
	s := newService(t)
	spends := map[string]int{
		"POST /v1/consume": 429, "POST /v1/consume/batch": 429, "POST /v1/holds": 429, "POST /v1/holds/batch": 429,
		"POST /v1/holds/{hold}/settle": 200, "POST /v1/holds/{hold}/release": 200, "POST /v1/holds/{hold}/extend": 200,
	}
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	hold := s.matrixHold("huge")
	for _, status := range []catalog.Status{catalog.StatusSuspended, catalog.StatusClosed} {
		s.admin("PUT", "/v1/tenants/huge", fmt.Sprintf(`{"plan":"huge","status":%q}`, status)).want(t, 200)
		for _, rt := range s.handler.Routes() {
			if !rt.namesTenant() || rt.Scope == catalog.KeyAdmin {
				continue
			}
			want, decides := spends[rt.Method+" "+rt.Pattern]
			switch {
			case !decides && rt.Method == http.MethodGet:
				want = 200
			case !decides:
				t.Errorf("nobody has said what %s %s does for a suspended tenant", rt.Method, rt.Pattern)
			}
			r := s.matrixRequestOf(rt, "huge", s.token(rt.Scope, "huge"), hold)
			a := s.do(r)
			if rt.Tenancy == TenancyItems {
				a = a.results(t)[0]
			}
			if a.status != want {
				t.Errorf("%s %s for a %s tenant = %d %s, want %d", rt.Method, rt.Pattern, status, a.status, a.body, want)
			}
		}
	}
}
