package quota

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// LimitsAt returns how every limit of a tenant stood at an instant of the past, behind
// everything decided up to and at it: the limits of the plan, and the status, that the
// tenant had then. Everything follows from the ledger and the configuration's history,
// nothing is kept for it. Its errors are [ledger.ErrNotFound] without such a tenant, and
// an *[Error] for an instant that is to come or before the tenant was made.
func (x *Reader) LimitsAt(ctx context.Context, tenant, subject string, at time.Time) (Decision, error) {
	now, err := x.ledger.Settle(ctx, tenant, at)
	if err != nil {
		return Decision{}, err
	}
	account, err := accountFacts(ctx, x.db, tenant)
	if err != nil {
		return Decision{}, err
	}
	if at.After(now) {
		return Decision{}, atFault("must not be in the future")
	}
	then, err := x.catalog.TenantAt(ctx, tenant, at)
	if errors.Is(err, catalog.ErrNotFound) {
		return Decision{}, atFault("must not be before the tenant was made")
	}
	if err != nil {
		return Decision{}, err
	}
	v := newVersions(x.catalog)
	if err := v.follow(ctx, x.db, account.tenantID); err != nil {
		return Decision{}, err
	}
	terms := v.timeline.At(at.UnixMicro())
	plan, err := x.planAt(ctx, account.tenantID, terms.PlanAt(at.UnixMicro()), at)
	if err != nil {
		return Decision{}, err
	}
	plan = plan.Under(v.timeline.Set(terms.OverrideSetID), at.UnixMicro())
	meters, err := x.catalog.MetersByID(ctx, x.db) // also those that are removed since
	if err != nil {
		return Decision{}, err
	}
	cal, err := account.calendar()
	if err != nil {
		return Decision{}, err
	}
	b := newBook(compilePlan(plan, cal), catalog.NewSnapshot(0, slices.Collect(maps.Values(meters)), nil))
	b.status, b.nowMicros, b.clockMicros = then.Status, at.UnixMicro(), at.UnixMicro()
	f, err := x.fill(ctx, b, v, account.tenantID, subject)
	if err != nil {
		return Decision{}, err
	}
	stands := b.stand(tenant, subject)
	for i := range stands.decision.Limits {
		l := &stands.decision.Limits[i]
		l.Approximate = f.approximate[l.Name] && l.Used > 0
	}
	return stands.decision, f.resets(ctx, &stands)
}

// resets asks the ledger when limits reset of which units were given back.
func (f *filler) resets(ctx context.Context, v *verdict) error {
	var asked []*wait
	var queries []ledger.CrossingQuery
	v.crossings(func(w *wait) {
		q := w.crossing()
		q.TenantID, q.MeterID, q.Seq = f.tenantID, f.book.snapshot.Meter(w.forecast.limit.Meter).ID, math.MaxInt64
		if w.subject != "" {
			q.SubjectID = f.subjectID
		}
		asked, queries = append(asked, w), append(queries, q)
	})
	instants, err := f.reader.ledger.Crossings(ctx, queries)
	if err != nil {
		return err
	}
	v.settleResets(f.book, func(w *wait) int64 { return instants[slices.Index(asked, w)] })
	return nil
}

// planAt returns the version of a plan that was in force for a tenant at an instant: the
// one that the configuration's history says, unless an entry from then on still names an
// older one. A change is dated before it is committed, and until then the tenant's
// decisions go on under what was before.
func (x *Reader) planAt(ctx context.Context, tenantID int64, name string, at time.Time) (*catalog.Plan, error) {
	plan, err := x.catalog.PlanAt(ctx, name, at)
	if errors.Is(err, catalog.ErrNotFound) { // the clock fell back: the tenant is dated before its plan
		first, err := x.catalog.PlanVersionOf(ctx, name, 1)
		return &first.Plan, err
	}
	if err != nil {
		return nil, err
	}
	versionID, err := x.ledger.VersionFrom(ctx, tenantID, at)
	if errors.Is(err, ledger.ErrNotFound) {
		return plan, nil
	}
	if err != nil {
		return nil, err
	}
	decided, err := x.catalog.PlanVersion(ctx, x.db, versionID)
	if err != nil {
		return nil, err
	}
	if decided.Name == plan.Name && decided.Version < plan.Version {
		return decided, nil
	}
	return plan, nil
}

func atFault(rule string) *Error {
	return &Error{Code: CodeInvalidRequest, Faults: []Fault{{"at", rule}}}
}

