package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

// find returns the index of the first call that is as wanted.
func find(t *testing.T, calls []Call, want func(c *Call) bool) int {
	t.Helper()
	for i := range calls {
		if want(&calls[i]) {
			return i
		}
	}
	t.Fatal("the history has no such call")
	return 0
}

func allowed(c *Call) bool { return c.Outcome == OutcomeAllowed && !c.DryRun && c.Key == "" }
func denied(c *Call) bool  { return c.Outcome == OutcomeDenied && !c.DryRun && c.Key == "" }
func replay(c *Call) bool  { return c.Replayed }
func shaped(c *Call) bool  { return allowed(c) && c.DelayMS > 0 }

// Each fault is one changed record of what clients saw, on a ledger that is right: as
// if the instance had answered so.
func TestFaultsInAnswersAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.live(t)
	l := read(t, w.db.Owner(t))
	for _, tt := range []struct {
		name string
		is   func(c *Call) bool
		edit func(c *Call)
		want string
	}{
		{"not in the ledger", allowed, func(c *Call) { c.RequestID = uuid.New() }, "was allowed, and the answer is about request"},
		{"other hash", allowed, func(c *Call) { c.Receipt.Hash = "00" }, "was allowed, and the answer has a receipt whose hash"},
		{"other entry", allowed, func(c *Call) { c.Receipt.Seq++ }, "was allowed, and the answer names other entries"},
		{"other first entry", allowed, func(c *Call) { c.Receipt.FirstSeq-- }, "was allowed, and the answer names other entries"},
		{"other instant", allowed, func(c *Call) { c.At++ }, "was allowed at another instant"},
		{"other cost", allowed, func(c *Call) { c.Charged = map[string]int64{"calls": 9}; c.Costs = nil }, "was allowed for map[calls:9]"},
		{"cost not asked for", allowed, func(c *Call) { c.Costs = map[string]int64{"calls": 9} }, "asked for map[calls:9] and was charged"},
		{"other delay", shaped, func(c *Call) { c.DelayMS++ }, "was told to wait"},
		{"other tenant", allowed, func(c *Call) { c.Tenant = "globex" }, "was allowed, and the answer is about request"},
		{"no tenant", allowed, func(c *Call) { c.Tenant = "initech" }, "was decided, and there is no such tenant"},
		{"other subject", allowed, func(c *Call) { c.Subject = "eve" }, "was allowed, and its entry 1 is of call"},
		{"other call", allowed, func(c *Call) { c.Tag = "mine" }, "was allowed, and its entry 1 is of call"},
		{"asked by nobody", allowed, func(c *Call) { c.Tag = "mine" }, `entry 1 (call "call-1") was asked for by nobody`},
		{"denied and charged", allowed, func(c *Call) { c.Outcome = OutcomeDenied }, "was denied or a dry run, and its request"},
		{"refused and charged", allowed, func(c *Call) { c.Outcome = OutcomeRefused }, `entry 1 is of call "call-1", which was never allowed`},
		{"dry run charged", allowed, func(c *Call) { c.DryRun = true }, "was allowed or a dry run, and its request"},
		{"denied and it fitted", denied, func(c *Call) { c.At -= 3600 * 1e6 }, "and all of it fitted"},
		{"wrong by itself", denied, func(c *Call) { c.Fault = "no sense" }, "got an answer that is wrong by itself: no sense"},
		{"replayed without a key", denied, func(c *Call) { c.Replayed = true }, "got a replayed answer without a key"},
		{"two answers for a key", replay, func(c *Call) { c.BodyHash[0]++ }, "with the same key before"},
		{"answer not kept", replay, func(c *Call) { c.BodyHash[0]++ }, "another answer is kept for its key"},
		{"replay not marked", replay, func(c *Call) { c.Replayed = false }, "got two answers with its key that are not marked"},
		{"denied after allowed", replay, func(c *Call) { c.Outcome, c.RequestID = OutcomeDenied, uuid.New() }, "was denied after an answer had allowed it"},
	} {
		calls := slices.Clone(w.calls)
		i := find(t, calls, tt.is)
		tt.edit(&calls[i])
		t.Log(tt.name)
		wantFound(t, l.CheckCalls(calls), tt.want)
	}
}

