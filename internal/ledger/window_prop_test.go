package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// A window's usage is a subtraction of two running totals, so a wrong edge is a wrong
// decision. Both reads are compared with sums over every entry there is.

// drawInstants draws instants in order: around the borders of partitions, some of them
// twice, and a microsecond apart.
func drawInstants(t *rapid.T) []time.Time {
	at := march.Add(-2 * time.Microsecond)
	steps := rapid.SliceOfN(rapid.SampledFrom([]time.Duration{
		0, 0, time.Microsecond, time.Microsecond, time.Hour, april.Sub(march), 11 * 24 * time.Hour,
	}), 1, 12).Draw(t, "steps")
	instants := make([]time.Time, len(steps))
	for i, step := range steps {
		if at = at.Add(step); at.After(may) {
			at = may
		}
		instants[i] = at
	}
	return instants
}

// drawHistory writes a random history of a new tenant.
func (w *world) drawHistory(t *testing.T, rt *rapid.T, tenant string) *journal {
	j := w.journal(t, tenant)
	var drafts []draft
	for _, at := range drawInstants(rt) {
		drafts = append(drafts, draft{
			at:      at,
			meter:   rapid.SampledFrom([]string{"calls", "calls", "tokens"}).Draw(rt, "meter"),
			subject: rapid.SampledFrom([]string{"", "user-1", "user-1", "user-2"}).Draw(rt, "subject"),
			units:   rapid.SampledFrom([]int64{0, 1, 1, 2, 5, 1000}).Draw(rt, "units"),
		})
	}
	j.write(t, drafts...)
	return j
}

// drawBorder draws an instant at, just before or just after one that matters.
func (j *journal) drawBorder(t *rapid.T, label string) time.Time {
	instants := []time.Time{march, april, may}
	for _, p := range j.postings {
		instants = append(instants, p.At)
	}
	at := rapid.SampledFrom(instants).Draw(t, label)
	return at.Add(rapid.SampledFrom([]time.Duration{
		0, -time.Microsecond, time.Microsecond, -time.Hour, time.Hour,
	}).Draw(t, label+" off by"))
}

func (j *journal) drawSubject(t *rapid.T) string {
	return rapid.SampledFrom([]string{"", "", "user-1", "user-2", "never seen"}).Draw(t, "of subject")
}

func TestEdgesEqualASumOverEveryEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		journals := []*journal{w.drawHistory(t, rt, fmt.Sprint("one-", n)), w.drawHistory(t, rt, fmt.Sprint("two-", n))}
		clock := journals[0].drawBorder(rt, "clock")
		w.db.SetClock(t, clock)
		var queries []EdgeQuery
		var want []Edge
		for range rapid.IntRange(1, 10).Draw(rt, "queries") {
			j := rapid.SampledFrom(journals).Draw(rt, "tenant")
			meter, subject := rapid.SampledFrom([]string{"calls", "tokens"}).Draw(rt, "meter"), j.drawSubject(rt)
			now := clock
			if j.account.LastAt.After(now) {
				now = j.account.LastAt // a clock that fell back stands still for the tenant
			}
			start := j.drawBorder(rt, "start")
			q := EdgeQuery{TenantID: j.account.TenantID, MeterID: w.meters[meter], Subject: subject, Start: start}
			if rapid.Bool().Draw(rt, "sliding") {
				q.Start, q.Lookback = time.Time{}, now.Sub(start)
			}
			queries, want = append(queries, q), append(want, j.edge(meter, subject, start, now))
		}
		var at *time.Time
		if rapid.Bool().Draw(rt, "clock was read before") {
			at = &clock
			w.db.SetClock(t, may) // must not be read again
		}
		got := make([]Edge, len(queries))
		var gotClock Clock
		send(t, w.session, func(b *pgx.Batch) {
			QueueEdges(b, at, queries, func(c Clock) { gotClock = c }, func(i int, e Edge) { got[i] = e })
		})
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatalf("edges of %+v at %v (-want +got):\n%s\n%v\n%v", queries, clock, diff, journals[0], journals[1])
		}
		if !gotClock.At.Equal(clock) || gotClock.CatalogVersion != 0 {
			rt.Fatalf("clock = %+v, want %v and version 0", gotClock, clock)
		}
	})
}

