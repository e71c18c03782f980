package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

func enforced(name string, limit, remaining, resetMS, windowMicros int64) quota.LimitResult {
	return quota.LimitResult{
		Name: name, Meter: "api.calls", Algorithm: catalog.SlidingLog, Scope: catalog.ScopeTenant,
		Mode: catalog.ModeEnforce, Limit: limit, Used: limit - remaining, Remaining: remaining,
		ResetMS: resetMS, WindowMicros: windowMicros,
	}
}

func TestRateLimitFields(t *testing.T) {
	const hour = int64(time.Hour / time.Microsecond)
	hourly := enforced("hourly", 1000, 42, 16_001, hour)
	burst := enforced("burst", 10, 9, 500, 500_000)
	shadow := enforced("shadow", 5, 0, 1000, hour)
	shadow.Mode = catalog.ModeShadow
	unlimited := enforced("unlimited", 0, 0, 0, hour)
	unlimited.Unlimited = true
	blocked := enforced("blocked", 0, 0, 0, 0)
	blocked.NeverResets = true
	empty := enforced("empty", 10, 0, 1500, hour)
	denied := hourly
	denied.Violated = true

	tests := []struct {
		name   string
		limits []quota.LimitResult
		noX    bool
		want   http.Header
	}{
		{"none can deny", []quota.LimitResult{shadow, unlimited}, false, http.Header{}},
		{"in the plan's order", []quota.LimitResult{hourly, shadow, unlimited, burst}, false, http.Header{
			"RateLimit-Policy":      {`"hourly";q=1000;w=3600, "burst";q=10;w=1`},
			"RateLimit":             {`"hourly";r=42;t=17, "burst";r=9;t=1`},
			"X-RateLimit-Limit":     {"10"},
			"X-RateLimit-Remaining": {"9"},
			"X-RateLimit-Reset":     {"1"},
		}},
		{"what denied is the tightest", []quota.LimitResult{burst, denied}, false, http.Header{
			"RateLimit-Policy":      {`"burst";q=10;w=1, "hourly";q=1000;w=3600`},
			"RateLimit":             {`"burst";r=9;t=1, "hourly";r=42;t=17`},
			"X-RateLimit-Limit":     {"1000"},
			"X-RateLimit-Remaining": {"42"},
			"X-RateLimit-Reset":     {"17"},
		}},
		{"no window, no X", []quota.LimitResult{blocked}, true, http.Header{
			"RateLimit-Policy": {`"blocked";q=0`},
			"RateLimit":        {`"blocked";r=0`},
		}},
		{"what never comes back is the tightest", []quota.LimitResult{empty, blocked}, false, http.Header{
			"RateLimit-Policy":      {`"empty";q=10;w=3600, "blocked";q=0`},
			"RateLimit":             {`"empty";r=0;t=2, "blocked";r=0`},
			"X-RateLimit-Limit":     {"0"},
			"X-RateLimit-Remaining": {"0"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := http.Header{}
			headers := Headers{}
			if tt.noX {
				headers.XRateLimit = XRateLimitOff
			}
			headers.setRateLimit(got, nil, &quota.Decision{Limits: tt.limits})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("setRateLimit, want-, got+:\n%s", diff)
			}
		})
	}
}

// A plan of many limits must not make headers that a proxy refuses, nor hide the
// limit that denied.
func TestRateLimitFieldsAreBounded(t *testing.T) {
	var limits []quota.LimitResult
	for i := range 64 {
		limits = append(limits, enforced(fmt.Sprintf("limit-%02d", i), 1000, int64(1000-i), 0, 1_000_000))
	}
	limits[3].Violated = true
	header := map[string][]string{} // not canonical, as the draft spells them
	Headers{}.setRateLimit(header, nil, &quota.Decision{Limits: limits})
	members := strings.Split(header[headerRateLimit][0], ", ")
	if len(members) != rateLimitMembersMax {
		t.Errorf("RateLimit has %d members, want %d", len(members), rateLimitMembersMax)
	}
	if want := `"limit-03";r=997;t=0`; members[0] != want {
		t.Errorf("first member is %s, want the violated limit %s", members[0], want)
	}
	if want := `"limit-63";r=937;t=0`; members[len(members)-1] != want {
		t.Errorf("last member is %s, want %s", members[len(members)-1], want)
	}
	if got := len(header[headerRateLimitPolicy][0]); got > 1024 {
		t.Errorf("RateLimit-Policy is %d bytes long", got)
	}
}

func TestRetryAfterIsWholeSecondsRoundedUp(t *testing.T) {
	for ms, want := range map[int64]int64{0: 1, 1: 1, 999: 1, 1000: 1, 1001: 2, 3_600_000: 3600, 3_600_001: 3601} {
		if got := retryAfterSeconds(ms); got != want {
			t.Errorf("retryAfterSeconds(%d) = %d, want %d", ms, got, want)
		}
	}
	for wait, want := range map[time.Duration]string{1: "1", time.Second: "1", time.Second + 1: "2"} {
		if got := string(appendSeconds(nil, wait)); got != want {
			t.Errorf("appendSeconds(%v) = %s, want %s", wait, got, want)
		}
	}
}
