package api

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// What a parser of structured fields reads is what the body says, whatever was decided.
func TestRateLimitFieldsParseBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		count := rapid.IntRange(1, rateLimitMembersMax).Draw(t, "limits")
		d := quota.Decision{ClockAt: time.UnixMicro(1767225600123456)}
		for i := range count {
			limit := rapid.Int64Range(0, 999_999_999_999_999).Draw(t, "limit")
			l := enforced("l"+strconv.Itoa(i), limit, rapid.Int64Range(0, limit).Draw(t, "remaining"),
				rapid.Int64Range(0, resetMSMax).Draw(t, "reset"), rapid.Int64Range(0, 1<<50).Draw(t, "window"))
			if l.NeverResets = rapid.Bool().Draw(t, "never resets"); l.NeverResets {
				l.ResetMS = 0
			}
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
		var body struct{ Limits []limitInBody }
		if err := json.Unmarshal(appendDecision(nil, &d), &body); err != nil {
			t.Fatal(err)
		}
		if len(body.Limits) != count || len(policies) != count || len(states) != count {
			t.Fatalf("%d limits in the body, %d policies, %d states, want %d", len(body.Limits), len(policies), len(states), count)
		}
		for i := range d.Limits {
			checkMember(t, body.Limits[i], d.Limits[i].WindowMicros, policies[i].(httpsfv.Item), states[i].(httpsfv.Item))
		}
	})
}

// resetMSMax is the longest reset that a decision tells: the engine's instants end with
// the year 9999, and 8000 years are more than a time.Duration holds.
const resetMSMax = 253_402_300_800_000

// A limitInBody is what the body says of a limit.
type limitInBody struct {
	Name      string
	Limit     int64
	Remaining int64
	ResetMS   *int64 `json:"reset_after_ms"`
}

func checkMember(t *rapid.T, l limitInBody, windowMicros int64, policy, state httpsfv.Item) {
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
	if windowMicros > 0 {
		window = (windowMicros + 999_999) / 1_000_000
	}
	if l.ResetMS != nil {
		reset = (*l.ResetMS + 999) / 1000
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
		{"draft 7 without a reset", Headers{RateLimit: RateLimitDraft7, XRateLimit: XRateLimitOff}, []quota.LimitResult{never}, map[string]string{
			"RateLimit-Policy": "10",
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
			if there := header[headerRateLimitPolicy] != nil; there != (tt.headers.RateLimit != RateLimitOff) {
				t.Errorf("RateLimit-Policy is there: %v", there)
			}
		})
	}
	for _, unknown := range []Headers{{XRateLimit: "unix"}, {RateLimit: "draft-3"}} {
		if err := unknown.Validate(); err == nil {
			t.Errorf("an unknown dialect is accepted: %+v", unknown)
		}
	}
}

// A duration is as Go writes it, also where it is longer than Go's own can be.
func TestOpenAIDurations(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64]string{
		0: "0s", 1: "1ms", 250: "250ms", 1000: "1s", 16_001: "16.001s", 360_000: "6m0s", 3_600_000: "1h0m0s",
		3_600_250: "1h0m0.25s", 262_800_000: "73h0m0s", 9_223_372_036_855: "2562047h47m16.855s", resetMSMax: "70389528h0m0s",
	} {
		if got := string(appendDuration(nil, ms)); got != want {
			t.Errorf("appendDuration(%d) = %s, want %s", ms, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		ms := rapid.Int64Range(0, math.MaxInt64/int64(time.Millisecond)).Draw(t, "ms")
		if got, want := string(appendDuration(nil, ms)), (time.Duration(ms) * time.Millisecond).String(); got != want {
			t.Fatalf("appendDuration(%d) = %s, want %s", ms, got, want)
		}
	})
}

// A bucket that takes three thousand years to fill says so in each dialect.
func TestResetsOfThousandsOfYears(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.Headers = Headers{OpenAI: true} })
	s.apply(`
meters:
  llm.tokens: {unit: token}
plans:
  slow:
    limits:
      - {name: ages, meter: llm.tokens, algorithm: token_bucket, capacity: 100000000000, refill: 1/1s}
tenants:
  patient: {plan: slow}
`)
	a := s.consume(`{"tenant":"patient","meter":"llm.tokens","cost":100000000000}`).want(t, 200)
	for name, want := range map[string]string{
		"RateLimit": `"ages";r=0;t=100000000000`, "X-RateLimit-Reset": "100000000000", "x-ratelimit-reset-tokens": "27777777h46m40s",
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
}

