package quota

import (
	"context"
	"time"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// A Reader answers what the ledger and the kept denials say about the past: usage over
// time, limits as they stood, and why a request was decided as it was. It decides
// nothing, takes no lock, and is safe for concurrent use.
type Reader struct {
	db      ledger.Querier
	catalog *catalog.Store
	ledger  *ledger.Store
	denials *DenialStore
}

// NewReader returns a reader of db.
func NewReader(db ledger.Querier, store *catalog.Store) *Reader {
	return &Reader{db: db, catalog: store, ledger: ledger.NewStore(db), denials: NewDenialStore(db)}
}

// A UsageQuery asks for a meter's usage over time. Zero fields take their defaults.
type UsageQuery struct {
	Tenant    string
	Meter     string
	From, To  time.Time        // inclusive, exclusive; the tenant's month up to now
	Bucket    catalog.Calendar // or [calendar.Minute]; a day
	Zone      string           // IANA name; the tenant's own calendar
	Subject   string           // of this subject alone
	BySubject bool             // one series per subject, of those that had usage since From

	AfterSubject int64 // with BySubject: the NextSubject of the page before
	Limit        int   // with BySubject: subjects of a page
}

// Bounds of one answer.
const (
	UsageBucketsMax = 1500   // of a series: a day of minutes, an hour more than usual
	usagePointsMax  = 20_000 // over all series
)

// A Usage is a meter's usage in a range, cut into buckets. Total is that of the whole
// range, and of all subjects; it is the sum of the buckets where they are not grouped.
type Usage struct {
	Unit     string
	Zone     string
	From, To time.Time
	Total    int64 // units
	Series   []UsageSeries

	NextSubject int64 // where the next page begins; 0 after the last one
}

// A UsageSeries is the usage of the tenant, or of one subject.
type UsageSeries struct {
	Subject string // "" for the tenant, or for a subject whose text is erased
	Total   int64
	Edges   []time.Time // bucket i goes from edge i up to edge i+1
	Units   []int64     // of each bucket
}

// Usage returns usage over time, from the running totals: what a bucket costs does not
// depend on how much is in it. All of an answer is of one snapshot, and final up to now:
// where a series ends the next one may begin. It returns
// [ledger.ErrNotFound] without such a tenant, [catalog.ErrNotFound] without such a
// meter, and an *[Error] for a range or a zone that breaks a rule.
func (x *Reader) Usage(ctx context.Context, q UsageQuery) (Usage, error) {
	now, err := x.ledger.Settle(ctx, q.Tenant, q.To)
	if err != nil {
		return Usage{}, err
	}
	account, err := accountFacts(ctx, x.db, q.Tenant)
	if err != nil {
		return Usage{}, err
	}
	meter, err := x.catalog.Meter(ctx, q.Meter)
	if err != nil {
		return Usage{}, err
	}
	out := Usage{Unit: meter.Unit}
	edges, err := out.cut(q, account, now)
	if err != nil {
		return Usage{}, err
	}
	subjects := []ledger.UsageSubject{{}}
	totalOf := int64(0)
	switch {
	case q.BySubject:
		size := max(1, min(q.Limit, usagePointsMax/(len(edges)-1)))
		subjects, err = x.ledger.UsageSubjects(ctx, account.tenantID, meter.ID, q.AfterSubject, out.From, size+1)
		if len(subjects) > size {
			subjects = subjects[:size]
			out.NextSubject = subjects[size-1].ID
		}
	case q.Subject != "":
		subjects[0].Subject = q.Subject
		subjects[0].ID, err = subjectID(ctx, x.db, account.tenantID, q.Subject)
		totalOf = subjects[0].ID
	}
	if err != nil {
		return Usage{}, err
	}
	return out, x.read(ctx, &out, account.tenantID, meter.ID, subjects, edges, totalOf)
}

// cut settles the range and the zone, and returns the edges of the buckets.
func (u *Usage) cut(q UsageQuery, account facts, now time.Time) ([]int64, error) {
	u.Zone = account.timezone
	cal, err := account.calendar()
	if q.Zone != "" {
		u.Zone = q.Zone
		setting := calendar.Setting{Timezone: q.Zone, BillingAnchor: 1}
		if cal, err = calendar.New(setting, nil, time.LoadLocation); err != nil {
			return nil, usageFault("tz", "must be an IANA time zone, like Europe/Berlin")
		}
	}
	if err != nil {
		return nil, err
	}
	u.From, u.To = q.From, q.To
	if u.To.IsZero() {
		u.To = now.Add(time.Microsecond) // what is of now belongs to it
	}
	if u.From.IsZero() {
		start, _ := cal.Window(catalog.CalendarMonth, u.To.UnixMicro()-1)
		u.From = time.UnixMicro(start).UTC()
	}
	if !u.From.Before(u.To) {
		return nil, usageFault("from", "must be before to, which is now if absent")
	}
	bucket := q.Bucket
	if bucket == "" {
		bucket = catalog.CalendarDay
	}
	edges, ok := cal.Buckets(bucket, u.From.UnixMicro(), u.To.UnixMicro(), UsageBucketsMax)
	if !ok {
		return nil, usageFault("bucket", "must make at most 1500 buckets of the range: take a larger bucket or a shorter range")
	}
	return edges, nil
}

func usageFault(field, rule string) *Error {
	return &Error{Code: CodeInvalidRequest, Faults: []Fault{{field, rule}}}
}

// read fills in the series and the total, by one statement.
func (x *Reader) read(
	ctx context.Context, out *Usage, tenantID int64, meterID int32, subjects []ledger.UsageSubject, edges []int64, totalOf int64,
) error {
	instants := make([]time.Time, len(edges))
	for i, edge := range edges {
		instants[i] = time.UnixMicro(edge).UTC()
	}
	queries := []ledger.UsageQuery{{SubjectID: totalOf, From: out.From, To: out.To}}
	for _, subject := range subjects {
		for i := range instants[1:] {
			queries = append(queries, ledger.UsageQuery{SubjectID: subject.ID, From: instants[i], To: instants[i+1]})
		}
	}
	units, err := x.ledger.Usage(ctx, tenantID, meterID, queries)
	if err != nil {
		return err
	}
	out.Total, units = units[0], units[1:]
	n := len(instants) - 1
	out.Series = make([]UsageSeries, len(subjects))
	for i := range subjects {
		s := UsageSeries{Subject: subjects[i].Subject, Edges: instants, Units: units[:n:n]}
		units = units[n:]
		for _, u := range s.Units {
			s.Total += u
		}
		out.Series[i] = s
	}
	return nil
}
