package ledger

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"
)

// filled is a tenant with entries in three partitions, and a stranger whose entries
// must never be seen with its.
func (w *world) filled(t *testing.T) *journal {
	t.Helper()
	j, stranger := w.journal(t, "acme"), w.journal(t, "globex")
	subjects := []string{"", "user-1", "user-2"}
	for i := range 30 {
		at := march.Add(time.Duration(i) * 49 * time.Hour)
		d := draft{at: at, meter: "calls", subject: subjects[i%3], units: int64(i % 4)}
		if i%5 == 0 {
			d.meter, d.dims, d.json = "tokens", map[string]string{"region": "eu", "n": "1"}, `{"n":"1","region":"eu"}`
		}
		j.write(t, d, draft{at: at, meter: "calls", units: 1})
		stranger.write(t, d)
	}
	return j
}

func TestEntriesAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.filled(t)
	got, err := w.store.Entries(t.Context(), EntryQuery{Tenant: "acme", Limit: EntriesMax})
	if diff := cmp.Diff(EntryPage{Entries: j.entries()}, got); err != nil || diff != "" {
		t.Errorf("Entries: %v (-want +got):\n%s", err, diff)
	}
	for _, want := range j.entries()[:12] {
		got, err := w.store.Entry(t.Context(), "acme", want.Seq)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("Entry(%d): %v (-want +got):\n%s", want.Seq, err, diff)
		}
	}
	for tenant, seq := range map[string]int64{"acme": 61, "nobody": 1, "globex": 31, "": 1} {
		if _, err := w.store.Entry(t.Context(), tenant, seq); !errors.Is(err, ErrNotFound) {
			t.Errorf("Entry(%q, %d): %v, want %v", tenant, seq, err, ErrNotFound)
		}
	}
	if got, err := w.store.Entries(t.Context(), EntryQuery{Tenant: "nobody", Limit: 10}); err != nil || len(got.Entries) != 0 {
		t.Errorf("the entries of an unknown tenant: %v, %v, want none", got, err)
	}
	for _, limit := range []int{0, -1, EntriesMax + 1} {
		if _, err := w.store.Entries(t.Context(), EntryQuery{Tenant: "acme", Limit: limit}); err == nil {
			t.Errorf("a page of %d entries: no error", limit)
		}
	}
}

// Read to its end, page by page, a list is what looking at every entry selects. Pages
// are full but where the bound on what they look at cuts them, and no page is behind
// the last entry.
func TestFiltersAndPagesSelectWhatAScanSelects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	all := w.filled(t).entries()
	rapid.Check(t, func(rt *rapid.T) {
		q := EntryQuery{
			Tenant:     "acme",
			AfterSeq:   rapid.Int64Range(0, 62).Draw(rt, "after"),
			Descending: rapid.Bool().Draw(rt, "descending"),
			Meter:      rapid.SampledFrom([]string{"", "", "calls", "tokens", "none"}).Draw(rt, "meter"),
			Subject:    rapid.SampledFrom([]string{"", "", "user-1", "user-2", "none"}).Draw(rt, "subject"),
			Kind:       rapid.SampledFrom([]Kind{"", "", KindConsume, "settle"}).Draw(rt, "kind"),
			Plan:       rapid.SampledFrom([]string{"", "", "pro", "none"}).Draw(rt, "plan"),
			RequestID:  rapid.SampledFrom([]uuid.UUID{{}, {}, {}, all[7].RequestID, {1}}).Draw(rt, "request"),
			Limit:      rapid.SampledFrom([]int{1, 2, 7, EntriesMax}).Draw(rt, "limit"),
		}
		instant := rapid.SampledFrom([]time.Time{{}, march, april, all[20].At, all[20].At.Add(time.Microsecond), may})
		q.From, q.To = instant.Draw(rt, "from"), instant.Draw(rt, "to")
		if rapid.Bool().Draw(rt, "all") { // all filters together let next to nothing through
			q = EntryQuery{Tenant: q.Tenant, AfterSeq: q.AfterSeq, Descending: q.Descending, Limit: q.Limit}
		}
		lookEntries := rapid.SampledFrom([]int64{1, 3, 10, 1000}).Draw(rt, "look")
		looksPerPage := rapid.SampledFrom([]int{1, 2, 100}).Draw(rt, "looks")
		want := selected(all, q)
		var got []Entry
		next := q
		for range 1000 {
			list, err := w.store.EntryList(t.Context(), next)
			if err != nil {
				rt.Fatal(err)
			}
			list.lookEntries, list.looksPerPage = lookEntries, looksPerPage
			page, err := list.Next(t.Context())
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, page.Entries...)
			whole := lookEntries*int64(looksPerPage) >= int64(len(all))
			if left := len(want) - len(got); whole && (page.NextSeq != 0) != (left > 0) {
				rt.Fatalf("Entries(%+v): next after %d, and %d entries are left", next, page.NextSeq, left)
			}
			if page.NextSeq == 0 {
				break
			}
			if whole && len(page.Entries) < q.Limit {
				rt.Fatalf("Entries(%+v): a page of %d entries that is not the last", next, len(page.Entries))
			}
			next.AfterSeq = page.NextSeq
		}
		if diff := cmp.Diff(want, got); len(want)+len(got) > 0 && diff != "" {
			rt.Fatalf("Entries(%+v) (-want +got):\n%s", q, diff)
		}
	})
}