// A client that is denied by what never comes back is told no instant to come back at, in
// any dialect and not in the body: neither at once nor when another limit is free.
func TestABlockedLimitTellsNoResetInAnyDialect(t *testing.T) {
	t.Parallel()
	for _, headers := range []Headers{
		{OpenAI: true}, {RateLimit: RateLimitDraft7, XRateLimit: XRateLimitEpoch, OpenAI: true},
	} {
		s := newService(t, func(c *Config) { c.Headers = headers })
		s.apply(`
meters:
  api.calls: {unit: call}
plans:
  no-limit: {limits: [{name: off, meter: api.calls, algorithm: fixed_window, limit: 0, window: 1h}]}
  no-rate:
    limits:
      - {name: day, meter: api.calls, algorithm: fixed_window, limit: 1, window: day}
      - {name: off, meter: api.calls, algorithm: token_bucket, capacity: 5, refill: 0/1s}
tenants:
  none: {plan: no-limit}
  rate: {plan: no-rate}
`)
		for _, tenant := range []string{"none", "rate"} {
			a := s.consume(`{"tenant":"`+tenant+`","meter":"api.calls"}`).want(t, 429)
			off := saidOf(t, a, "off")
			if off.ResetMS != nil || off.Remaining != 0 {
				t.Errorf("%s: the body says of the blocked limit %+v, want no reset", tenant, off)
			}
			for _, name := range []string{"X-RateLimit-Reset", "x-ratelimit-reset-requests", "Retry-After", "Retry-After-Ms"} {
				if got := a.header.Get(name); got != "" {
					t.Errorf("%s: %s = %s, want none", tenant, name, got)
				}
			}
			if got := a.header.Get("RateLimit"); strings.Contains(got, `"off";r=0;t`) || strings.Contains(got, "reset=") {
				t.Errorf("%s: RateLimit = %s, want no reset of the blocked limit", tenant, got)
			}
			a = s.get(catalog.KeyRead, "/v1/tenants/"+tenant+"/limits").want(t, 200)
			if off := saidOf(t, a, "off"); off.ResetMS != nil {
				t.Errorf("%s: its limits say %s, want no reset of the blocked one", tenant, a.body)
			}
		}
	}
}

// saidOf returns what an answer says of one limit.
func saidOf(t *testing.T, a answer, name string) limitInBody {
	t.Helper()
	var body struct{ Limits []limitInBody }
	if err := json.Unmarshal([]byte(a.body), &body); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	i := slices.IndexFunc(body.Limits, func(l limitInBody) bool { return l.Name == name })
	if i < 0 {
		t.Fatalf("%s has no limit %s", a.body, name)
	}
	return body.Limits[i]
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

// A limit of concurrency counts holds: it is no limit of tokens, whatever its meter's unit
// is, and with a place left it is not what a caller should heed first.
func TestPlacesAreNotTakenForUnits(t *testing.T) {
	t.Parallel()
	slots := enforced("inflight", 5, 4, 1000, 0)
	slots.Algorithm, slots.Unit = catalog.Concurrency, "token"
	tokens := enforced("tpm", 1000, 600, 2000, 60_000_000)
	tokens.Unit = "token"
	for _, tt := range []struct {
		left        int64
		x, requests string
	}{{4, "600", "4"}, {0, "0", "0"}} {
		slots.Remaining = tt.left
		header := map[string][]string{}
		d := quota.Decision{Allowed: true, Limits: []quota.LimitResult{slots, tokens}}
		Headers{OpenAI: true}.setRateLimit(header, nil, &d)
		for name, want := range map[string]string{
			"X-RateLimit-Remaining": tt.x, "x-ratelimit-remaining-tokens": "600", "x-ratelimit-remaining-requests": tt.requests,
		} {
			if got := header[name]; len(got) != 1 || got[0] != want {
				t.Errorf("%s with %d places left = %q, want %s", name, tt.left, got, want)
			}
		}
	}
}
