package sim

import (
	"testing"
	"time"
)

// Holds on windows, a bucket and places; of the meter that charges, what expires is used.
const holdConfig = `
meters:
  calls: {unit: call}
  time:  {unit: second, on_expiry: charge}
plans:
  held:
    limits:
      - {name: log,    meter: calls, algorithm: sliding_log,  limit: 10, window: 1h}
      - {name: places, meter: calls, algorithm: concurrency,  limit: 3}
      - {name: pool,   meter: time,  algorithm: token_bucket, capacity: 100, refill: 1/1m}
tenants:
  initech: {plan: held}
`

// ask sends one request and returns what came of it.
func (w *world) ask(t *testing.T, r Request) *Call {
	t.Helper()
	w.send(t, r)
	return &w.calls[len(w.calls)-1]
}

// aside is a hold of a minute.
func aside(meter string, units int64) Request {
	r := one("initech", meter, units)
	r.Kind, r.TTL = KindHold, time.Minute
	return r
}

// to is what answers a hold: with a cost, it settles.
func to(hold *Call, kind Kind, meter string, cost int64) Request {
	r := Request{Kind: kind, Tenant: "initech", Hold: hold.HoldID, Costs: map[string]int64{meter: cost}}
	if kind == KindSettle {
		r.Charges = []Charge{{Meter: meter, Cost: cost}}
	}
	if kind == KindExtend {
		r.TTL = 2 * time.Minute
	}
	return r
}

// hold makes a history in which holds end in every way, and units are given back.
func (w *world) hold(t *testing.T) {
	t.Helper()
	w.apply(t, holdConfig)
	used := w.ask(t, one("initech", "calls", 4)) // entry 1
	held := w.ask(t, aside("calls", 5).keyed("a"))
	w.send(t, aside("calls", 5).keyed("a"))
	w.send(t, one("initech", "calls", 2)) // denied: 4 are used and 5 held
	kept := w.ask(t, aside("time", 40))
	w.send(t, to(held, KindExtend, "calls", 0).keyed("b")) // entry 4
	w.db.AdvanceClock(t, 61*time.Second)
	settle := to(held, KindSettle, "calls", 6) // more than it set aside
	settle.Tag = "settle"
	w.send(t,
		settle, settle, // entry 6, after the expiry 5 of the other one
		one("initech", "calls", 1), // denied: 10 are used
		Request{Kind: KindReverse, Tenant: "initech", Seq: used.Receipt.Seq, Units: 3, Costs: map[string]int64{"calls": -3}}.keyed("c"),
		one("initech", "calls", 2),                              // entry 8
		one("initech", "time", 50),                              // entry 9, of 100 less 40
		one("initech", "time", 20),                              // denied: 90 are used
		to(kept, KindSettle, "time", 10),                        // entry 10: late, 30 of the expiry come back
		to(kept, KindRelease, "time", 0),                        // refused: it is settled
		one("initech", "time", 35),                              // entry 11
		aside("calls", 0), aside("calls", 0), aside("calls", 0), // entries 12 to 14
		aside("calls", 0), // denied: three places are taken
		one("initech", "calls", 1),
	)
	w.send(t, to(&w.calls[len(w.calls)-4], KindRelease, "calls", 0))
	w.send(t, aside("calls", 0))
}

// What quotad makes of holds and of what is given back must be found right, or the checks
// check something else.
func TestAnHonestHistoryOfHoldsHasNoFindings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hold(t)
	counts := Count(w.calls)
	if counts[OutcomeAllowed] != 18 || counts[OutcomeDenied] != 4 || counts[OutcomeRefused] != 1 {
		t.Errorf("outcomes = %v, want 18 allowed, 4 denied, 1 refused", counts)
		for i := range w.calls {
			t.Log(w.calls[i].Kind, w.calls[i].Outcome, w.calls[i].Charged, w.calls[i].Body)
		}
	}
	l := read(t, w.db.Owner(t))
	wantNone(t, l.CheckCalls(w.calls))
	wantNone(t, l.Check())
	if tally, want := l.Tally(w.calls), (Tally{Acknowledged: 16}); tally != want {
		t.Errorf("Tally = %+v, want %+v", tally, want)
	}
	if n := l.Lost(w.calls); n != 0 {
		t.Errorf("Lost = %d, want 0", n)
	}
}

func TestFaultsInHoldsAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.hold(t)
	w.wantAllFound(t, holdFaults)
	wantNone(t, read(t, w.db.Owner(t)).CheckCalls(w.calls))
}

const (
	heldEntries = " from quotad.account a where a.tenant = 'initech' and e.tenant_id = a.tenant_id"
	heldRows    = " from quotad.account a where a.tenant = 'initech' and x.tenant_id = a.tenant_id"
)

var holdFaults = []ledgerFault{
	{"over with what is held", lower("log", `{"limit": 8}`), "entry 2 takes 5 of limit log (sliding_log), which had used 4 of 8 and 0 held"},
	{"one place too many", lower("places", `{"limit": 2}`), "of limit places (concurrency), which had used 2 of 2"},
	{"held forgotten", "update quotad.entry e set limits_held = null" + heldEntries + " and e.seq = 6", "entry 6 says that 0 were held of limit log; it were 5"},
	{"held invented", "update quotad.entry e set limits_held = '{3,0}'" + heldEntries + " and e.seq = 1", "entry 1 says that 3 were held of limit log; it were 0"},
	{"hold that uses", "update quotad.entry e set units = 1" + heldEntries + " and e.seq = 2", "entry 2 holds, and uses units"},
	{"hold over before it began", "update quotad.entry e set effective_at = at" + heldEntries + " and e.seq = 2", "entry 2 holds, and uses units"},
	{"settle frees less", "update quotad.entry e set held = -4" + heldEntries + " and e.seq = 6", "entry 6 is a settle of 6 units and frees 4; the hold of entry 2 set 5 aside"},
	{"settle of another meter", "update quotad.entry e set ref_seq = 3" + heldEntries + " and e.seq = 6", "entry 6 answers entry 3, which is no hold of its meter"},
	{"settled twice", "update quotad.entry e set kind = 'settle', ref_seq = 2" + heldEntries + " and e.seq = 8", "entry 8 is a settle of the hold of entry 2, which a settle has ended"},
	{"release that uses", "update quotad.entry e set kind = 'release'" + heldEntries + " and e.seq = 6", "entry 6 is a release of 6 units"},
	{"expired before its end", "update quotad.entry e set kind = 'expire', limits_used = '{}'" + heldEntries + " and e.seq = 6", "entry 6 is a expire, and the hold of entry 2 is over: false"},
	{"expiry not charged", "update quotad.meter set on_expiry = 'release'", "entry 5 is a expire of 40 units"},
	{"expiry too late", "update quotad.entry e set effective_at = at + interval '1 s'" + heldEntries + " and e.seq = 4", "and the hold of entry 2 is over: true"},
	{"late settle gives too much back", "update quotad.entry e set units = -41" + heldEntries + " and e.seq = 10", "entry 10 settles the expired hold of entry 3 with -41 units"},
	{"gives back what was not used", "update quotad.entry e set units = -5" + heldEntries + " and e.seq = 7", "entry 7 gives back 1 units more than entry 1 used"},
	{"gives back from elsewhere", "update quotad.entry e set effective_at = at" + heldEntries + " and e.seq = 7", "entry 7 gives back from entry 1, and is on another meter"},
	{"gives back from nothing", "update quotad.entry e set ref_seq = 0" + heldEntries + " and e.seq = 7", "entry 7 gives back from entry 0"},
	{"counter's hold kept", "update quotad.meter_total x set held = 1" + heldRows, "the counter of meter calls for subject 0 is {"},
	{"counter's returns", "update quotad.meter_total x set returned = 0" + heldRows, "the counter of meter calls for subject 0 is {"},
}
