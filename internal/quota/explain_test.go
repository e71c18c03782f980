package quota

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/ledger"
)

const explainConfig = `
meters:
  calls:  {unit: call}
  tokens: {unit: token}
plans:
  all:
    limits:
      - {name: log,     meter: calls,  algorithm: sliding_log,     limit: 30, window: 1m}
      - {name: counter, meter: calls,  algorithm: sliding_counter, limit: 40, window: 1m}
      - {name: each,    meter: calls,  algorithm: sliding_log,     limit: 15, window: 1m, scope: subject}
      - {name: day,     meter: calls,  algorithm: fixed_window,    limit: %d, window: day}
      - {name: watch,   meter: calls,  algorithm: fixed_window,    limit: 3,  window: 30s, mode: shadow}
      - {name: bucket,  meter: tokens, algorithm: token_bucket,    capacity: 50, refill: 1/1s}
      - {name: mine,    meter: tokens, algorithm: token_bucket,    capacity: 60, refill: 7/9s, scope: subject}
      - {name: smooth,  meter: tokens, algorithm: gcra,            rate: 7/5s, burst: 45}
      - {name: shape,   meter: tokens, algorithm: leaky_bucket,    rate: 11/9s, queue: 70}
      - {name: watched, meter: tokens, algorithm: token_bucket,    capacity: 30, refill: 3/7s, mode: shadow}
      - {name: tokens,  meter: tokens, algorithm: fixed_window,    limit: 500, window: hour}
tenants:
  acme: {plan: all, timezone: %s}
`

// Every decision of a random traffic, with calls at one instant, a changed plan and a
// changed time zone, comes out again when it is counted from the ledger, allowed and
// denied alike.
func TestEveryDecisionIsExplainedByTheLedger(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, fmt.Sprintf(explainConfig, 300, "Asia/Kolkata"))
	start := time.Date(2026, 3, 28, 18, 20, 0, 0, time.UTC) // ten minutes before midnight in Kolkata
	w.db.SetClock(t, start)
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	var decisions []Decision
	for i := range 150 {
		switch i {
		case 60:
			w.apply(t, fmt.Sprintf(explainConfig, 120, "Asia/Kolkata"))
		case 90:
			w.apply(t, fmt.Sprintf(explainConfig, 200, "Europe/Berlin"))
		}
		w.db.AdvanceClock(t, time.Duration(random.IntN(3))*time.Duration(random.IntN(12))*time.Second)
		var requests []Request
		for range 1 + random.IntN(4) {
			r := Request{
				Tenant: "acme", Subject: fmt.Sprintf("u%d", random.IntN(3)),
				Charges: []Charge{{Meter: "calls", Cost: random.Int64N(8)}},
			}
			if random.IntN(2) == 0 {
				r.Charges = append(r.Charges, Charge{Meter: "tokens", Cost: random.Int64N(20)})
			}
			requests = append(requests, r)
		}
		for _, result := range e.DecideAll(t.Context(), requests) {
			if result.Err != nil {
				t.Fatal(result.Err)
			}
			decisions = append(decisions, result.Decision)
		}
		if err := e.FlushDenials(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	denied := 0
	for i := range decisions {
		d := &decisions[i]
		var got Explanation
		var err error
		if d.Allowed {
			got, err = x.ExplainEntry(t.Context(), "acme", d.Receipt.Seq)
		} else {
			denied++
			got, err = x.ExplainRequest(t.Context(), "acme", d.RequestID)
		}
		if err != nil {
			t.Fatal(err)
		}
		checkExplanation(t, d, &got)
	}
	if denied < 20 || denied > len(decisions)-20 {
		t.Errorf("%d of %d are denied: the traffic tests too little", denied, len(decisions))
	}
}

func checkExplanation(t *testing.T, d *Decision, got *Explanation) {
	t.Helper()
	if got.Allowed != d.Allowed || got.RequestID != d.RequestID || !got.At.Equal(d.DecidedAt) || got.Reason != d.Reason {
		t.Errorf("explanation %+v of the decision %+v", got, d)
	}
	if !got.Consistent || len(got.Limits) != len(d.Limits) || (d.Allowed && len(got.Entries) != len(d.Charges)) {
		t.Errorf("explanation %+v is not consistent", got)
	}
	for i := range got.Limits {
		l := &got.Limits[i]
		if l.Counted == nil {
			t.Errorf("limit %s is not counted", l.Name)
		}
		if l.Name != d.Limits[i].Name || (!d.Allowed && l.Used != d.Limits[i].Used) || d.Limits[i].Violated == l.Fits && !d.Allowed && l.Mode == "enforce" {
			t.Errorf("limit %+v is explained as %+v", d.Limits[i], l)
		}
	}
}

// What is not there is not explained, and an entry that was tampered with does not come
// out.
func TestExplanationsFindWhatDoesNotComeOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fmt.Sprintf(explainConfig, 300, "UTC"))
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	for range 3 {
		request := Request{Tenant: "acme", Subject: "u", Charges: []Charge{{Meter: "calls", Cost: 2}, {Meter: "tokens", Cost: 1}}}
		if _, err := e.Decide(t.Context(), request); err != nil {
			t.Fatal(err)
		}
	}
	first, err := x.ExplainEntry(t.Context(), "acme", 4)
	if err != nil || !first.Consistent || first.AfterSeq != 2 || len(first.Entries) != 2 {
		t.Fatalf("explanation of entry 4 = %+v, %v; want that of entries 3 and 4", first, err)
	}
	byID, err := x.ExplainRequest(t.Context(), "acme", first.RequestID)
	if err != nil || byID.AfterSeq != 2 {
		t.Errorf("explanation of the same request by its id = %+v, %v", byID, err)
	}
	if _, err := x.ExplainEntry(t.Context(), "acme", 7); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("error of an entry that is not there = %v, want ErrNotFound", err)
	}
	if _, err := x.ExplainRequest(t.Context(), "acme", uuid.Must(uuid.NewV7())); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("error of a request that is not there = %v, want ErrNotFound", err)
	}
	if _, err := x.ExplainRequest(t.Context(), "acme", uuid.New()); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("error of an id without an instant = %v, want ErrNotFound", err)
	}
	w.db.Exec(t, "set session_replication_role = replica; update quotad.entry set units = units - 1 where seq = 1")
	if tampered, err := x.ExplainEntry(t.Context(), "acme", 4); err != nil || tampered.Consistent {
		t.Errorf("after an entry was edited the explanation is %q, %v; want that it does not come out", tampered.Text, err)
	}
}