// A caller who is charged twice for one call, with answers lost or not, is found by the
// call's tag alone.
func TestAnEntryTooManyIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, one("acme", "calls", 1).keyed("a"), one("acme", "calls", 1))
	w.calls[1].Tag, w.calls[1].Outcome = "a", OutcomeUnknown
	w.db.Exec(t, "update quotad.entry_dims set dims = json_build_object('"+TagDim+"', 'a')")
	l := read(t, w.db.Owner(t))
	wantFound(t, l.CheckCalls(w.calls), `entry 2 charges call "a" again`)
}

func TestAnAnswerThatNobodyGotIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, one("acme", "calls", 1), one("acme", "calls", 1))
	w.calls[1].Outcome = OutcomeUnknown
	l := read(t, w.db.Owner(t))
	wantNone(t, l.CheckCalls(w.calls))
	if n := l.Lost(w.calls); n != 1 {
		t.Errorf("Lost = %d, want 1", n)
	}
}

// A request id names one request in the whole database.
func TestARequestOfTwoTenantsIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, one("acme", "calls", 1), one("globex", "calls", 1))
	w.db.Exec(t, "alter table quotad.entry disable trigger append_only")
	w.db.Exec(t, "update quotad.entry set request_id = gen_random_uuid()")
	w.db.Exec(t, "update quotad.entry set request_id = (select request_id from quotad.entry limit 1)")
	wantFound(t, read(t, w.db.Owner(t)).CheckCalls(nil), "is also one of tenant")
}

// What one tenant has done wrong does not hide what another has.
func TestFindingsAreBoundedPerTenant(t *testing.T) {
	t.Parallel()
	f := newFindings()
	for range 1000 {
		f.add("acme", "wrong")
	}
	f.add("globex", "wrong")
	if len(f.lines) != findingsPerTenantMax+2 || f.lines[findingsPerTenantMax] != `tenant "acme": and more` {
		t.Errorf("got %d findings: %q", len(f.lines), f.lines)
	}
}

// A denial may stand before entries of the same instant: those do not justify nothing.
func TestADenialIsJustifiedByTheLedgerAtItsInstant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, one("acme", "mail", 3), one("acme", "mail", 1), one("acme", "logins", 3).of("eve"))
	w.db.AdvanceClock(t, 7*time.Second)
	w.send(t, one("acme", "mail", 1))
	l := read(t, w.db.Owner(t))
	wantNone(t, l.CheckCalls(w.calls))
	w.calls[1].At += 7_000_000
	wantNone(t, l.CheckCalls(w.calls)) // the last call has taken what had come back
	w.calls[1].At += 7_000_000
	wantFound(t, l.CheckCalls(w.calls), "and all of it fitted")
}

// Where the clock falls back, what is given back after a denial is dated before it.
func TestADenialBeforeTheClockFellBackIsJustified(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.send(t, one("globex", "calls", 5))
	w.db.AdvanceClock(t, 3*time.Second)
	w.send(t, one("globex", "calls", 1))
	w.db.AdvanceClock(t, -time.Hour)
	used := w.calls[0]
	w.send(t, Request{
		Kind: KindReverse, Tenant: "globex", Seq: used.Receipt.Seq, Units: 3, Costs: map[string]int64{"calls": -3},
	}.keyed("back"))
	w.calls[1].ClockOff = time.Hour
	l := read(t, w.db.Owner(t))
	wantNone(t, l.CheckCalls(w.calls))
	w.calls[1].Started = w.calls[2].end().Add(1) // it knew of what was given back
	wantFound(t, l.CheckCalls(w.calls), "and all of it fitted")
}
