package api

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/quota"
)

// What a parser of structured fields reads is what the decision says, whatever it says.
func TestRateLimitFieldsParseBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, rateLimitMembersMax).Draw(t, "limits")
		d := quota.Decision{ClockAt: time.UnixMicro(1767225600123456)}
		for i := range count {
			limit := rapid.Int64Range(0, 999_999_999_999_999).Draw(t, "limit")
			l := enforced("l"+strconv.Itoa(i), limit, rapid.Int64Range(0, limit).Draw(t, "remaining"),
				rapid.Int64Range(0, 1<<40).Draw(t, "reset"), rapid.Int64Range(0, 1<<50).Draw(t, "window"))
			l.NeverResets = rapid.Bool().Draw(t, "never resets")
			d.Limits = append(d.Limits, l)
		}
		header := map[string][]string{} // not canonical, as the draft spells them
		Headers{}.setRateLimit(header, nil, &d)
		policies, err := httpsfv.UnmarshalList(header[headerRateLimitPolicy])
		if err != nil {
			t.Fatal(err)
		}
		states, err := httpsfv.UnmarshalList(header[headerRateLimit])
		if err != nil {
			t.Fatal(err)
		}
		for i := range d.Limits {
			checkMember(t, &d.Limits[i], policies[i].(httpsfv.Item), states[i].(httpsfv.Item))
		}
	})
}

func checkMember(t *rapid.T, l *quota.LimitResult, policy, state httpsfv.Item) {
	if policy.Value != l.Name || state.Value != l.Name {
		t.Fatalf("members are of %v and %v, want %s", policy.Value, state.Value, l.Name)
	}
	param := func(item httpsfv.Item, name string) int64 {
		value, ok := item.Params.Get(name)
		if !ok {
			return -1
		}
		return value.(int64)
	}
	window, reset := int64(-1), int64(-1)
	if l.WindowMicros > 0 {
		window = (l.WindowMicros + 999_999) / 1_000_000
	}
	if !l.NeverResets {
		reset = (l.ResetMS + 999) / 1000
	}
	got := []int64{param(policy, "q"), param(policy, "w"), param(state, "r"), param(state, "t")}
	if diff := cmp.Diff([]int64{l.Limit, window, l.Remaining, reset}, got); diff != "" {
		t.Fatalf("q, w, r, t of %+v, want-, got+:\n%s", l, diff)
	}
}

// dialects of one decision that is denied by a limit of tokens.
func TestDialectsSayTheSameDecision(t *testing.T) {
	t.Parallel()
	tokens := enforced("tpm", 60_000, 120, 61_001, 60_000_000)
	tokens.Unit, tokens.Violated = "token", true
	calls := enforced("hourly", 1000, 42, 16_001, 3_600_000_000)
	calls.Unit = "call"
	never := enforced("never", 10, 0, 0, 0)
	never.Unit, never.NeverResets = "call", true
	retry := int64(61_001)
	d := quota.Decision{
		Limits: []quota.LimitResult{calls, tokens}, RetryMS: &retry, ClockAt: time.UnixMicro(1767225600_000001),
	}
	for _, tt := range []struct {
		name    string
		headers Headers
		limits  []quota.LimitResult
		want    map[string]string
	}{
		{"delta", Headers{}, d.Limits, map[string]string{
			"X-RateLimit-Limit": "60000", "X-RateLimit-Remaining": "120", "X-RateLimit-Reset": "62",
		}},
		{"epoch rounds up", Headers{XRateLimit: XRateLimitEpoch}, d.Limits, map[string]string{
			"X-RateLimit-Limit": "60000", "X-RateLimit-Remaining": "120", "X-RateLimit-Reset": "1767225662",
		}},
		{"off", Headers{XRateLimit: XRateLimitOff}, d.Limits, map[string]string{}},
		{"draft 7", Headers{RateLimit: RateLimitDraft7, XRateLimit: XRateLimitOff}, d.Limits, map[string]string{
			"RateLimit": "limit=60000, remaining=120, reset=62", "RateLimit-Policy": "1000;w=3600, 60000;w=60",
		}},
		{"none", Headers{RateLimit: RateLimitOff, XRateLimit: XRateLimitOff}, d.Limits, map[string]string{}},
		{"no reset", Headers{XRateLimit: XRateLimitEpoch}, []quota.LimitResult{never}, map[string]string{
			"X-RateLimit-Limit": "10", "X-RateLimit-Remaining": "0",
		}},
		{"OpenAI", Headers{XRateLimit: XRateLimitOff, OpenAI: true}, d.Limits, map[string]string{
			"x-ratelimit-limit-requests": "1000", "x-ratelimit-remaining-requests": "42", "x-ratelimit-reset-requests": "16.001s",
			"x-ratelimit-limit-tokens": "60000", "x-ratelimit-remaining-tokens": "120", "x-ratelimit-reset-tokens": "1m1.001s",
			"Retry-After-Ms": "61001",
		}},
		{"OpenAI without tokens", Headers{XRateLimit: XRateLimitOff, OpenAI: true}, []quota.LimitResult{never}, map[string]string{
			"x-ratelimit-limit-requests": "10", "x-ratelimit-remaining-requests": "0", "Retry-After-Ms": "61001",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := d
			d.Limits = tt.limits
			header := map[string][]string{} // not canonical
			tt.headers.setRateLimit(header, nil, &d)
			got := map[string]string{}
			for name, values := range header {
				if tt.headers.RateLimit != "" || !strings.HasPrefix(name, "RateLimit") {
					got[name] = values[0]
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("want-, got+:\n%s", diff)
			}
			if there := header[headerRateLimit] != nil; there != (tt.headers.RateLimit != RateLimitOff) {
				t.Errorf("RateLimit is there: %v", there)
			}
		})
	}
	for _, unknown := range []Headers{{XRateLimit: "unix"}, {RateLimit: "draft-3"}} {
		if err := unknown.Validate(); err == nil {
			t.Errorf("an unknown dialect is accepted: %+v", unknown)
		}
	}
}

// A tenant whose time is ahead of a clock that fell back gets resets by the real clock:
// after them the next call really passes.
func TestEpochResetIsToldFromTheRealClock(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Headers = Headers{XRateLimit: XRateLimitEpoch} })
	body := `{"tenant":"acme","meter":"llm.tokens","cost":1000}`
	s.consume(body).want(t, 200)
	s.db.SetClock(t, startOfTest.Add(-20*time.Second)) // the minute still ends 60 s after the start
	a := s.consume(body).want(t, 429)
	want := startOfTest.Add(time.Minute)
	if got := a.header.Get("X-RateLimit-Reset"); got != strconv.FormatInt(want.Unix(), 10) {
		t.Errorf("X-RateLimit-Reset = %s, want %d", got, want.Unix())
	}
	if got := a.header.Get("Retry-After"); got != "80" {
		t.Errorf("Retry-After = %s, want 80", got)
	}
	s.db.SetClock(t, want.Add(-time.Millisecond))
	s.consume(body).want(t, 429)
	s.db.SetClock(t, want)
	s.consume(body).want(t, 200)
}
