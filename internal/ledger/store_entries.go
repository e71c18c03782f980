package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pg"
)

// Bounds of one page of entries. A filter may let little through, so what a page looks
// at is bounded as well as what it returns.
const (
	EntriesMax   = 1000   // entries of a page
	lookEntries  = 10_000 // entries that one statement looks at
	looksPerPage = 20     // statements of a page
)

// An EntryQuery selects entries of one tenant. Zero fields select everything.
type EntryQuery struct {
	Tenant     string
	AfterSeq   int64 // exclusive; 0 starts at the first, or at the last when Descending
	Descending bool
	Meter      string
	Subject    string
	Kind       Kind
	Plan       string // any version of it
	RequestID  uuid.UUID
	From       time.Time // inclusive
	To         time.Time // exclusive
	Limit      int       // 1 to EntriesMax
}

// An EntryPage is a part of a list of entries. Where a filter lets little through it
// may be shorter than was asked, or empty, and have more behind it.
type EntryPage struct {
	Entries []Entry
	NextSeq int64 // AfterSeq of the page behind it; 0 if this is the last one
}

// Entries returns one page of entries in the order of their numbers. An unknown tenant
// has none.
func (s *Store) Entries(ctx context.Context, q EntryQuery) (EntryPage, error) {
	list, err := s.EntryList(ctx, q)
	if errors.Is(err, ErrNotFound) {
		return EntryPage{}, nil
	}
	if err != nil {
		return EntryPage{}, err
	}
	return list.Next(ctx)
}

// An EntryList is the entries that a query selects, read page by page. Entries that
// came after the list was begun are no part of it. It is not safe for concurrent use.
type EntryList struct {
	store    *Store
	query    EntryQuery
	tenantID int64
	first    int64 // what is left lies between these numbers, both included
	last     int64 // below first if nothing is left

	lookEntries  int64 // tests look at less
	looksPerPage int
}

// Numbers and instants of a tenant rise together: a range of instants is that of the
// numbers from the first entry in it, of any meter, to the last.
// index: account_tenant_unique; entry_pkey for the oldest entry, one descent per
// partition; meter_total_pkey and entry_window for the ends of a range of instants, one
// descent per meter and partition at most. lock: none.
const entryListSQL = `
select a.tenant_id,
       case when $2::timestamptz is null then (
         select e.seq
         from quotad.entry e
         where e.tenant_id = a.tenant_id
         order by e.seq
         limit 1)
       else (
         select min(f.seq)
         from quotad.meter m
         cross join lateral (
           select e.seq
           from quotad.entry e
           where e.tenant_id = a.tenant_id and e.meter_id = m.meter_id and e.subject_id >= 0 and e.at >= $2
             and ($3::timestamptz is null or e.at < $3)
           order by e.at, e.seq
           limit 1) f
         where exists (
           select from quotad.meter_total t
           where t.tenant_id = a.tenant_id and t.meter_id = m.meter_id and t.subject_id = 0))
       end,
       case when $3::timestamptz is null then a.seq
       else (
         select max(l.seq)
         from quotad.meter m
         cross join lateral (
           select e.seq
           from quotad.entry e
           where e.tenant_id = a.tenant_id and e.meter_id = m.meter_id and e.subject_id >= 0 and e.at < $3
             and ($2::timestamptz is null or e.at >= $2)
           order by e.at desc, e.seq desc
           limit 1) l
         where exists (
           select from quotad.meter_total t
           where t.tenant_id = a.tenant_id and t.meter_id = m.meter_id and t.subject_id = 0))
       end
from quotad.account a
where a.tenant = $1`