// edge sums what was used before a window, and looks for an entry in it.
func (j *journal) edge(meter, subject string, start, now time.Time) (edge Edge) {
	var before int64
	for i := range j.postings {
		e := &j.postings[i].Entry
		switch {
		case !counted(e, meter, subject):
		case e.At.Before(start):
			before += e.Units
		case !e.At.After(now):
			edge.Found = true
		}
	}
	if edge.Found {
		edge.Before = before
	}
	return edge
}

// The clock's own row is there without a question, too: it is how readiness is known.
func TestTheClockIsReadWithoutAQuestion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.SetClock(t, march)
	w.db.Exec(t, "update quotad.catalog_version set version = 7")
	var got Clock
	send(t, w.session, func(b *pgx.Batch) { QueueEdges(b, nil, nil, func(c Clock) { got = c }, nil) })
	if !got.At.Equal(march) || got.CatalogVersion != 7 {
		t.Errorf("clock = %+v, want %v and version 7", got, march)
	}
}

func TestCrossingsEqualAScanOfEveryEntry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		journals := []*journal{w.drawHistory(t, rt, fmt.Sprint("one-", n)), w.drawHistory(t, rt, fmt.Sprint("two-", n))}
		var queries []CrossingQuery
		var want []int64
		for range 10 {
			j := rapid.SampledFrom(journals).Draw(rt, "tenant")
			meter, subject := rapid.SampledFrom([]string{"calls", "tokens"}).Draw(rt, "meter"), j.drawSubject(rt)
			lo, hi := j.drawBorder(rt, "lo"), j.drawBorder(rt, "hi")
			least, most := j.totalAt(meter, subject, lo), j.totalAt(meter, subject, hi)
			if !lo.Before(hi) || least >= most {
				continue // not a question: it is reached before lo, or not until hi
			}
			target := rapid.OneOf(rapid.Int64Range(least+1, most), rapid.SampledFrom([]int64{least + 1, most})).Draw(rt, "target")
			queries = append(queries, CrossingQuery{
				TenantID: j.account.TenantID, MeterID: w.meters[meter], SubjectID: j.subjects[subject].SubjectID,
				LoMicros: lo.UnixMicro(), HiMicros: hi.UnixMicro(), Target: target,
			})
			want = append(want, j.crossing(meter, subject, target))
		}
		got := make([]int64, len(queries))
		send(t, w.session, func(b *pgx.Batch) {
			QueueCrossings(b, queries, func(i int, atMicros int64) { got[i] = atMicros })
		})
		if diff := cmp.Diff(want, got); len(want) > 0 && diff != "" {
			rt.Fatalf("crossings of %+v (-want +got):\n%s\n%v\n%v", queries, diff, journals[0], journals[1])
		}
	})
}

// totalAt is the running total after every entry up to an instant.
func (j *journal) totalAt(meter, subject string, at time.Time) (total int64) {
	for i := range j.postings {
		if e := &j.postings[i].Entry; counted(e, meter, subject) && !e.At.After(at) {
			total += e.Units
		}
	}
	return total
}

// crossing is the instant of the first entry with which target is reached.
func (j *journal) crossing(meter, subject string, target int64) int64 {
	var total int64
	for i := range j.postings {
		e := &j.postings[i].Entry
		if !counted(e, meter, subject) {
			continue
		}
		if total += e.Units; total >= target {
			return e.At.UnixMicro()
		}
	}
	panic("asked for a total that is never reached")
}

// A span of one microsecond has one answer, and a longer one is halved some fifty times.
func TestCrossingsOfTheShortestAndTheLongestSpan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.journal(t, "acme")
	at := march.Add(time.Hour)
	j.write(t, draft{at: at, meter: "calls", units: 3})
	var got []int64
	var queries []CrossingQuery
	for _, span := range [][2]int64{{at.UnixMicro() - 1, at.UnixMicro()}, {0, 253_402_300_799_999_999}} {
		queries = append(queries, CrossingQuery{
			TenantID: j.account.TenantID, MeterID: w.meters["calls"], LoMicros: span[0], HiMicros: span[1], Target: 3,
		})
	}
	send(t, w.session, func(b *pgx.Batch) {
		QueueCrossings(b, queries, func(_ int, atMicros int64) { got = append(got, atMicros) })
		QueueCrossings(b, nil, nil) // asks nothing
	})
	if diff := cmp.Diff([]int64{at.UnixMicro(), at.UnixMicro()}, got); diff != "" {
		t.Errorf("crossings (-want +got):\n%s", diff)
	}
}