// selected is the list that q asks for, found by looking at every entry.
func selected(all []Entry, q EntryQuery) (list []Entry) {
	all = slices.Clone(all)
	if q.Descending {
		slices.Reverse(all)
	}
	for _, e := range all {
		behind := e.Seq > q.AfterSeq
		if q.Descending {
			behind = q.AfterSeq == 0 || e.Seq < q.AfterSeq
		}
		if behind &&
			(q.Meter == "" || e.Meter == q.Meter) && (q.Subject == "" || e.Subject == q.Subject) &&
			(q.Kind == "" || e.Kind == q.Kind) && (q.Plan == "" || e.Plan == q.Plan) &&
			(q.RequestID == uuid.Nil || e.RequestID == q.RequestID) &&
			(q.From.IsZero() || !e.At.Before(q.From)) && (q.To.IsZero() || e.At.Before(q.To)) {
			list = append(list, e)
		}
	}
	return list
}

// A list ends where it did when it was begun, so that reading a busy tenant's ends.
func TestAListHasNoLaterEntries(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.filled(t)
	list, err := w.store.EntryList(t.Context(), EntryQuery{Tenant: "acme", Limit: 50})
	if err != nil {
		t.Fatal(err)
	}
	before := j.entries()
	j.write(t, draft{at: may, meter: "calls", units: 1})
	var got []Entry
	for {
		page, err := list.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, page.Entries...)
		if page.NextSeq == 0 {
			break
		}
	}
	if diff := cmp.Diff(before, got); diff != "" {
		t.Errorf("the list (-want +got):\n%s", diff)
	}
}

func TestErasedTextsReadAsNone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	want := w.filled(t).entries()
	w.db.Exec(t, "update quotad.subject set subject = null, salt = null")
	w.db.Exec(t, "delete from quotad.entry_dims")
	for i := range want {
		want[i].Subject, want[i].Dims = "", nil
	}
	got, err := w.store.Entries(t.Context(), EntryQuery{Tenant: "acme", Limit: EntriesMax})
	if diff := cmp.Diff(EntryPage{Entries: want}, got); err != nil || diff != "" {
		t.Errorf("Entries: %v (-want +got):\n%s", err, diff)
	}
}