// EntryList begins a list behind q.AfterSeq. With q.To it is final: see [Store.Settle]. An
// unknown tenant is [ErrNotFound].
func (s *Store) EntryList(ctx context.Context, q EntryQuery) (*EntryList, error) {
	if q.Limit < 1 || q.Limit > EntriesMax {
		return nil, fmt.Errorf("read entries: limit must be 1 to %d", EntriesMax)
	}
	if !q.To.IsZero() {
		if _, err := s.Settle(ctx, q.Tenant, q.To); err != nil {
			return nil, err
		}
	}
	// Planned anew, like the pages: a plan for any tenant does not know which ends are given.
	rows, err := s.db.Query(ctx, entryListSQL, pgx.QueryExecModeCacheDescribe, q.Tenant, pg.OrNull(q.From), pg.OrNull(q.To))
	if err != nil {
		return nil, fmt.Errorf("read entries: %w", err)
	}
	l, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (*EntryList, error) {
		l := &EntryList{store: s, query: q, lookEntries: lookEntries, looksPerPage: looksPerPage}
		var first, last *int64
		if err := row.Scan(&l.tenantID, &first, &last); err != nil {
			return nil, err
		}
		if l.first = 1; first != nil && last != nil {
			l.first, l.last = *first, *last
		}
		return l, nil
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, ErrNotFound
	case err != nil:
		return nil, fmt.Errorf("read entries: %w", err)
	}
	switch {
	case q.AfterSeq > 0 && q.Descending:
		l.last = min(l.last, q.AfterSeq-1)
	case q.AfterSeq > 0:
		l.first = max(l.first, q.AfterSeq+1)
	}
	return l, nil
}

// index: entry_pkey in its order, one range per partition; filters are checked on the
// way, over at most lookEntries. lock: none.
const entriesSQL = pageOf + `
    and e.seq >= $2 and e.seq <= $3
    and ($4 = '' or e.meter_id = (select m.meter_id from quotad.meter m where m.meter = $4))
    and ($5 = '' or e.subject_id = (
      select s.subject_id from quotad.subject s where s.tenant_id = $1 and s.subject = $5))
    and ($6 = '' or e.kind = $6)
    and ($7 = '' or e.plan_version_id in (select p.plan_version_id from quotad.plan_version p where p.plan = $7))
    and ($8::uuid is null or e.request_id = $8)
    and ($9::timestamptz is null or e.at >= $9)
    and ($10::timestamptz is null or e.at < $10)`

const (
	ascendingSQL = entriesSQL + `
  order by e.seq
  limit $11` + withTexts + `
order by e.seq`
	descendingSQL = entriesSQL + `
  order by e.seq desc
  limit $11` + withTexts + `
order by e.seq desc`
)

// Next returns the next page of the list.
func (l *EntryList) Next(ctx context.Context) (EntryPage, error) {
	var page EntryPage
	size := l.query.Limit
	for range l.looksPerPage {
		if l.last < l.first {
			break
		}
		from, to := l.look()
		looked := to
		if l.query.Descending {
			looked = from
		}
		// One more than the page holds tells whether there is another one.
		entries, err := l.read(ctx, from, to, size+1-len(page.Entries))
		if err != nil {
			return EntryPage{}, fmt.Errorf("read entries: %w", err)
		}
		page.Entries = append(page.Entries, entries...)
		if len(page.Entries) > size {
			page.Entries = page.Entries[:size]
			page.NextSeq = page.Entries[size-1].Seq
			l.goOn(page.NextSeq)
			return page, nil
		}
		l.goOn(looked)
		page.NextSeq = looked
	}
	if l.last < l.first {
		page.NextSeq = 0
	}
	return page, nil
}

// look returns the numbers that the next statement looks at.
func (l *EntryList) look() (from, to int64) {
	if l.query.Descending {
		return max(l.first, l.last-l.lookEntries+1), l.last
	}
	return l.first, min(l.last, l.first+l.lookEntries-1)
}

// goOn leaves what lies behind seq.
func (l *EntryList) goOn(seq int64) {
	if l.query.Descending {
		l.last = seq - 1
		return
	}
	l.first = seq + 1
}

func (l *EntryList) read(ctx context.Context, from, to int64, most int) ([]Entry, error) {
	q := &l.query
	sql := ascendingSQL
	if q.Descending {
		sql = descendingSQL
	}
	var requestID *uuid.UUID
	if q.RequestID != uuid.Nil {
		requestID = &q.RequestID
	}
	// Planned anew for each page: a plan for any tenant would sort all entries of a large
	// one, because the usual tenant has fewer than a page.
	rows, err := l.store.db.Query(ctx, sql, pgx.QueryExecModeCacheDescribe, l.tenantID, from, to,
		q.Meter, q.Subject, string(q.Kind), q.Plan, requestID, pg.OrNull(q.From), pg.OrNull(q.To), most)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanEntry(q.Tenant))
}
