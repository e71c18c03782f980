package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/spool"
)

// charging2 is a tenant's request of several charges.
func charging2(tenant string, charges ...Charge) Request {
	return Request{Tenant: tenant, Charges: charges}
}

func containing(text string) func(string) bool {
	return func(s string) bool { return strings.Contains(s, text) }
}

func wantGauge(t testing.TB, e *Engine, want int) {
	t.Helper()
	if got := e.degraded.pending(); got != want {
		t.Errorf("%d grants are pending, want %d", got, want)
	}
}

// awaitPosted waits until every grant of an engine is in the ledger.
func (w *world) awaitPosted(t testing.TB, e *Engine) {
	t.Helper()
	awaitReach(t, e, "caught up", func() bool { return e.degraded.pending() == 0 })
}

// adjusted returns the request ids of a tenant's adjust entries, with how often each has
// some.
func (w *world) adjusted(t testing.TB, tenant string) map[uuid.UUID]int {
	t.Helper()
	found := make(map[uuid.UUID]int)
	for _, entry := range w.entries(t, tenant) {
		if entry.Kind == ledger.KindAdjust {
			found[entry.RequestID]++
		}
	}
	return found
}

func wantOnce(t testing.TB, got map[uuid.UUID]int, want map[uuid.UUID]bool) {
	t.Helper()
	for id, n := range got {
		if n != 1 || !want[id] {
			t.Errorf("%s stands %d times in the ledger, and was granted: %t", id, n, want[id])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d of %d grants are in the ledger", len(got), len(want))
	}
}

// openSpool opens a directory of grants for the test.
func openSpool(t testing.TB, dir string) *spool.Spool {
	t.Helper()
	kept, err := spool.Open(dir, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kept.Close() })
	return kept
}

// cutOff starts an engine on a directory of grants that met all tenants, and whose
// database is away until heal.
func (w *world) cutOff(t *testing.T, kept *spool.Spool, faults *pgtest.Faults) (e *Engine, stop, heal func()) {
	t.Helper()
	e, stop = w.stoppableEngine(t, func(c *Config) {
		hasty(c)
		c.Spool = kept
		faults.Attach(&c.Database.Config)
	})
	t.Cleanup(stop)
	meet(t, e)
	w.awaitPosted(t, e)
	faults.Refuse(errors.New("nobody there"))
	faults.CutAll()
	e.Suspect()
	awaitAway(t, e)
	return e, stop, func() {
		faults.Refuse(nil)
		awaitBack(t, e)
	}
}

// Whatever dies between a grant and its entry, the ledger has it once: with its file left
// behind, with the reply to its commit lost, with a write cut short behind it, and over a
// restart.
func TestGrantsBecomeEntriesExactlyOnceThroughCrashes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	dir := t.TempDir()
	granted := make(map[uuid.UUID]bool)
	var faults pgtest.Faults
	kept := openSpool(t, dir)
	e, stop, _ := w.cutOff(t, kept, &faults)
	for i := range 5 {
		r := consume("allows", "calls", 1)
		r.Dims = map[string]string{"model": "small"}
		if i%2 == 0 {
			r.Key = fmt.Sprint("key-", i)
		}
		granted[mustDecide(t, e, r).RequestID] = true
	}
	stop() // the instance dies with the database away
	faults.Refuse(nil)
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	tear(t, dir)

	// It comes back, enters the grants, one commit's reply is lost, and it dies before it
	// has removed the file.
	kept = openSpool(t, dir)
	batch, err := kept.Oldest()
	if err != nil || len(batch.Records) != len(granted) {
		t.Fatalf("Oldest = %+v, %v; want the %d grants and not the torn one", batch, err, len(granted))
	}
	var grants []*grant
	for _, record := range batch.Records {
		one, err := readGrant(record)
		if err != nil {
			t.Fatal(err)
		}
		grants = append(grants, one)
	}
	second := w.engine(t, func(c *Config) {
		hasty(c)
		faults.Attach(&c.Database.Config)
	})
	mustDecide(t, second, consume("allows", "calls", 0))
	struck := faults.Arm(pgtest.Fault{OnStatement: commitRound, Deliver: true})
	if err := errors.Join(second.adjust(t.Context(), grants)...); err != nil {
		t.Fatal(err)
	}
	<-struck
	wantOnce(t, w.adjusted(t, "allows"), granted)

	third := w.engine(t, func(c *Config) {
		hasty(c)
		c.Spool = kept
	})
	w.awaitPosted(t, third)
	wantOnce(t, w.adjusted(t, "allows"), granted)
	for _, entry := range w.entries(t, "allows") {
		if entry.Kind == ledger.KindAdjust && (entry.Units != 1 || entry.Dims["model"] != "small" || entry.Dims[grantedAtDim] == "") {
			t.Errorf("an entry of a grant is %+v", entry)
		}
	}
	w.verify(t)
}

