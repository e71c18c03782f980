package api

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

func TestConsumeAnswers(t *testing.T) {
	t.Parallel()
	s := newService(t)
	golden(t, "consume_allowed", s.consume(`{"tenant":"acme","meter":"api.calls","cost":3}`).want(t, 200))
	golden(t, "consume_denied", s.consume(`{"tenant":"acme","meter":"api.calls","cost":3}`).want(t, 429))
	golden(t, "consume_denied_200", s.do(request{
		method: http.MethodPost, path: "/v1/consume?deny_status=200", token: s.token(catalog.KeyDecide, ""),
		body: `{"tenant":"acme","meter":"api.calls","cost":3}`,
	}).want(t, 200))
	golden(t, "consume_too_large_for_ever", s.consume(`{"tenant":"acme","meter":"api.calls","cost":6}`).want(t, 429))
	golden(t, "consume_blocked", s.consume(`{"tenant":"blocked","meter":"api.calls"}`).want(t, 429))
	golden(t, "consume_not_in_plan", s.consume(`{"tenant":"acme","meter":"unplanned"}`).want(t, 429))
	golden(t, "consume_suspended", s.consume(`{"tenant":"suspended","meter":"api.calls"}`).want(t, 429))
	golden(t, "consume_unlimited", s.consume(`{"tenant":"huge","meter":"api.calls","cost":7}`).want(t, 200))
	golden(t, "consume_dry_run", s.consume(`{"tenant":"globex","meter":"api.calls","cost":2,"dry_run":true}`).want(t, 200))
	golden(t, "consume_charges", s.consume(
		`{"tenant":"globex","charges":[{"meter":"api.calls"},{"meter":"llm.tokens","pools":{"input":7,"output":2,"cached":5}}]}`,
	).want(t, 200))
	golden(t, "consume_subject", s.consume(`{"tenant":"users","subject":"u 1","meter":"api.calls"}`).want(t, 200))
}

// Sleeping exactly Retry-After makes the same request pass; the header counts whole
// seconds, rounds up, and is there only when waiting helps.
func TestRetryAfterIsWhatTheNextCallExperiences(t *testing.T) {
	t.Parallel()
	s := newService(t)
	body := `{"tenant":"acme","meter":"api.calls","cost":5}`
	s.consume(body).want(t, 200)
	s.db.AdvanceClock(t, 700*time.Millisecond) // 1.4 of 5 are back
	denied := s.consume(body).want(t, 429)
	d := denied.decision(t)
	if d.RetryMS == nil || *d.RetryMS != 1800 {
		t.Fatalf("retry_after_ms = %v, want 1800", d.RetryMS)
	}
	if got := denied.header.Get("Retry-After"); got != "2" {
		t.Errorf("Retry-After = %q, want 2", got)
	}
	if got := denied.header.Get("Cache-Control"); got != "no-store" {
		t.Errorf("Cache-Control of a denial = %q, want no-store", got)
	}
	s.db.AdvanceClock(t, 1799*time.Millisecond)
	s.consume(body).want(t, 429)
	s.db.AdvanceClock(t, time.Millisecond)
	allowed := s.consume(body).want(t, 200)
	for _, name := range []string{"Retry-After", "Cache-Control"} {
		if got := allowed.header.Values(name); len(got) > 0 {
			t.Errorf("%s of an allowed answer = %q, want none", name, got)
		}
	}
	never := s.consume(`{"tenant":"acme","meter":"api.calls","cost":6}`).want(t, 429)
	if got := never.header.Values("Retry-After"); len(got) > 0 {
		t.Errorf("Retry-After of a cost that never fits = %q, want none", got)
	}
}

// remaining runs N-1 … 0, 0, 0 and every place that shows it shows the same.
func TestRemainingIsOneValueEverywhere(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, want := range []int64{4, 3, 2, 1, 0, 0, 0} {
		a := s.consume(`{"tenant":"acme","meter":"api.calls"}`)
		d := a.decision(t)
		if d.Remaining == nil || *d.Remaining != want {
			t.Fatalf("call %d: remaining = %v, want %d", i+1, d.Remaining, want)
		}
		if got := a.header.Get("X-RateLimit-Remaining"); got != strconv.FormatInt(want, 10) {
			t.Errorf("call %d: X-RateLimit-Remaining = %s, want %d", i+1, got, want)
		}
		if got := a.header.Get("RateLimit"); !strings.Contains(got, `"burst";r=`+strconv.FormatInt(want, 10)+";") {
			t.Errorf("call %d: RateLimit = %s, want burst with %d", i+1, got, want)
		}
	}
}

