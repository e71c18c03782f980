package ledger

import (
	"fmt"
	"slices"
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
	j.drawCorrections(t, rt)
	return j
}

// drawCorrections gives back some of what was used.
func (j *journal) drawCorrections(t *testing.T, rt *rapid.T) {
	left := make(map[int64]int64)
	at := j.account.LastAt
	for range rapid.IntRange(0, 4).Draw(rt, "corrections") {
		p := rapid.SampledFrom(j.postings).Draw(rt, "corrected")
		if _, begun := left[p.Seq]; !begun {
			left[p.Seq] = p.Units
		}
		if left[p.Seq] <= 0 || p.Units <= 0 {
			continue
		}
		units := rapid.Int64Range(1, left[p.Seq]).Draw(rt, "given back")
		left[p.Seq] -= units
		at = at.Add(rapid.SampledFrom([]time.Duration{0, time.Microsecond, time.Hour}).Draw(rt, "later"))
		j.write(t, draft{at: at, meter: p.Meter, subject: p.Subject, units: -units, of: p.Seq})
	}
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
			before += max(0, e.Units)
		case !e.At.After(now):
			if !edge.Found {
				edge.Found, edge.At = true, e.At.UTC()
			}
			if !e.EffectiveAt.Before(start) {
				edge.Returned -= min(0, e.Units)
			}
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
			q := j.drawCrossing(rt, meter, subject)
			answer, known := j.crossing(meter, subject, q)
			if !known {
				continue // not a question: it is reached before lo, or not until hi
			}
			queries, want = append(queries, q), append(want, answer)
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

// drawCrossing draws a question about a span of the journal.
func (j *journal) drawCrossing(t *rapid.T, meter, subject string) CrossingQuery {
	q := CrossingQuery{
		TenantID: j.account.TenantID, MeterID: j.world.meters[meter], SubjectID: j.subjects[subject].SubjectID,
		LoMicros: j.drawBorder(t, "lo").UnixMicro(), HiMicros: j.drawBorder(t, "hi").UnixMicro(),
		NowMicros: j.account.LastAt.UnixMicro(), Seq: rapid.Int64Range(1, j.account.Seq).Draw(t, "seq"),
		Target: rapid.SampledFrom([]int64{1, 2, 3, 5, 6, 8, 1000, 1001}).Draw(t, "target"),
	}
	for range rapid.IntRange(0, 2).Draw(t, "terms") {
		q.Terms = append(q.Terms, Term{
			AtMicros: j.drawBorder(t, "term until").UnixMicro(), Units: rapid.Int64Range(1, 3).Draw(t, "term"),
		})
	}
	q.Base = j.left(meter, subject, q, q.LoMicros)
	return q
}

// left is the left side of what q compares, at x.
func (j *journal) left(meter, subject string, q CrossingQuery, x int64) (units int64) {
	for i := range j.postings {
		e := &j.postings[i].Entry
		switch {
		case !counted(e, meter, subject) || e.Seq > q.Seq:
		case e.Units >= 0 && e.At.UnixMicro() <= x:
			units += e.Units
		case e.Units < 0 && e.EffectiveAt.UnixMicro() > x:
			units -= e.Units
		}
	}
	return units
}

// crossing looks at every instant at which something changes.
func (j *journal) crossing(meter, subject string, q CrossingQuery) (x int64, known bool) {
	reached := func(x int64) bool {
		target := q.Target
		for _, term := range q.Terms {
			if term.AtMicros > x {
				target += term.Units
			}
		}
		return j.left(meter, subject, q, x) >= target
	}
	if q.LoMicros >= q.HiMicros || reached(q.LoMicros) || !reached(q.HiMicros) {
		return 0, false
	}
	instants := []int64{q.HiMicros}
	for i := range j.postings {
		instants = append(instants, j.postings[i].At.UnixMicro())
	}
	for _, term := range q.Terms {
		instants = append(instants, term.AtMicros)
	}
	slices.Sort(instants)
	for _, x := range instants {
		if x > q.LoMicros && reached(x) {
			return x, true
		}
	}
	panic("reached at the end and nowhere")
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
			TenantID: j.account.TenantID, MeterID: w.meters["calls"], LoMicros: span[0], HiMicros: span[1],
			NowMicros: at.UnixMicro(), Seq: 1, Target: 3,
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