// tear leaves what a crash in the middle of a write does.
func tear(t *testing.T, dir string) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "*.records"))
	if err != nil || len(names) != 1 {
		t.Fatalf("files %v, %v; want one", names, err)
	}
	file, err := os.OpenFile(names[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`0a1b2c3d {"request_id":"01a22c6f`); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

// A retry of a request that the ledger allowed before the outage is in it already; a key
// that stands for another request there does not make a grant vanish.
func TestAGrantWhoseKeyTheLedgerKnowsIsNotRecordedTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	e := w.engine(t, hasty)
	r := consume("allows", "calls", 1)
	r.Key = "order-1"
	mustDecide(t, e, r)
	r.Key = "order-2"
	mustDecide(t, e, r)
	var faults pgtest.Faults
	cut, _, heal := w.cutOff(t, openSpool(t, t.TempDir()), &faults)
	r.Key = "order-1"
	mustDecide(t, cut, r)
	other := consume("allows", "calls", 7)
	other.Key = "order-2"
	d := mustDecide(t, cut, other)
	heal()
	w.awaitPosted(t, cut)
	wantOnce(t, w.adjusted(t, "allows"), map[uuid.UUID]bool{d.RequestID: true})
	w.verify(t)
}

// A retry after the outage gets the answer of then from the instance that gave it, also
// before the ledger knows of it, and another request under the key is refused.
func TestARetryGetsTheGrantsAnswerBeforeTheLedgerHasIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	var faults pgtest.Faults
	e, _, heal := w.cutOff(t, openSpool(t, t.TempDir()), &faults)
	r := consume("allows", "calls", 3)
	r.Key = "order-1"
	granted := mustDecide(t, e, r)
	outsider := w.db.Hold(t, "allows") // the grant cannot be entered
	heal()
	for name, d := range map[string]Decision{"alone": mustDecide(t, e, r), "of a batch": e.DecideAll(t.Context(), []Request{r})[0].Decision} {
		if !d.Replayed || d.RequestID != granted.RequestID || !d.Degraded {
			t.Errorf("the retry, %s, got %+v, want the grant's answer", name, d)
		}
	}
	other := consume("allows", "calls", 1)
	other.Key = "order-1"
	_, err := e.Decide(t.Context(), other)
	wantCode(t, err, CodeKeyReused)
	if err := outsider.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.awaitPosted(t, e)
	wantOnce(t, w.adjusted(t, "allows"), map[uuid.UUID]bool{granted.RequestID: true})
	if d := mustDecide(t, e, r); !d.Replayed {
		t.Errorf("the retry behind the entry got %+v", d)
	}
	w.verify(t)
}

// What the ledger will never take is kept for a person, loudly, and holds nothing up.
func TestAGrantThatCannotBeEnteredIsSetAside(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	dir := t.TempDir()
	kept := openSpool(t, dir)
	for _, record := range []string{
		`{"request_id":"01a22c6f-cd9b-7e84-b799-1dc007330243","at":"2026-03-01T12:00:00Z","tenant":"allows","charges":[{"meter":"gone","cost":1}]}`,
		`not JSON`,
		`{"request_id":"01a22c6f-cd9b-7e84-b799-1dc007330244","at":"2026-03-01T12:00:00Z","tenant":"allows","charges":[{"meter":"calls","cost":1}]}`,
	} {
		if err := kept.Append([]byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	e := w.engine(t, func(c *Config) {
		hasty(c)
		c.Spool = kept
	})
	w.awaitPosted(t, e)
	wantOnce(t, w.adjusted(t, "allows"), map[uuid.UUID]bool{uuid.MustParse("01a22c6f-cd9b-7e84-b799-1dc007330244"): true})
	text, err := os.ReadFile(filepath.Join(dir, "set-aside.jsonl"))
	if err != nil || strings.Count(string(text), "\n") != 2 || !strings.Contains(string(text), "gone") {
		t.Errorf("set aside: %s, %v", text, err)
	}
	if warnings := strings.Join(e.Health().Warnings, "\n"); !strings.Contains(warnings, "set-aside.jsonl") {
		t.Errorf("health warns of %q, want of what was set aside", warnings)
	}
	w.verify(t)
}

// A database that comes and goes: no share is granted anew, every grant is in the ledger
// once, and between the outages decisions are the ledger's.
func TestAFlappingDatabaseGrantsNoShareTwiceAndLosesNoGrant(t *testing.T) {
	t.Parallel()
	w := newWorld(t, awayConfig)
	var faults pgtest.Faults
	e, _, heal := w.cutOff(t, openSpool(t, t.TempDir()), &faults)
	local, free := make(map[uuid.UUID]bool), make(map[uuid.UUID]bool)
	for range 4 {
		for range 2 {
			if d := mustDecide(t, e, consume("locals", "calls", 1)); d.Allowed {
				local[d.RequestID] = true
			}
			free[mustDecide(t, e, consume("allows", "calls", 1)).RequestID] = true
		}
		heal()
		if d, err := e.Decide(context.WithoutCancel(t.Context()), consume("denies", "calls", 1)); err != nil || d.Degraded {
			t.Errorf("between two outages: %+v, %v", d, err)
		}
		faults.Refuse(errors.New("nobody there"))
		faults.CutAll()
		e.Suspect()
		awaitAway(t, e)
	}
	heal()
	w.awaitPosted(t, e)
	if len(local) != 3 {
		t.Errorf("%d were granted of a share of 3", len(local))
	}
	wantOnce(t, w.adjusted(t, "locals"), local)
	wantOnce(t, w.adjusted(t, "allows"), free)
	w.verify(t)
}
