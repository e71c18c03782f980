package quota

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/ledger"
)

const holdConfig = `
meters:
  calls:  {unit: call}
  tokens: {unit: token, weights: {input: 1, output: 4}}
  strict: {unit: token, on_expiry: charge}
plans:
  agent:
    limits:
      - {name: hourly,   meter: calls,  algorithm: sliding_log,    limit: 10,  window: 1h}
      - {name: daily,    meter: calls,  algorithm: fixed_window,   limit: 100, window: day}
      - {name: pool,     meter: tokens, algorithm: token_bucket,   capacity: 100, refill: 1/1s}
      - {name: inflight, meter: tokens, algorithm: concurrency,    limit: 2}
      - {name: mine,     meter: tokens, algorithm: sliding_counter, limit: 60, window: 1h, scope: subject, mode: shadow}
      - {name: burst,    meter: strict, algorithm: gcra,           rate: 1/1s, burst: 50}
      - {name: log,      meter: strict, algorithm: sliding_log,    limit: 50, window: 1m}
tenants:
  acme: {plan: agent}
`

var holdNoon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// A holder plays one tenant on a clock that stands still until it is moved.
type holder struct {
	*world
	e  *Engine
	at time.Time
}

func newHolder(t testing.TB) *holder {
	w := newWorldAt(t, holdNoon, holdConfig)
	w.db.Exec(t, "select quotad.ensure_partitions('2026-02-01', '2026-04-01')")
	return &holder{world: w, e: w.engine(t, nil), at: holdNoon}
}

func (h *holder) wait(t testing.TB, d time.Duration) {
	t.Helper()
	h.at = h.at.Add(d)
	h.db.SetClock(t, h.at)
}

func (h *holder) hold(t testing.TB, meter string, cost int64, ttl time.Duration) Decision {
	t.Helper()
	return mustDecide(t, h.e, Request{
		Kind: ledger.KindHold, Tenant: "acme", Subject: "ann", Charges: []Charge{{Meter: meter, Cost: cost}}, TTL: ttl,
	})
}

func settling(d Decision, cost int64) Request {
	return Request{Kind: ledger.KindSettle, Tenant: "acme", Hold: d.Hold.ID, Charges: []Charge{{Cost: cost}}}
}

func releasing(d Decision) Request {
	return Request{Kind: ledger.KindRelease, Tenant: "acme", Hold: d.Hold.ID}
}

// standing reads "hourly 3+2 of 10": used and held.
func standing(d Decision) string {
	text := ""
	for i := range d.Limits {
		l := &d.Limits[i]
		text += fmt.Sprintf("%s %d+%d left %d; ", l.Name, l.Used, l.Held, l.Remaining)
	}
	return text
}

func (h *holder) want(t testing.TB, subject, want string) {
	t.Helper()
	d, err := h.e.Limits(t.Context(), "acme", subject)
	if err != nil {
		t.Fatal(err)
	}
	if got := standing(d); got != want {
		t.Errorf("at %s the limits are\n%s, want\n%s", h.at.Format(time.TimeOnly), got, want)
	}
}