// A retry with the same key is charged once and gets the first answer byte for byte,
// however it spells the key.
func TestReplayIsTheFirstAnswer(t *testing.T) {
	t.Parallel()
	s := newService(t)
	body := `{"tenant":"acme","meter":"api.calls","cost":2,"dims":{"region":"eu <west>"}}`
	first := s.consume(body, "Idempotency-Key", "order-17").want(t, 200)
	if first.header.Get("RateLimit") == "" || first.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("first answer has RateLimit %q, Idempotent-Replayed %q",
			first.header.Get("RateLimit"), first.header.Get("Idempotent-Replayed"))
	}
	rows := s.rows()
	// Another order of members is the same request.
	again := `{"dims":{"region":"eu <west>"},"cost":2,"meter":"api.calls","tenant":"acme"}`
	for _, key := range []string{`order-17`, `"order-17"`} {
		replay := s.consume(again, "Idempotency-Key", key).want(t, 200)
		if replay.body != first.body {
			t.Errorf("replay with %s:\n%s\nwant\n%s", key, replay.body, first.body)
		}
		if got := replay.header.Get("Idempotent-Replayed"); got != "true" {
			t.Errorf("Idempotent-Replayed = %q, want true", got)
		}
		for _, name := range []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Remaining", "Retry-After"} {
			if got := replay.header.Values(name); len(got) > 0 {
				t.Errorf("%s of a replay = %q, want none: it would be stale", name, got)
			}
		}
	}
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("replays wrote rows, before-, after+:\n%s", diff)
	}
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":3,"dims":{"region":"eu <west>"}}`, "Idempotency-Key", "order-17").
		want(t, 422, codeKeyReused)
}

// A denial leaves no trace of the key: the same one works after Retry-After.
func TestDeniedKeyMayBeUsedAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 200)
	rows := s.rows()
	s.consume(`{"tenant":"acme","meter":"api.calls"}`, "Idempotency-Key", "k").want(t, 429)
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("a denial wrote rows, before-, after+:\n%s", diff)
	}
	s.db.AdvanceClock(t, time.Second)
	a := s.consume(`{"tenant":"acme","meter":"api.calls"}`, "Idempotency-Key", "k").want(t, 200)
	if a.header.Get("Idempotent-Replayed") != "" {
		t.Error("the first allowed answer is marked as replayed")
	}
}

// All or nothing: what one meter denies the other is not charged for.
func TestDeniedChargesChangeNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","charges":[{"meter":"llm.tokens","cost":900},{"meter":"api.calls","cost":6}]}`).want(t, 429)
	d := s.consume(`{"tenant":"acme","meter":"llm.tokens","cost":1000}`).want(t, 200).decision(t)
	if !d.Allowed || d.Receipt == nil || d.Receipt.Seq != 1 {
		t.Errorf("decision = %+v, want the first entry of the tenant", d)
	}
}

// The header fields of a denial name the limit that denied, and waiting is the
// longest wait over all of them.
func TestDenialNamesEveryViolatedLimit(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for range 5 {
		s.consume(`{"tenant":"acme","meter":"api.calls","cost":2}`)
		s.db.AdvanceClock(t, time.Second)
	}
	a := s.consume(`{"tenant":"acme","meter":"api.calls","cost":5}`).want(t, 429)
	d := a.decision(t)
	if d.Reason != quota.ReasonQuotaExceeded || d.RetryMS == nil {
		t.Fatalf("decision = %+v, want quota_exceeded with a wait", d)
	}
	var longest int64
	for _, l := range d.Limits {
		if l.RetryMS != nil && l.Mode == catalog.ModeEnforce {
			longest = max(longest, *l.RetryMS)
		}
	}
	if *d.RetryMS != longest {
		t.Errorf("retry_after_ms = %d, want the longest %d", *d.RetryMS, longest)
	}
	if want := strconv.FormatInt(retryAfterSeconds(longest), 10); a.header.Get("Retry-After") != want {
		t.Errorf("Retry-After = %s, want %s", a.header.Get("Retry-After"), want)
	}
}
