package api

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// The hand-written encoder and the tags of quota.Decision must say the same, for
// every decision: answers to keyed requests are encoded by the engine from the tags.
func TestDecisionEncodesAsItsTagsSay(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDecision(t)
		got := appendDecision(nil, &d)
		var want bytes.Buffer
		encoder := json.NewEncoder(&want)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(d); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(decoded(t, want.Bytes()), decoded(t, got)); diff != "" {
			t.Fatalf("appendDecision, tags-, got+:\n%s", diff)
		}
		if a, b := keysInOrder(t, want.Bytes()), keysInOrder(t, got); !cmp.Equal(a, b) {
			t.Fatalf("appendDecision has members %v, want %v", b, a)
		}
	})
}

// A denial is one JSON object: the problem's members, then all of the decision's.
func TestDenialHoldsTheWholeDecision(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := drawDecision(t)
		got, ok := decoded(t, appendDenial(nil, &d)).(map[string]any)
		if !ok {
			t.Fatal("a denial is no object")
		}
		for _, member := range []string{"type", "title", "status", "code", "detail", "violated-policies"} {
			if _, ok := got[member]; !ok {
				t.Fatalf("a denial lacks %s", member)
			}
			delete(got, member)
		}
		if diff := cmp.Diff(decoded(t, appendDecision(nil, &d)), any(got)); diff != "" {
			t.Fatalf("the rest of the denial, decision-, denial+:\n%s", diff)
		}
	})
}

func decoded(t *rapid.T, text []byte) any {
	var v any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// keysInOrder lists every string of a text that stands before a colon, roughly: it
// serves to compare two texts of the same values.
func keysInOrder(t *rapid.T, text []byte) []string {
	var tokens []string
	decoder := json.NewDecoder(bytes.NewReader(text))
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(string); ok {
			tokens = append(tokens, text)
		}
	}
	return tokens
}

func drawDecision(t *rapid.T) quota.Decision {
	amount := rapid.Int64Range(0, catalog.UnitsMax)
	optional := rapid.Ptr(amount, true)
	text := rapid.String()
	d := quota.Decision{
		Allowed:    rapid.Bool().Draw(t, "allowed"),
		Reason:     rapid.SampledFrom([]quota.Reason{"", quota.ReasonQuotaExceeded, quota.ReasonBlocked}).Draw(t, "reason"),
		Tenant:     text.Draw(t, "tenant"),
		Subject:    text.Draw(t, "subject"),
		RequestID:  uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id")),
		DecidedAt:  time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "at")).UTC(),
		DryRun:     rapid.Bool().Draw(t, "dry_run"),
		Remembered: rapid.Bool().Draw(t, "remembered"),
		Charges:    []quota.ChargeResult{},
		Limits:     []quota.LimitResult{},
		Remaining:  optional.Draw(t, "remaining"),
		DelayMS:    optional.Draw(t, "delay"),
		RetryMS:    optional.Draw(t, "retry"),
	}
	for range rapid.IntRange(0, 3).Draw(t, "charges") {
		d.Charges = append(d.Charges, quota.ChargeResult{Meter: text.Draw(t, "meter"), Cost: amount.Draw(t, "cost")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "limits") {
		d.Limits = append(d.Limits, quota.LimitResult{
			Name: text.Draw(t, "name"), Meter: text.Draw(t, "meter"), Algorithm: catalog.GCRA,
			Scope: catalog.ScopeSubject, Mode: catalog.ModeShadow, Unlimited: rapid.Bool().Draw(t, "unlimited"),
			Limit: amount.Draw(t, "limit"), Used: amount.Draw(t, "used"), Held: amount.Draw(t, "held"),
			Remaining: amount.Draw(t, "left"), Violated: rapid.Bool().Draw(t, "violated"),
			WouldDeny: rapid.Bool().Draw(t, "would_deny"), RetryMS: optional.Draw(t, "limit_retry"),
			NeverResets: rapid.Bool().Draw(t, "never"), ResetMS: amount.Draw(t, "reset"), DelayMS: optional.Draw(t, "limit_delay"),
		})
	}
	if rapid.Bool().Draw(t, "receipt") {
		d.Receipt = &quota.Receipt{FirstSeq: 1, Seq: amount.Draw(t, "seq"), Hash: quota.Hash{1, 2, 255}}
	}
	if rapid.Bool().Draw(t, "degraded") {
		d.Degraded = true
		for range rapid.IntRange(0, 2).Draw(t, "degraded_limits") {
			d.DegradedLimits = append(d.DegradedLimits, quota.DegradedLimit{
				Name: text.Draw(t, "name"), Meter: text.Draw(t, "meter"), OnError: catalog.OnErrorLocal,
				Limit: optional.Draw(t, "share"), Used: optional.Draw(t, "share_used"), Remaining: optional.Draw(t, "share_left"),
				Violated: rapid.Bool().Draw(t, "share_violated"), RetryMS: optional.Draw(t, "share_retry"),
			})
		}
	}
	return d
}

func BenchmarkAnswer(b *testing.B) {
	d := quota.Decision{
		Allowed: true, Tenant: "tenant-000123", Subject: "user-7", DecidedAt: time.UnixMicro(1767225600123456).UTC(),
		Charges: []quota.ChargeResult{{Meter: "api.calls", Cost: 1}},
		Limits: []quota.LimitResult{
			enforced("hourly", 1000, 42, 16_001, 3_600_000_000), enforced("burst", 10, 9, 500, 500_000),
		},
		Receipt: &quota.Receipt{FirstSeq: 7, Seq: 7},
	}
	b.Run("by hand", func(b *testing.B) {
		var out, scratch []byte
		header := map[string][]string{}
		b.ReportAllocs()
		for b.Loop() {
			scratch = Headers{}.setRateLimit(header, scratch, &d)
			out = appendDecision(out[:0], &d)
		}
	})
	b.Run("by reflection", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := json.Marshal(d); err != nil {
				b.Fatal(err)
			}
		}
	})
}
