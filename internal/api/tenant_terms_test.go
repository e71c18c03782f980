package api

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// What GET shows of a tenant can be put again, and changes nothing, also after a switch has
// come; answers name the override that a limit has its numbers by.
func TestTermsOfATenantArePutAndRead(t *testing.T) {
	t.Parallel()
	s := newService(t) // at noon of 31 January
	until := "2026-03-01T00:00:00Z"
	put := s.admin("PUT", "/v1/tenants/acme", `{"plan": "huge", "plan_from": "next_period", "overrides": [
		{"name": "hourly", "limit": 5000, "until": "`+until+`", "reason": "launch week"}]}`).want(t, 200)
	if !strings.Contains(put.body, `"before":{"plan":"pro","timezone"`) || !strings.Contains(put.body, `"reason":"launch week"`) {
		t.Errorf("PUT = %s", put.body)
	}
	type shown struct {
		Plan       string           `json:"plan"`
		NextPlan   string           `json:"next_plan"`
		NextPlanAt string           `json:"next_plan_at"`
		Overrides  []map[string]any `json:"overrides"`
	}
	again := func() (tenant shown) {
		t.Helper()
		get := s.get("read", "/v1/tenants/acme").want(t, 200)
		if err := json.Unmarshal([]byte(get.body), &tenant); err != nil {
			t.Fatal(err)
		}
		if put := s.admin("PUT", "/v1/tenants/acme", get.body).want(t, 200); !strings.Contains(put.body, `"outcome":"unchanged"`) {
			t.Errorf("PUT of %s = %s", get.body, put.body)
		}
		return tenant
	}
	tenant := again()
	if tenant.Plan != "pro" || tenant.NextPlan != "huge" || tenant.NextPlanAt != "2026-02-01T00:00:00Z" || len(tenant.Overrides) != 1 {
		t.Errorf("GET = %+v", tenant)
	}
	allowed := s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200).body
	for _, body := range []string{allowed, s.get("read", "/v1/tenants/acme/limits").want(t, 200).body} {
		if !strings.Contains(body, `"limit":5000`) || !strings.Contains(body, `"override":{"until":"`+until+`","reason":"launch week"}`) {
			t.Errorf("%s does not say that the limit is overridden", body)
		}
	}
	s.db.SetClock(t, time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC))
	if tenant := again(); tenant.Plan != "huge" || tenant.NextPlan != "" || tenant.NextPlanAt != "" {
		t.Errorf("then GET = %+v", tenant)
	}
	if limits := s.get("read", "/v1/tenants/acme/limits").want(t, 200).body; !strings.Contains(limits, `"plan":"huge"`) {
		t.Errorf("then limits = %s", limits)
	}
	bad := s.admin("PUT", "/v1/tenants/acme", `{"plan": "huge", "overrides": [{"name": "none", "limit": 1, "until": "2027-01-01T00:00:00Z", "reason": "r"}]}`).want(t, 400)
	if !strings.Contains(bad.body, `"field":"overrides[0]"`) {
		t.Errorf("a wrong override is told as %s", bad.body)
	}
}