// fill brings into the book what its limits see at its instant.
func (x *Reader) fill(ctx context.Context, b *book, v versions, tenantID int64, subject string) (*filler, error) {
	id, err := subjectID(ctx, x.db, tenantID, subject)
	if err != nil {
		return nil, err
	}
	f := &filler{reader: x, book: b, versions: v, tenantID: tenantID, subjectID: id, approximate: make(map[string]bool)}
	for meter := range b.rules.byMeter {
		if err := f.meter(ctx, meter, subject); err != nil {
			return nil, err
		}
	}
	return f, f.holds(ctx, subject)
}

// holds brings in the holds that were open, which are all of the last day.
func (f *filler) holds(ctx context.Context, subject string) error {
	entries, err := f.reader.ledger.HoldEntries(ctx, f.tenantID, f.at().Add(-TTLMax), f.at())
	if err != nil {
		return err
	}
	past := newReplayedHolds()
	for i := range entries {
		past.hold(&entries[i]) // what answers a hold of the day before is none of these
	}
	for id, h := range past.holds {
		if h.state != HoldOpen || h.expiresMicros <= f.book.nowMicros {
			continue
		}
		open := &hold{id: id, state: HoldOpen, startedMicros: h.startedMicros, expiresMicros: h.expiresMicros}
		if h.subjectID != 0 && h.subjectID == f.subjectID {
			open.subject = subject
		}
		for i, meter := range h.meters {
			open.charges = append(open.charges, heldCharge{meter: meter, units: h.units[i]})
			for _, key := range []meterKey{{meter: meter}, {meter: meter, subject: open.subject}}[:1+min(1, len(open.subject))] {
				if t := f.book.totals[key]; t != nil {
					t.held += h.units[i]
				}
			}
		}
		f.book.holds = append(f.book.holds, open)
	}
	return nil
}

// A filler fills the book of a past instant.
type filler struct {
	reader      *Reader
	book        *book
	versions    versions
	tenantID    int64
	subjectID   int64
	approximate map[string]bool // by limit
}

// meter brings in the totals, the windows and the levels of one meter.
func (f *filler) meter(ctx context.Context, meter, subject string) error {
	pasts := make(map[meterKey]ledger.Past)
	var windows, levels []limitKey
	f.book.rules.needs(meter, subject, func(key meterKey) { pasts[key] = ledger.Past{} }, func(key limitKey) {
		if key.limit.Algorithm.KeepsLevel() {
			levels = append(levels, key)
		} else {
			windows = append(windows, key)
		}
	})
	for key := range pasts {
		q := ledger.PastQuery{TenantID: f.tenantID, Meter: meter, At: f.at(), BeforeSeq: math.MaxInt64, Limit: 1}
		if key.subject != "" {
			q.SubjectID = f.subjectID
		}
		if len(levels) > 0 {
			q.Limit = replayEntries
		}
		past, err := f.reader.ledger.Past(ctx, q)
		if err != nil {
			return err
		}
		pasts[key] = past
		f.book.totals[key] = pastTotal(past)
	}
	for _, key := range levels {
		entries := pasts[meterKey{meter: meter, subject: key.subject}].Entries
		kept, err := f.versions.replay(ctx, f.reader.db, entries, levelName{meter, key.limit.Name}, f.book.inForce())
		if err != nil {
			return err
		}
		f.book.levels[key] = &kept.level
		f.approximate[key.limit.Name] = kept.approximate
	}
	return f.windows(ctx, windows)
}

func (f *filler) at() time.Time { return time.UnixMicro(f.book.nowMicros).UTC() }

func pastTotal(past ledger.Past) *total {
	t := &total{}
	if len(past.Entries) > 0 {
		t.units = past.Entries[0].Total
	}
	if !past.UsedAt.IsZero() {
		t.lastAtMicros = past.UsedAt.UnixMicro()
	}
	return t
}

// windows brings in the running totals at the edges of windows.
func (f *filler) windows(ctx context.Context, windows []limitKey) error {
	asked := make([]askedLimit, len(windows))
	for i, key := range windows {
		asked[i] = askedLimit{limit: key.limit, subjectID: scopedTo(key.limit, f.subjectID), beforeSeq: math.MaxInt64}
	}
	past, err := f.reader.past(ctx, f.tenantID, f.at(), asked)
	if err != nil {
		return err
	}
	for i, key := range windows {
		f.book.before[key] = edgeTotals(past[i])
		for _, edge := range past[i][1:] {
			f.book.totals[meterKey{meter: key.limit.Meter, subject: key.subject}].returned += edge.Returned
		}
	}
	return nil
}