func TestTotalsAreTheNewestOnes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.filled(t)
	stranger := w.journal(t, "initech")
	var queries []TotalQuery
	var want []Total
	var wantSubjects []SubjectRow
	for _, tenantID := range []int64{j.account.TenantID, stranger.account.TenantID} {
		for _, meter := range []string{"calls", "tokens"} {
			for _, subject := range []string{"", "user-1", "user-2", "never seen"} {
				queries = append(queries, TotalQuery{tenantID, w.meters[meter], subject})
				s := SubjectRow{}
				total := Total{}
				if tenantID == j.account.TenantID {
					known := j.subjects[subject]
					s = SubjectRow{ID: known.SubjectID, Digest: known.Digest}
					if subject == "" || s.ID != 0 {
						total = j.totals[totalKey{meter, s.ID}]
						total.Stored = total != Total{}
					}
				}
				want, wantSubjects = append(want, total), append(wantSubjects, s)
			}
		}
	}
	got, gotSubjects := make([]Total, len(queries)), make([]SubjectRow, len(queries))
	send(t, w.session, func(b *pgx.Batch) {
		QueueTotals(b, queries, func(i int, total Total, levels []byte, s SubjectRow) {
			if !total.LastAt.IsZero() {
				total.LastAt = total.LastAt.UTC()
			}
			got[i], gotSubjects[i] = total, s
			if want := levelsOf(total); !bytes.Equal(levels, want) {
				t.Errorf("total %d has the levels %s, want %s", i, levels, want)
			}
		})
		QueueTotals(b, nil, nil) // asks nothing
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("totals (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantSubjects, gotSubjects); diff != "" {
		t.Errorf("subjects (-want +got):\n%s", diff)
	}
}

func TestWhatWasWrittenVerifies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.filled(t)
	w.journal(t, "fresh")
	for tenant, entries := range map[string]int64{"acme": 60, "globex": 30, "fresh": 0} {
		v, err := VerifyTenant(t.Context(), w.db.Owner(t), tenant, w.checks(tenant))
		if err != nil || len(v.Findings) > 0 || v.Entries != entries {
			t.Errorf("verifying %s: %+v, %v, want %d entries and no finding", tenant, v, err, entries)
		}
	}
	heads, err := w.store.Heads(t.Context(), "acme", 10)
	if diff := cmp.Diff([]Head{{"fresh", 0}, {"globex", 30}}, heads); err != nil || diff != "" {
		t.Errorf("Heads: %v (-want +got):\n%s", err, diff)
	}
}

// Verifying ends at the first entry that a check is against, and says what it says.
func TestWhatACheckSaysIsTheFinding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.filled(t)
	failed := errors.New("the rules cannot be read")
	for _, c := range []struct {
		name    string
		change  func(*Checks)
		entries int64 // that follow
		seq     int64
		want    string
		err     error
	}{
		{"other rules", func(c *Checks) {
			c.Rules = func(e *Entry) (string, error) {
				e.Plan, e.PlanVersion, e.SpecDigest = "pro", 3, w.specDigest
				if e.Seq >= 7 {
					e.SpecDigest[31]++
				}
				return "", nil
			}
		}, 6, 7, "does not match its hash: it, what stood before it, or the rules of plan pro version 3 were changed", nil},
		{"no rules", func(c *Checks) {
			c.Rules = func(*Entry) (string, error) { return "has no rules", nil }
		}, 0, 1, "has no rules", nil},
		{"rules that cannot be read", func(c *Checks) {
			c.Rules = func(*Entry) (string, error) { return "", failed }
		}, 0, 0, "", failed},
		{"a visit", func(c *Checks) {
			c.Visit = func(e *Entry) string {
				if e.Seq == 4 {
					return "is not liked"
				}
				return ""
			}
		}, 4, 4, "is not liked", nil},
	} {
		checks := w.checks("acme")
		c.change(&checks)
		v, err := VerifyTenant(t.Context(), w.db.Owner(t), "acme", checks)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: error %v, want %v", c.name, err, c.err)
		}
		if c.err != nil {
			continue
		}
		if diff := cmp.Diff([]Finding{{"acme", c.seq, c.want}}, v.Findings); diff != "" || v.Entries != c.entries {
			t.Errorf("%s: %d entries follow, want %d; findings (-want +got):\n%s", c.name, v.Entries, c.entries, diff)
		}
	}
}

// A lost commit is looked up by the batch id at its place.
func TestResolveFindsTheBatchAtItsPlace(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.filled(t)
	there := j.postings[10]
	elsewhen, next := there, there
	elsewhen.At = there.At.Add(time.Microsecond)
	next.Seq = 61
	for _, c := range []struct {
		name    string
		posting Posting
		want    uuid.UUID
	}{
		{"written", there, there.BatchID},
		{"another instant", elsewhen, uuid.Nil},
		{"never written", next, uuid.Nil},
	} {
		var got uuid.UUID
		send(t, w.session, func(b *pgx.Batch) { QueueResolve(b, &c.posting, func(id uuid.UUID) { got = id }) })
		if got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestPartitionsAreMadeAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.journal(t, "acme")
	far := time.Date(2033, 1, 1, 0, 0, 0, 0, time.UTC)
	send(t, w.session, func(b *pgx.Batch) { QueueEnsurePartitions(b, far) })
	j.write(t, draft{at: far.Add(-time.Hour), meter: "calls"}, draft{at: far.AddDate(0, 2, 0), meter: "calls"})
	if got := len(j.postings); got != 2 {
		t.Errorf("entries = %d, want 2", got)
	}
}
