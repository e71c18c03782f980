package quota

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
)

const denialConfig = `
meters:
  calls: {unit: call}
plans:
  none:
    limits:
      - {name: off, meter: calls, algorithm: sliding_log, limit: 0, window: 1h}
tenants:
  acme: {plan: none}
`

func denied(n int) deniedCall {
	return deniedCall{decision: Decision{
		Reason: ReasonBlocked, DecidedAt: time.Unix(int64(n), 0).UTC(), RequestID: uuid.UUID{1, byte(n >> 8), byte(n)},
		Limits: []LimitResult{{Name: "off", Violated: true}},
	}}
}

// Several instances that deny the same tenant at once lose no count and keep the newest.
func TestInstancesCountDenialsTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, denialConfig)
	store := NewDenialStore(w.db.Service(t))
	var group errgroup.Group
	for range 3 {
		e := w.engine(t, nil)
		for range 4 {
			group.Go(func() error {
				for range 50 {
					if _, err := e.Decide(t.Context(), Request{Tenant: "acme", Charges: []Charge{{Meter: "calls", Cost: 1}}}); err != nil {
						return err
					}
				}
				return e.FlushDenials(t.Context())
			})
		}
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"", "off"} {
		counts, err := store.Counts(t.Context(), DenialCountQuery{Tenant: "acme", LimitName: limit, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		total := int64(0)
		for _, c := range counts {
			total += c.Denials
		}
		if total != 600 {
			t.Errorf("counts of limit %q sum to %d, want 600", limit, total)
		}
	}
}

// The end of an engine writes what it denied.
func TestDenialsAreWrittenBeforeAnEngineEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, denialConfig)
	e, stop := w.stoppableEngine(t, nil)
	d, err := e.Decide(t.Context(), Request{Tenant: "acme", Subject: "u", Charges: []Charge{{Meter: "calls", Cost: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	stop()
	kept, err := NewDenialStore(w.db.Service(t)).Denial(t.Context(), "acme", d.RequestID)
	if err != nil {
		t.Fatal(err)
	}
	want, err := d.JSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err := kept.Decision.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("kept answer, want-, got+:\n%s", diff)
	}
	if _, err := NewDenialStore(w.db.Service(t)).Denial(t.Context(), "acme", uuid.New()); !errors.Is(err, ErrDenialNotFound) {
		t.Errorf("error of an unknown request = %v, want ErrDenialNotFound", err)
	}
}

// A flood of denials stays within bounds in memory and in the database, and what is
// kept is the newest.
func TestDenialsKeptAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, denialConfig)
	w.db.SetClock(t, time.Unix(5000, 0)) // of the time of the denials: none is old
	e := w.engine(t, nil)
	r := newRunner(e)
	t.Cleanup(r.close)
	tenant, err := w.catalog.Tenant(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := w.catalog.Plan(t.Context(), "none")
	if err != nil {
		t.Fatal(err)
	}
	const writes = denialsKept/denialsPerWrite + 2
	for write := range writes {
		g := newGatheredDenials()
		for i := range 2 * denialsPerWrite {
			call := denied(write*2*denialsPerWrite + i)
			call.plan = plan
			g.add(tenant.ID, call)
		}
		if g.size != denialsPerWrite {
			t.Fatalf("%d denials of one tenant are gathered, want %d", g.size, denialsPerWrite)
		}
		if err := r.writeDenials(t.Context(), &g); err != nil {
			t.Fatal(err)
		}
	}
	store := NewDenialStore(w.db.Service(t))
	kept, err := store.Denials(t.Context(), DenialQuery{Tenant: "acme", Limit: DenialsPageMax})
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != denialsKept {
		t.Errorf("%d denials are kept, want %d", len(kept), denialsKept)
	}
	if newest := time.Unix(writes*2*denialsPerWrite-1, 0).UTC(); !kept[0].At.Equal(newest) {
		t.Errorf("the newest kept is of %v, want %v", kept[0].At, newest)
	}
	g := newGatheredDenials()
	for tenantID := range int64(denialsGathered + 10) {
		g.add(tenantID, denied(1))
	}
	if g.size != denialsGathered {
		t.Errorf("%d denials are gathered, want at most %d", g.size, denialsGathered)
	}
}

// What a failed write took comes back in its order and within bounds.
func TestDenialsThatWereNotWrittenArePutBack(t *testing.T) {
	t.Parallel()
	older, newer := newGatheredDenials(), newGatheredDenials()
	for i := range denialsPerWrite {
		older.add(1, denied(i))
	}
	newer.add(1, denied(1000))
	newer.putBack(older)
	last := newer.last[1]
	if len(last) != denialsPerWrite || newer.size != denialsPerWrite {
		t.Fatalf("%d are kept, size %d, want %d", len(last), newer.size, denialsPerWrite)
	}
	if first, end := last[0].decision.DecidedAt.Unix(), last[len(last)-1].decision.DecidedAt.Unix(); first != 1 || end != 1000 {
		t.Errorf("kept from %d to %d, want 1 to 1000", first, end)
	}
	if got := newer.counts[denialCountKey{tenantID: 1, reason: ReasonBlocked}]; got != 60 {
		t.Errorf("count of the first minute = %d, want 60", got)
	}
}

// Denials leave after their retention; younger ones stay.
func TestOldDenialsAreDeleted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, denialConfig)
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	w.db.SetClock(t, now)
	e := w.engine(t, nil)
	for _, age := range []time.Duration{0, time.Hour, denialsRetention - time.Hour} {
		w.db.SetClock(t, now.Add(age))
		if _, err := e.Decide(t.Context(), Request{Tenant: "acme", Charges: []Charge{{Meter: "calls", Cost: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.FlushDenials(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.db.SetClock(t, now.Add(denialsRetention+2*time.Hour))
	r := newRunner(e)
	t.Cleanup(r.close)
	if err := e.denials.prune(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	store := NewDenialStore(w.db.Service(t))
	kept, err := store.Denials(t.Context(), DenialQuery{Tenant: "acme", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	counts, err := store.Counts(t.Context(), DenialCountQuery{Tenant: "acme", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	if len(kept) != 1 || len(counts) != 1 {
		t.Errorf("%d denials and %d counts are left, want 1 and 1", len(kept), len(counts))
	}
}
