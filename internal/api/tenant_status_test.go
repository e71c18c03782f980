package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// A tenant that is suspended or closed spends nothing and can be read as before; its
// very next call passes once it is active again, with usage kept.
func TestSuspendedAndClosedTenantsSpendNothingAndAreRead(t *testing.T) {
	t.Parallel()
	s := newService(t)
	const call = `{"tenant":"acme","meter":"api.calls"}`
	status := func(status string) answer {
		return s.admin("PUT", "/v1/tenants/acme", fmt.Sprintf(`{"plan":"pro","status":%q}`, status)).want(t, 200)
	}
	s.consume(call).want(t, 200)
	for i, word := range []string{"suspended", "closed"} {
		status(word)
		before := s.rows()
		for range 3 {
			a := s.consume(call, "Idempotency-Key", "k"+word).want(t, 429)
			if d := a.decision(t); d.Reason != "tenant_suspended" || a.header.Get("Retry-After") != "" || d.RetryMS != nil {
				t.Errorf("%s: %s with Retry-After %q, want tenant_suspended without", word, a.body, a.header.Get("Retry-After"))
			}
		}
		if diff := cmp.Diff(before, s.rows()); diff != "" {
			t.Errorf("%s: a denied call wrote (-before +after):\n%s", word, diff)
		}
		for _, path := range []string{"", "/limits", "/entries", "/entries/1", "/denials", "/denials/counts", "/explain?seq=1"} {
			s.read(catalog.KeyAudit, "/v1/tenants/acme"+path)
			s.do(request{method: "GET", path: "/v1/tenants/acme" + path, token: s.token(catalog.KeyAdmin, "")}).want(t, 200)
		}
		status("active")
		d := s.consume(call, "Idempotency-Key", "k"+word).want(t, 200).decision(t)
		if d.Limits[0].Used != int64(i+2) {
			t.Errorf("%d used after %s, want %d: usage is kept", d.Limits[0].Used, word, i+2)
		}
	}
}

// Nobody who reads a suspended tenant's denials is sent to raise a limit.
func TestASuspensionIsBlamedOnNoLimit(t *testing.T) {
	t.Parallel()
	s := newService(t)
	denied := s.consume(`{"tenant":"suspended","meter":"api.calls","cost":11}`).want(t, 429)
	if !strings.Contains(denied.body, `"violated-policies":[]`) || strings.Contains(denied.body, `"violated":true`) {
		t.Errorf("%s blames a limit", denied.body)
	}
	id := denied.decision(t).RequestID.String()
	const of = "/v1/tenants/suspended/"
	if got := s.get(catalog.KeyAudit, of+"explain?request_id="+id).want(t, 200).body; !strings.Contains(got, `"text":"Denied (tenant_suspended)."`) ||
		!strings.Contains(got, `"consistent":true`) {
		t.Errorf("explained as %s, want the suspension alone", got)
	}
	if got := s.get(catalog.KeyAudit, of+"denials").want(t, 200).body; !strings.Contains(got, `"limit_names":[]`) {
		t.Errorf("denials = %s, want one that names no limit", got)
	}
	for query, want := range map[string]bool{"": true, "?limit_name=burst": false, "?limit_name=hourly": false} {
		got := s.get(catalog.KeyAudit, of+"denials/counts"+query).want(t, 200).body
		if strings.Contains(got, "tenant_suspended") != want {
			t.Errorf("counts%s = %s; want the denial in them: %t", query, got, want)
		}
	}
}

// A closed tenant opens only by a change that says so.
func TestAClosedTenantStaysClosedUnlessItIsSaid(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.admin("PUT", "/v1/tenants/acme", `{"plan":"pro","status":"closed"}`).want(t, 200)
	a := s.admin("PUT", "/v1/tenants/acme", `{"plan":"huge","timezone":"Asia/Jakarta"}`).want(t, 200)
	s.apply("tenants: {acme: {plan: pro}}")
	if got := s.read(catalog.KeyRead, "/v1/tenants/acme").body; !strings.Contains(got, `"status":"closed"`) {
		t.Errorf("acme = %s after %s, want it closed", got, a.body)
	}
	s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 429)
	s.admin("PUT", "/v1/tenants/acme", `{"plan":"pro","status":"active"}`).want(t, 200)
	s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200)
}

