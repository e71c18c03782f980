package quota

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const memoryConfig = `
meters: {calls: {unit: call}}
plans:
  p:
    limits:
      - {name: log, meter: calls, algorithm: sliding_log, limit: 100, window: 1m}
      - {name: bucket, meter: calls, algorithm: token_bucket, capacity: 1000, refill: 1/1h}
tenants: {acme: {plan: p}}`

// rounds counts the round trips of an engine's transactions, and those that read what is
// counted.
type rounds struct {
	mu           sync.Mutex
	trips, reads int
}

func (r *rounds) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(data.Batch.QueuedQueries) > 0 && strings.HasPrefix(data.Batch.QueuedQueries[0].SQL, "select quotad.decision_clock") {
		return ctx // a probe
	}
	r.trips++
	for _, q := range data.Batch.QueuedQueries {
		if strings.Contains(q.SQL, "from quotad.entry") || strings.Contains(q.SQL, "from quotad.meter_total") {
			r.reads++
		}
	}
	return ctx
}

func (r *rounds) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (r *rounds) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}
func (r *rounds) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData)     {}
func (r *rounds) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// of returns the round trips and the reads of what is counted that f makes.
func (r *rounds) of(f func()) (trips, reads int) {
	r.mu.Lock()
	trips, reads = r.trips, r.reads
	r.mu.Unlock()
	f()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.trips - trips, r.reads - reads
}

func (w *world) traced(t *testing.T) (*Engine, *rounds) {
	t.Helper()
	r := new(rounds)
	e := w.engine(t, func(c *Config) {
		c.Workers = 1
		c.Database.Tracer = r
		*c = c.WithoutUpkeep()
	})
	return e, r
}

var memoryStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// What the last batch knew is not read again while the tenant's newest entry is the same.
func TestWhatIsKnownOfATenantIsNotReadAgain(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, memoryStart, memoryConfig)
	e, rounds := w.traced(t)
	mustDecide(t, e, consume("acme", "calls", 1))
	for i := range 3 {
		trips, reads := rounds.of(func() { mustDecide(t, e, consume("acme", "calls", 1)) })
		if trips != 2 || reads != 0 {
			t.Errorf("decision %d made %d round trips and read what is counted %d times, want 2 and never", i, trips, reads)
		}
	}
	// Where the first entry has left the window, its edge is another, and is read.
	w.db.SetClock(t, memoryStart.Add(time.Minute))
	_, reads := rounds.of(func() {
		if d := mustDecide(t, e, consume("acme", "calls", 1)); d.Limits[0].Used != 1 {
			t.Errorf("a minute later %d are used, want 1", d.Limits[0].Used)
		}
	})
	if reads == 0 {
		t.Error("the edge of a window that has moved on was not read")
	}
	w.verify(t)
}

// What another instance entered is seen, whatever is remembered; and where others write all
// the time, reads travel with the lock instead of following it.
func TestAMemoryThatNoLongerHoldsIsNotUsed(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, memoryStart, memoryConfig)
	one, rounds := w.traced(t)
	other := w.engine(t, nil)
	for used := int64(1); used <= 20; used += 2 {
		var trips int
		trips, _ = rounds.of(func() {
			if d := mustDecide(t, one, consume("acme", "calls", 1)); d.Limits[0].Used != used {
				t.Fatalf("%d are used, want %d", d.Limits[0].Used, used)
			}
		})
		if used > 3 && trips > 2 {
			t.Errorf("with %d used a decision made %d round trips, want 2", used, trips)
		}
		if d := mustDecide(t, other, consume("acme", "calls", 1)); d.Limits[0].Used != used+1 {
			t.Fatalf("%d are used, want %d", d.Limits[0].Used, used+1)
		}
	}
	w.verify(t)
}

// Alone again, an instance trusts what it remembers after a while.
func TestDoubtPasses(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, memoryStart, memoryConfig)
	e, rounds := w.traced(t)
	other, stop := w.stoppableEngine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 1))
	mustDecide(t, other, consume("acme", "calls", 1))
	stop()
	for range doubtMin + 1 {
		mustDecide(t, e, consume("acme", "calls", 1))
	}
	if trips, reads := rounds.of(func() { mustDecide(t, e, consume("acme", "calls", 1)) }); trips != 2 || reads != 0 {
		t.Errorf("a decision made %d round trips and read what is counted %d times, want 2 and never", trips, reads)
	}
}

// A commit that failed leaves nothing behind that the next batch would rely on.
func TestAFailedCommitIsNotRemembered(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, memoryStart, memoryConfig)
	w.db.Exec(t, `create table public.failing (fails boolean);
		create function public.fail() returns trigger language plpgsql as $$ begin
			if new.units = 7 then raise check_violation using constraint = 'planted'; end if;
			return new; end $$;
		create trigger fail before insert on quotad.entry for each row execute function public.fail()`)
	e, _ := w.traced(t)
	mustDecide(t, e, consume("acme", "calls", 1))
	if d, err := e.Decide(t.Context(), consume("acme", "calls", 7)); err == nil {
		t.Fatalf("the planted fault did not strike: %+v", d)
	}
	if d := mustDecide(t, e, consume("acme", "calls", 1)); d.Limits[0].Used != 2 || d.Limits[1].Used != 2 {
		t.Errorf("used are %d and %d, want 2 and 2", d.Limits[0].Used, d.Limits[1].Used)
	}
	w.verify(t)
}

func TestMemoriesAreBounded(t *testing.T) {
	t.Parallel()
	var m memories
	for i := range 3 * memoriesMax {
		m.keep(fmt.Sprint(i), new(memory))
	}
	if n := len(m.young) + len(m.old); n > 2*memoriesMax {
		t.Errorf("%d memories are kept, want at most %d", n, 2*memoriesMax)
	}
	last := fmt.Sprint(3*memoriesMax - 1)
	if m.take(last) == nil || m.take(last) != nil {
		t.Error("the newest memory cannot be taken once")
	}
	if m.take("0") != nil {
		t.Error("the oldest memory is still there")
	}
}