func TestAHeldUnitIsNotSpendableTwiceAndSettlesAsTheTruth(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	mustDecide(t, h.e, by("ann", consume("acme", "calls", 3)))
	held := h.hold(t, "calls", 5, time.Minute)
	if !held.Allowed || *held.Remaining != 2 || held.Hold.State != HoldOpen || !held.Hold.ExpiresAt.Equal(h.at.Add(time.Minute)) {
		t.Fatalf("a hold of 5 with 7 left: got %+v", held)
	}
	if d := mustDecide(t, h.e, by("ann", consume("acme", "calls", 3))); d.Allowed || *d.RetryMS != 60_000 {
		t.Errorf("cost 3 with 2 left and 5 held for a minute: got %+v", d)
	}
	h.want(t, "", "hourly 3+5 left 2; daily 3+5 left 92; pool 0+0 left 100; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	settled := mustDecide(t, h.e, settling(held, 9)) // more than was held: the truth, over the limit
	if !settled.Allowed || settled.Hold.State != HoldSettled || settled.Hold.Late || *settled.Charges[0].Held != 5 {
		t.Errorf("settle: got %+v", settled)
	}
	h.want(t, "", "hourly 12+0 left 0; daily 12+0 left 88; pool 0+0 left 100; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	var kinds []string
	for _, e := range h.entries(t, "acme") {
		kinds = append(kinds, fmt.Sprintf("%s %d %d ref %d", e.Kind, e.Units, e.Held, e.RefSeq))
	}
	want := []string{"consume 3 0 ref 0", "hold 0 5 ref 0", "settle 9 -5 ref 2"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	h.verify(t)
}

func TestAHoldIsResolvedOnce(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	held := h.hold(t, "calls", 5, time.Minute)
	first := mustDecide(t, h.e, settling(held, 4))
	again := mustDecide(t, h.e, settling(held, 4))
	if text, err := first.JSON(); err != nil || !again.Replayed || string(again.Encoded) != string(text) {
		t.Errorf("the same settle again: got %s, want %s, replayed", again.Encoded, text)
	}
	for name, r := range map[string]Request{
		"settle of another cost": settling(held, 5), "release": releasing(held),
		"extend": {Kind: ledger.KindExtend, Tenant: "acme", Hold: held.Hold.ID, TTL: time.Minute},
	} {
		if _, err := h.e.Decide(t.Context(), r); wantCode(t, err, CodeHoldResolved) == nil {
			t.Errorf("%s of a settled hold went through", name)
		}
	}
	_, err := h.e.Decide(t.Context(), Request{Kind: ledger.KindRelease, Tenant: "acme", Hold: uuid.New()})
	wantCode(t, err, CodeHoldNotFound)
	released := h.hold(t, "calls", 5, time.Minute)
	mustDecide(t, h.e, releasing(released))
	if d := mustDecide(t, h.e, releasing(released)); !d.Replayed {
		t.Errorf("the same release again: got %+v", d)
	}
	if got := len(h.entries(t, "acme")); got != 4 {
		t.Errorf("the ledger has %d entries, want 2 holds, a settle and a release", got)
	}
	h.want(t, "", "hourly 4+0 left 6; daily 4+0 left 96; pool 0+0 left 100; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	h.verify(t)
}

// A crashed caller's units and its place come back at the end of its hold, to the
// microsecond, and a settle that comes after that is still the truth.
func TestAnExpiredHoldGivesBackAndALateSettleSaysSo(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	one, two := h.hold(t, "tokens", 60, time.Minute), h.hold(t, "tokens", 40, 2*time.Minute)
	full := h.hold(t, "tokens", 1, time.Minute)
	if full.Allowed || full.Reason != ReasonQuotaExceeded || *full.RetryMS != 60_000 {
		t.Errorf("a third hold of 2 at a time: got %+v", full)
	}
	h.wait(t, time.Minute-time.Microsecond)
	if d := h.hold(t, "tokens", 1, time.Minute); d.Allowed {
		t.Errorf("a microsecond before the end: got %+v", d)
	}
	h.wait(t, time.Microsecond)
	three := h.hold(t, "tokens", 60, time.Minute)
	if !three.Allowed || standing(three) != "pool 0+100 left 0; inflight 2+0 left 0; mine 0+100 left 0; " {
		t.Errorf("at the end: got %s", standing(three))
	}
	late := mustDecide(t, h.e, settling(one, 70))
	if !late.Allowed || !late.Hold.Late || late.Hold.State != HoldSettled || *late.Remaining != 0 {
		t.Errorf("late settle: got %+v", late)
	}
	if d := mustDecide(t, h.e, settling(one, 70)); !d.Replayed {
		t.Errorf("late settle again: got %+v", d)
	}
	if _, err := h.e.Decide(t.Context(), releasing(one)); wantCode(t, err, CodeHoldResolved) == nil {
		t.Error("a release after the late settle went through")
	}
	mustDecide(t, h.e, releasing(two))
	mustDecide(t, h.e, settling(three, 0))
	h.want(t, "", "hourly 0+0 left 10; daily 0+0 left 100; pool 70+0 left 30; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	h.verify(t)
}

func TestAnExpiryThatChargesIsCorrectedByALateSettle(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	held := h.hold(t, "strict", 40, 10*time.Second)
	h.wait(t, 10*time.Second)
	h.want(t, "", "hourly 0+0 left 10; daily 0+0 left 100; pool 0+0 left 100; inflight 0+0 left 2; burst 40+0 left 10; log 40+0 left 10; ")
	h.wait(t, 5*time.Second)
	mustDecide(t, h.e, settling(held, 15)) // 25 too many: back in the window from then, in the bucket now
	h.want(t, "", "hourly 0+0 left 10; daily 0+0 left 100; pool 0+0 left 100; inflight 0+0 left 2; burst 10+0 left 40; log 15+0 left 35; ")
	d := mustDecide(t, h.e, by("ann", consume("acme", "strict", 36)))
	if d.Allowed || *d.Limits[1].RetryMS != 55_000 {
		t.Errorf("cost 36 with 35 left until the expiry leaves the window: got %+v", d)
	}
	h.wait(t, 55*time.Second-time.Millisecond)
	if d := mustDecide(t, h.e, dry(by("ann", consume("acme", "strict", 36)))); d.Allowed {
		t.Errorf("a millisecond early: got %+v", d)
	}
	h.wait(t, time.Millisecond)
	if d := mustDecide(t, h.e, by("ann", consume("acme", "strict", 36))); !d.Allowed {
		t.Errorf("after the wait: got %+v", d)
	}
	h.verify(t)
}

// Whenever somebody notices, the charge counts from the hold's end: what a denial said
// before of its wait is what happens.
func TestAnExpiryCountsFromTheEndOfItsHold(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	if d := h.hold(t, "strict", 50, 30*time.Second); !d.Allowed {
		t.Fatalf("a hold of all: got %+v", d)
	}
	denied := mustDecide(t, h.e, by("ann", consume("acme", "strict", 1)))
	if denied.Allowed || orNone(denied.Limits[0].RetryMS) != 31_000 || orNone(denied.RetryMS) != 90_000 {
		t.Fatalf("all is held for 30 s, and is then charged: got %+v", denied)
	}
	h.wait(t, 90*time.Second)
	if d := mustDecide(t, h.e, by("ann", consume("acme", "strict", 50))); !d.Allowed {
		t.Errorf("after the wait: got %+v", d)
	}
	for _, e := range h.entries(t, "acme") {
		if want := holdNoon.Add(30 * time.Second); e.Kind == ledger.KindExpire && !e.At.Equal(want) {
			t.Errorf("the expiry is dated %s, want %s", e.At, want)
		}
	}
	h.verify(t)
}

// What was used last may have been given back: then the window is empty when the entry
// before it has left.
func TestAWindowResetsWhenWhatIsLeftOfItHasLeft(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	mustDecide(t, h.e, by("ann", consume("acme", "calls", 3)))
	h.wait(t, 10*time.Minute)
	mustDecide(t, h.e, by("ann", consume("acme", "calls", 7)))
	d := mustDecide(t, h.e, Request{Kind: ledger.KindReverse, Tenant: "acme", Seq: 2, Key: "all"})
	if got := d.Limits[0].ResetMS; got != (50 * time.Minute).Milliseconds() {
		t.Errorf("the reversal says that it resets in %d ms, want in 50 minutes", got)
	}
	stands, err := h.e.Limits(t.Context(), "acme", "")
	if err != nil || stands.Limits[0].ResetMS != (50*time.Minute).Milliseconds() {
		t.Errorf("the limits say that it resets in %d ms, %v, want in 50 minutes", stands.Limits[0].ResetMS, err)
	}
	reader := NewReader(h.db.Service(t), h.catalog)
	past, err := reader.LimitsAt(t.Context(), "acme", "", h.at)
	if err != nil || past.Limits[0].ResetMS != (50*time.Minute).Milliseconds() {
		t.Errorf("the limits of that instant say that it resets in %d ms, %v, want in 50 minutes", past.Limits[0].ResetMS, err)
	}
	held := h.hold(t, "calls", 1, time.Hour)
	if got := held.Limits[0].ResetMS; got != time.Hour.Milliseconds() {
		t.Errorf("with a hold of an hour it resets in %d ms, want in an hour", got)
	}
	first, again := mustDecide(t, h.e, releasing(held)), mustDecide(t, h.e, releasing(held))
	if !again.Replayed || !bytes.Equal(first.Encoded, again.Encoded) {
		t.Errorf("the same release again: got\n%s\nwant\n%s", again.Encoded, first.Encoded)
	}
	h.verify(t)
}

// The charge of an expiry is given back by the late settle, and after that by a reversal.
func TestTheChargeOfAnExpiryIsReversibleOnceItIsSettled(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	held := h.hold(t, "strict", 40, time.Second)
	h.wait(t, time.Second)
	h.want(t, "", "hourly 0+0 left 10; daily 0+0 left 100; pool 0+0 left 100; inflight 0+0 left 2; burst 40+0 left 10; log 40+0 left 10; ")
	back := Request{Kind: ledger.KindReverse, Tenant: "acme", Seq: 2, Key: "credit"}
	_, err := h.e.Decide(t.Context(), back)
	wantCode(t, err, CodeNotReversible)
	mustDecide(t, h.e, settling(held, 15))
	back.Units = 16
	_, err = h.e.Decide(t.Context(), back)
	wantCode(t, err, CodeReversalTooLarge)
	back.Units = 0
	if d := mustDecide(t, h.e, back); d.Reversal.Units != 15 || d.Reversal.Left != 0 {
		t.Errorf("reversal of what is left: got %+v", d.Reversal)
	}
	h.want(t, "", "hourly 0+0 left 10; daily 0+0 left 100; pool 0+0 left 100; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	h.verify(t)
}

func TestAReversalCountsFromTheOriginalsInstant(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	mustDecide(t, h.e, by("ann", consume("acme", "calls", 6)))
	mustDecide(t, h.e, by("ann", consume("acme", "tokens", 80)))
	h.wait(t, 30*time.Minute)
	mustDecide(t, h.e, by("ann", consume("acme", "calls", 4)))
	back := Request{Kind: ledger.KindReverse, Tenant: "acme", Seq: 1, Units: 4, Key: "credit-1"}
	d := mustDecide(t, h.e, back)
	want := &Reversal{Seq: 1, Meter: "calls", Units: 4, Left: 2}
	if diff := cmp.Diff(want, d.Reversal); diff != "" || standing(d) != "hourly 6+0 left 4; daily 6+0 left 94; " {
		t.Errorf("%s; reversal (-want +got):\n%s", standing(d), diff)
	}
	if d := mustDecide(t, h.e, back); !d.Replayed {
		t.Errorf("the same key again: got %+v", d)
	}
	mustDecide(t, h.e, Request{Kind: ledger.KindReverse, Tenant: "acme", Seq: 3, Key: "credit-all", DryRun: true})
	back.Key, back.Units = "credit-2", 3
	_, err := h.e.Decide(t.Context(), back)
	wantCode(t, err, CodeReversalTooLarge)
	denied := mustDecide(t, h.e, by("ann", consume("acme", "calls", 5))) // the two that are left leave first
	if denied.Allowed || *denied.RetryMS != (30*time.Minute).Milliseconds() {
		t.Errorf("cost 5 with 4 left: got %+v", denied)
	}
	h.wait(t, 30*time.Minute)
	h.want(t, "", "hourly 4+0 left 6; daily 6+0 left 94; pool 0+0 left 100; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	h.verify(t)
}

func TestSeveralMetersAreHeldAllOrNone(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	r := Request{Kind: ledger.KindHold, Tenant: "acme", Subject: "ann", TTL: time.Minute, Charges: []Charge{
		{Meter: "calls", Cost: 1}, {Meter: "tokens", Pools: map[string]int64{"input": 10, "output": 30}},
	}}
	if d := mustDecide(t, h.e, r); d.Allowed || d.Reason != ReasonCostExceedsLimit {
		t.Errorf("130 tokens of 100: got %+v", d)
	}
	h.want(t, "", "hourly 0+0 left 10; daily 0+0 left 100; pool 0+0 left 100; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	r.Charges[1].Pools["output"] = 10
	held := mustDecide(t, h.e, r)
	h.want(t, "", "hourly 0+1 left 9; daily 0+1 left 99; pool 0+50 left 50; inflight 1+0 left 1; burst 0+0 left 50; log 0+0 left 50; ")
	one := Request{Kind: ledger.KindSettle, Tenant: "acme", Hold: held.Hold.ID, Charges: []Charge{{Meter: "calls", Cost: 1}}}
	_, err := h.e.Decide(t.Context(), one)
	wantCode(t, err, CodeInvalidRequest)
	one.Charges = append(one.Charges, Charge{Meter: "tokens", Pools: map[string]int64{"input": 10, "output": 5}})
	d := mustDecide(t, h.e, one)
	if !d.Allowed || d.Charges[1].Cost != 30 || *d.Charges[1].Held != 50 {
		t.Errorf("settle of both: got %+v", d)
	}
	h.want(t, "", "hourly 1+0 left 9; daily 1+0 left 99; pool 30+0 left 70; inflight 0+0 left 2; burst 0+0 left 50; log 0+0 left 50; ")
	h.verify(t)
}

// What crashed callers had set aside comes back with nobody calling, and leaves its entry.
func TestTheHoldsOfAnIdleTenantEndInTheBackground(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	held := h.hold(t, "calls", 5, time.Minute)
	h.wait(t, time.Minute)
	last := h.entries(t, "acme")[0]
	for deadline := time.Now().Add(time.Minute); last.Kind != ledger.KindExpire && time.Now().Before(deadline); {
		entries := h.entries(t, "acme")
		last = entries[len(entries)-1]
	}
	if last.Kind != ledger.KindExpire || last.RefSeq != held.Receipt.Seq || last.Held != -5 {
		t.Errorf("the newest entry is %+v, want the expiry of entry %d", last, held.Receipt.Seq)
	}
	h.verify(t)
}

// Resolved holds are kept for as long as idempotency keys, and open ones whatever their age.
func TestOldHoldsAreDeletedAndOpenOnesNever(t *testing.T) {
	t.Parallel()
	h := newHolder(t)
	mustDecide(t, h.e, settling(h.hold(t, "calls", 5, time.Minute), 1))
	kept := func() (n int) {
		if err := h.db.Owner(t).QueryRow(t.Context(), "select count(*) from quotad.hold").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	h.wait(t, 35*24*time.Hour)
	mustDecide(t, h.e, settling(h.hold(t, "calls", 5, time.Minute), 1))
	h.hold(t, "calls", 1, time.Minute)
	purge := newRunner(h.e)
	defer purge.close()
	purged := func() {
		if err := purge.connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := purge.purgeHolds(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if purged(); kept() != 3 {
		t.Errorf("%d holds are kept to the day, want 3", kept())
	}
	h.wait(t, time.Microsecond)
	if purged(); kept() != 2 {
		t.Errorf("%d holds are kept after it, want 2", kept())
	}
	h.verify(t)
}

// A cost as large as the limit passes once the window is empty, which is when the last
// entry leaves it of which anything is left.
func TestAWaitForAnEmptyWindowLeavesOutWhatWasGivenBack(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, holdNoon, `
meters: {calls: {unit: call}}
plans: {all: {limits: [{name: log, meter: calls, algorithm: sliding_log, limit: 20, window: 1m}]}}
tenants: {acme: {plan: all}}
`)
	e := w.engine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 2))
	w.db.AdvanceClock(t, time.Second)
	mustDecide(t, e, consume("acme", "calls", 3))
	mustDecide(t, e, Request{Kind: ledger.KindReverse, Tenant: "acme", Seq: 2, Key: "credit"})
	if d := mustDecide(t, e, consume("acme", "calls", 20)); d.Allowed || *d.RetryMS != 59_000 {
		t.Errorf("20 of 20 beside 2 of a second ago: got %+v, want a wait of 59 s", d)
	}
}
