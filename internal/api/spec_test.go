package api

import (
	"testing"

	"github.com/quotad/quotad/internal/quota"
)

// Who is told to leave a field out must be able to.
func TestNullIsAdvisedAgainstByWhatTheFieldIs(t *testing.T) {
	const required, optional = "must not be null", "must not be null: leave it out"
	for _, tt := range []struct {
		into        any
		body, field string
		rule        string
	}{
		{new(meterBody), `{"unit":null}`, "unit", required},
		{new(meterBody), `{"unit":"u","name":null}`, "name", optional},
		{new(meterBody), `{"unit":"u","weights":null}`, "weights", optional},
		{new(meterBody), `{"unit":"u","weights":{"input":null}}`, "weights.input", optional},
		{new(planBody), `{"limits":null}`, "limits", required},
		{new(planBody), `{"limits":[null]}`, "limits[0]", required},
		{new(planBody), `{"limits":[{"name":null}]}`, "limits[0].name", required},
		{new(planBody), `{"limits":[{"meter":null}]}`, "limits[0].meter", required},
		{new(planBody), `{"limits":[{"algorithm":null}]}`, "limits[0].algorithm", required},
		{new(planBody), `{"limits":[{"window":null}]}`, "limits[0].window", optional},
		{new(tenantBody), `{"plan":null}`, "plan", required},
		{new(tenantBody), `{"plan":"p","timezone":null}`, "timezone", optional},
		{new(keyRequest), `{"scopes":null}`, "scopes", required},
		{new(keyRequest), `{"scopes":[null]}`, "scopes[0]", required},
		{new(keyRequest), `{"scopes":["read"],"tenant":null}`, "tenant", optional},
	} {
		c := &call{}
		c.in.text.WriteString(tt.body)
		got := faultsIn(decodeSpec(c, tt.into))
		if want := (quota.Fault{Field: tt.field, Rule: tt.rule}); len(got) != 1 || got[0] != want {
			t.Errorf("faults of %s = %v, want %v", tt.body, got, want)
		}
	}
}