// An unknown tenant comes into being with its first consume under the default plan, by
// nothing else, and not beyond the rate.
func TestDefaultPlanOverHTTP(t *testing.T) {
	t.Parallel()
	s := newService(t)
	call := func(tenant string) string { return fmt.Sprintf(`{"tenant":%q,"meter":"api.calls"}`, tenant) }
	s.consume(call("new")).want(t, 404, codeTenantNotFound)
	s.admin("PUT", "/v1/settings", `{"default_plan":"nope"}`).wantFault(t, "default_plan", "must name a plan")
	s.admin("PUT", "/v1/settings", `{"default_plan_rate":60001}`).wantFault(t, "default_plan_rate", "whole number")
	s.admin("PUT", "/v1/settings", `{"default_plan":null}`).wantFault(t, "default_plan", "null")
	s.admin("PUT", "/v1/settings", `{"default_plan":"blocked","default_plan_rate":3}`).want(t, 200)

	for _, path := range []string{"", "/limits", "/entries", "/denials", "/explain?seq=1"} {
		s.do(request{method: "GET", path: "/v1/tenants/new" + path, token: s.token(catalog.KeyAdmin, "")}).want(t, 404)
	}
	s.consume(`{"tenant":"new","meter":"api.calls","dry_run":true}`).want(t, 404, codeTenantNotFound)
	bound := s.token(catalog.KeyDecide, "acme")
	s.do(request{method: "POST", path: "/v1/consume", body: call("new"), token: bound}).want(t, 403, codeTenantForbidden)
	s.read(catalog.KeyRead, "/v1/tenants/new").want(t, 404)

	s.consume(`{"tenant":"new","meter":"nope"}`).want(t, 400, "meter_not_found")
	s.read(catalog.KeyRead, "/v1/tenants/new").want(t, 404)

	// A denial makes the tenant, too: it was its first consume.
	s.consume(call("new")).want(t, 429)
	s.admin("PUT", "/v1/tenants/new", `{"plan":"huge","status":"closed"}`).want(t, 200)
	if d := s.consume(call("new")).want(t, 429).decision(t); d.Reason != "tenant_suspended" {
		t.Errorf("reason = %s, want tenant_suspended", d.Reason)
	}
	batch := s.do(request{
		method: "POST", path: "/v1/consume/batch", token: s.token(catalog.KeyDecide, ""),
		body: `{"items":[` + call("b1") + `,` + call("acme") + `,` + call("b2") + `,` + call("b3") + `]}`,
	}).want(t, 200).results(t)
	refused := 0
	for i, status := range []int{429, 200, 429, 429} {
		if a := batch[i]; a.status == 503 {
			refused++
			a.want(t, 503, codeTenantsLimited)
		} else {
			a.want(t, status)
		}
	}
	if refused != 1 {
		t.Errorf("%d of three items found the minute's rate used up, want 1 of 3 after the one before", refused)
	}
	a := s.consume(call("late")).want(t, 503, codeTenantsLimited)
	if got := a.header.Get("Retry-After"); got != "60" { // the clock stands at a whole minute
		t.Errorf("Retry-After = %q, want 60", got)
	}
	if p := a.problem(t); p.RetryMS != 60_000 {
		t.Errorf("retry_after_ms = %d, want 60000", p.RetryMS)
	}
	s.consume(call("acme")).want(t, 200)
	s.db.AdvanceClock(t, 60_000_000_000)
	s.consume(call("late")).want(t, 429)
	s.admin("PUT", "/v1/settings", `{}`).want(t, 200)
	s.consume(call("later")).want(t, 404, codeTenantNotFound)
}
