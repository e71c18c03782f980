package quota

import (
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/ledger"
)

const chargingConfig = `
meters: {calls: {unit: call, on_expiry: charge}}
plans: {p: {limits: [{name: ten, meter: calls, algorithm: sliding_log, limit: 10, window: 1h}]}}
tenants: {acme: {plan: p}}`

// A window that was seen empty is not taken for an empty one where it begins earlier: that
// would admit everything again after a clock fell back.
func TestAClockThatFallsBackFindsWhatItsWindowHolds(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w := newWorldAt(t, start, chargingConfig)
	e := w.engine(t, func(c *Config) { *c = c.WithoutUpkeep() })
	mustDecide(t, e, consume("acme", "calls", 10))
	w.db.SetClock(t, start.Add(2*time.Hour))
	look := consume("acme", "calls", 1)
	look.DryRun = true
	if d := mustDecide(t, e, look); !d.Allowed {
		t.Fatalf("two hours later: got %+v, want allowed", d)
	}
	w.db.SetClock(t, start.Add(30*time.Minute))
	if d := mustDecide(t, e, consume("acme", "calls", 1)); d.Allowed || d.Limits[0].Used != 10 {
		t.Errorf("with the clock back in the window: got %+v, want denied with 10 used", d)
	}
	w.verify(t)
}

// A level that was carried to another version of its plan, and not written, is not taken for
// one of before.
func TestAClockThatFallsBackFindsItsLevel(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	config := func(burst int) string {
		return fmt.Sprintf("meters: {calls: {unit: call}}\nplans: {pro: {limits: [{name: slow, meter: calls, algorithm: gcra, rate: 1/1h, burst: %d}]}}\n"+
			"tenants: {acme: {plan: pro}}\n", burst)
	}
	w := newWorldAt(t, start, config(3))
	e := w.engine(t, func(c *Config) { *c = c.WithoutUpkeep() })
	mustDecide(t, e, consume("acme", "calls", 2))
	w.apply(t, config(6))
	for _, want := range []struct {
		after time.Duration
		used  int64
	}{{3 * time.Hour, 2}, {30 * time.Minute, 5}} { // what is left is carried: 1 of 3, then of 6
		w.db.SetClock(t, start.Add(want.after))
		d, err := e.Limits(t.Context(), "acme", "")
		if err != nil || d.Limits[0].Used != want.used {
			t.Errorf("at %s: got %+v, %v, want %d used", want.after, d.Limits, err, want.used)
		}
	}
}

// An expiry that is noticed late is entered at the end of its hold. It leaves the window
// from there, not from when it was noticed: else a limit denies what it has room for.
func TestAnExpiryLeavesItsWindowFromItsOwnInstant(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w := newWorldAt(t, start, chargingConfig)
	e := w.engine(t, func(c *Config) { *c = c.WithoutUpkeep() })
	hold := consume("acme", "calls", 10)
	hold.Kind, hold.TTL = ledger.KindHold, 2*time.Hour
	mustDecide(t, e, hold)
	look := consume("acme", "calls", 0)
	look.DryRun = true
	w.db.SetClock(t, start.Add(150*time.Minute))
	if d := mustDecide(t, e, look); d.Limits[0].Used != 10 {
		t.Fatalf("half an hour after the hold's end: got %+v, want 10 used", d)
	}
	w.db.SetClock(t, start.Add(190*time.Minute))
	if d := mustDecide(t, e, consume("acme", "calls", 10)); !d.Allowed {
		t.Errorf("70 minutes after the hold's end: got %+v, want allowed", d)
	}
	w.verify(t)
}

// A memory is of one entry: not of a later one, and not of another one with its number, as
// there may be after a restore from a backup or a failover that lost commits.
func TestAMemoryIsOfOneEntryNotOfItsNumber(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		seq  int64
		hash [32]byte
		used bool
	}{{7, [32]byte{1}, true}, {7, [32]byte{2}, false}, {8, [32]byte{3}, false}} {
		kept := &memory{seq: 7, headHash: [32]byte{1}, book: newBook(nil, nil)}
		work := &tenantWork{memory: kept, book: kept.book, account: ledger.Account{Seq: tt.seq, HeadHash: tt.hash}}
		work.confirm(0)
		if used := work.book == kept.book; used != tt.used {
			t.Errorf("with entry %d and hash %d.. the memory of 7 and 1.. is used: %t", tt.seq, tt.hash[0], used)
		}
	}
}