// Who asks why a suspended tenant was denied is sent to no limit, whatever it had used.
func TestASuspensionIsExplainedByItselfAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, fmt.Sprintf(explainConfig, 300, "UTC"))
	e := w.engine(t, nil)
	x := NewReader(w.db.Service(t), w.catalog)
	ask := func() (Decision, Explanation) {
		t.Helper()
		d := mustDecide(t, e, Request{Tenant: "acme", Subject: "u", Charges: []Charge{{Meter: "calls", Cost: 12}}})
		if d.Allowed {
			return d, Explanation{}
		}
		if err := e.FlushDenials(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := x.ExplainRequest(t.Context(), "acme", d.RequestID)
		if err != nil {
			t.Fatal(err)
		}
		return d, got
	}
	ask()
	_, got := ask()
	if want := "Denied (quota_exceeded): it did not fit each."; got.Text != want || !got.Consistent {
		t.Errorf("explanation = %q, want %q", got.Text, want)
	}
	w.db.Exec(t, "update quotad.account set status = 'suspended'")
	d, got := ask()
	if want := "Denied (tenant_suspended)."; got.Text != want || !got.Consistent {
		t.Errorf("explanation = %q, want %q", got.Text, want)
	}
	if kept, err := x.denials.Denial(t.Context(), "acme", d.RequestID); err != nil || len(kept.LimitNames) != 0 {
		t.Errorf("the kept denial names the limits %q, %v; want none", kept.LimitNames, err)
	}
	// What is kept from before that was so is no sign of a ledger that is wrong.
	w.db.Exec(t, `update quotad.denial set decision = jsonb_set(decision::jsonb, '{limits,2,violated}', 'true')::json where request_id = $1`, d.RequestID)
	old, err := x.ExplainRequest(t.Context(), "acme", d.RequestID)
	if err != nil || old.Text != got.Text || !old.Consistent {
		t.Errorf("an older denial is explained as %q, %v; want %q", old.Text, err, got.Text)
	}
	w.db.Exec(t, `update quotad.denial set decision = jsonb_set(decision::jsonb, '{limits,0,violated}', 'true')::json where request_id = $1`, d.RequestID)
	if bad, err := x.ExplainRequest(t.Context(), "acme", d.RequestID); err != nil || bad.Consistent {
		t.Errorf("a denial by a limit that it fitted is explained as %q, %v; want that it does not come out", bad.Text, err)
	}
}
