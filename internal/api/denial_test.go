package api

import (
	"testing"

	"github.com/quotad/quotad/internal/quota"
)

// The sentence is read by the customer who was just denied: it names the limit, what
// is used, what was asked for and when to come back, or says that waiting is no use.
func TestDenialDetailSaysWhichLimitAndWhen(t *testing.T) {
	ms := func(v int64) *int64 { return &v }
	violated := func(name string, limit, used, held int64, retry *int64) quota.LimitResult {
		l := enforced(name, limit, max(0, limit-used-held), 0, 0)
		l.Used, l.Held, l.Violated, l.RetryMS = used, held, true, retry
		return l
	}
	charge := []quota.ChargeResult{{Meter: "api.calls", Cost: 5}}
	tests := []struct {
		name string
		d    quota.Decision
		want string
	}{
		{
			"one limit",
			quota.Decision{
				Reason: quota.ReasonQuotaExceeded, Charges: charge, RetryMS: ms(122_001),
				Limits: []quota.LimitResult{enforced("other", 10, 10, 0, 0), violated("hourly", 1000, 998, 0, ms(122_001))},
			},
			`Limit "hourly" on api.calls is 1000: 998 are used, and this request asks for 5 more. Try again in 2m3s.`,
		},
		{
			"the one that takes longest, with holds",
			quota.Decision{
				Reason: quota.ReasonQuotaExceeded, Charges: charge, RetryMS: ms(5000),
				Limits: []quota.LimitResult{violated("burst", 5, 1, 0, ms(10)), violated("daily", 10, 1, 8, ms(5000))},
			},
			`Limit "daily" on api.calls is 10: 1 is used and 8 held, and this request asks for 5 more. Try again in 5s.`,
		},
		{
			"blocked",
			quota.Decision{Reason: quota.ReasonBlocked, Charges: charge, Limits: []quota.LimitResult{violated("off", 0, 0, 0, nil)}},
			`Limit "off" on api.calls admits nothing: its limit or its rate is 0.`,
		},
		{
			"too large for ever",
			quota.Decision{
				Reason: quota.ReasonCostExceedsLimit, Charges: charge,
				Limits: []quota.LimitResult{violated("slow", 9, 9, 0, ms(10)), violated("burst", 4, 0, 0, nil)},
			},
			`Limit "burst" on api.calls is 4, so a request for 5 can never fit.`,
		},
		{
			"meter not in the plan",
			quota.Decision{Reason: quota.ReasonMeterNotInPlan, Charges: charge},
			`The tenant's plan has no limit on api.calls, so nothing of it may be used.`,
		},
		{
			"suspended",
			quota.Decision{Reason: quota.ReasonTenantSuspended, Tenant: "acme", Charges: charge},
			`Tenant "acme" is suspended or closed and may use nothing.`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := denialDetail(&tt.d); got != tt.want {
				t.Errorf("denialDetail = %s\nwant           %s", got, tt.want)
			}
		})
	}
}
