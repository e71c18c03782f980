package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// An Explanation is a decision taken apart: what every limit had used, counted again
// from the ledger as it was just before, and the sum that was compared.
type Explanation struct {
	Tenant      string             `json:"tenant"`
	Subject     string             `json:"subject,omitempty"`
	Kind        ledger.Kind        `json:"kind"` // consume and hold were decided by the limits, the others recorded whatever they say
	RequestID   uuid.UUID          `json:"request_id"`
	At          time.Time          `json:"at"`
	Allowed     bool               `json:"allowed"`
	Reason      Reason             `json:"reason,omitempty"`
	Plan        string             `json:"plan"`
	PlanVersion int32              `json:"plan_version"`
	AfterSeq    int64              `json:"after_seq"` // the newest entry before it; 0 for none
	Limits      []LimitExplanation `json:"limits"`
	Consistent  bool               `json:"consistent"` // everything counted again is what was said then
	Text        string             `json:"text"`

	Entries []ledger.Entry `json:"-"` // of an allowed request

	inForce catalog.InForce
}

// A LimitExplanation is what one limit compared.
type LimitExplanation struct {
	Name      string            `json:"name"`
	Meter     string            `json:"meter"`
	Algorithm catalog.Algorithm `json:"algorithm"`
	Scope     catalog.Scope     `json:"scope"`
	Mode      catalog.Mode      `json:"mode"`
	Unlimited bool              `json:"unlimited,omitempty"`
	Limit     *int64            `json:"limit,omitempty"` // units; nil if unlimited
	Used      int64             `json:"used"`            // units, as the decision said
	Held      int64             `json:"held"`            // units
	Cost      int64             `json:"cost"`            // units
	Fits      bool              `json:"fits"`

	// Counted is what was used by the entries before: what Used has to be. Nil for a
	// level that was not full for so long that they tell it only to a unit.
	Counted *int64 `json:"counted,omitempty"`
	// Total is the meter's running total just before, and Edges what it was where each
	// window began: windows count the difference.
	Total *int64        `json:"total_before,omitempty"`
	Edges []EdgeExplain `json:"edges,omitempty"`
	Text  string        `json:"text"`
}

// An EdgeExplain is the running total just before a window's first instant.
type EdgeExplain struct {
	At    time.Time `json:"at"`
	Total int64     `json:"total"`
}

// ExplainEntry explains the request that an entry is of. It returns [ledger.ErrNotFound] if
// there is no such entry.
func (x *Reader) ExplainEntry(ctx context.Context, tenant string, seq int64) (Explanation, error) {
	page, err := x.ledger.Entries(ctx, ledger.EntryQuery{
		Tenant: tenant, AfterSeq: max(0, seq-ChargesMax), Limit: 2 * ChargesMax,
	})
	if err != nil {
		return Explanation{}, fmt.Errorf("explain entry %d: %w", seq, err)
	}
	entries := page.Entries
	at := slices.IndexFunc(entries, func(e ledger.Entry) bool { return e.Seq == seq })
	if at < 0 {
		return Explanation{}, ledger.ErrNotFound
	}
	id := entries[at].RequestID
	entries = slices.DeleteFunc(entries, func(e ledger.Entry) bool { return e.RequestID != id })
	return x.entries(ctx, tenant, entries)
}

// ExplainRequest explains a request by its id: a denial that is kept, or entries from about
// the instant that the id holds. It returns [ledger.ErrNotFound] if there is neither.
func (x *Reader) ExplainRequest(ctx context.Context, tenant string, id uuid.UUID) (Explanation, error) {
	denial, err := x.denials.Denial(ctx, tenant, id)
	if err == nil {
		return x.denial(ctx, tenant, &denial)
	}
	if !errors.Is(err, ErrDenialNotFound) {
		return Explanation{}, fmt.Errorf("explain request %s: %w", id, err)
	}
	if id.Version() != 7 {
		return Explanation{}, ledger.ErrNotFound
	}
	seconds, nanos := id.Time().UnixTime()
	seq, err := x.ledger.RequestSeq(ctx, tenant, id, time.Unix(seconds, nanos))
	if err != nil {
		return Explanation{}, fmt.Errorf("explain request %s: %w", id, err)
	}
	return x.ExplainEntry(ctx, tenant, seq)
}

// entries explains an allowed request by its entries.
func (x *Reader) entries(ctx context.Context, tenant string, entries []ledger.Entry) (Explanation, error) {
	first := &entries[0]
	out := Explanation{
		Tenant: tenant, Subject: first.Subject, Kind: first.Kind, RequestID: first.RequestID, At: first.At, Allowed: true,
		Plan: first.Plan, PlanVersion: first.PlanVersion, AfterSeq: first.Seq - 1, Entries: entries, Consistent: true,
		inForce: entryInForce(first),
	}
	rules, account, err := x.rules(ctx, tenant, out.inForce)
	if err != nil {
		return out, err
	}
	var asked []askedLimit
	for i := range entries {
		e := &entries[i]
		limits := rules.byMeter[e.Meter]
		if e.Kind == ledger.KindExpire {
			continue // nobody asked
		}
		if len(limits) != len(e.LimitsUsed) {
			return out, fmt.Errorf("entry %d says what %d limits had used; its plan version has %d", e.Seq, len(e.LimitsUsed), len(limits))
		}
		for n, l := range limits {
			if l.Scope == catalog.ScopeSubject && e.SubjectID == 0 || !l.asked(e.Kind) {
				continue // it was not asked
			}
			a := askedLimit{limit: l, used: e.LimitsUsed[n], cost: e.Units, subjectID: scopedTo(l, e.SubjectID), beforeSeq: e.Seq}
			if e.Kind == ledger.KindHold {
				a.cost = l.asks(e.Held)
			}
			if e.LimitsHeld != nil {
				a.held = e.LimitsHeld[n]
			}
			asked = append(asked, a)
		}
	}
	return out, x.finish(ctx, &out, account.tenantID, asked)
}

// denial explains a kept denial.
func (x *Reader) denial(ctx context.Context, tenant string, d *Denial) (Explanation, error) {
	out := Explanation{
		Tenant: tenant, Subject: d.Subject, Kind: d.Decision.kind(), RequestID: d.RequestID, At: d.At, Reason: d.Reason,
		Plan: d.Plan, PlanVersion: d.PlanVersion, AfterSeq: d.AfterSeq, Consistent: true,
		inForce: catalog.InForce{AtMicros: d.At.UnixMicro(), VersionID: d.PlanVersionID, OverrideSetID: d.OverrideSetID},
	}
	rules, account, err := x.rules(ctx, tenant, out.inForce)
	if err != nil {
		return out, err
	}
	subjectID, err := subjectID(ctx, x.db, account.tenantID, d.Subject)
	if err != nil {
		return out, err
	}
	var asked []askedLimit
	for i := range d.Decision.Limits {
		said := &d.Decision.Limits[i]
		n := slices.IndexFunc(rules.byMeter[said.Meter], func(l *limit) bool { return l.Name == said.Name })
		if n < 0 {
			return out, fmt.Errorf("the denial names limit %q, which its plan version does not have", said.Name)
		}
		l := rules.byMeter[said.Meter][n]
		asked = append(asked, askedLimit{
			limit: l, used: said.Used, held: said.Held, cost: l.asks(d.Decision.cost(said.Meter)),
			subjectID: scopedTo(l, subjectID), beforeSeq: d.AfterSeq + 1, denied: said.Violated,
		})
	}
	return out, x.finish(ctx, &out, account.tenantID, asked)
}

// cost is what the decision was about on a meter.
func (d *Decision) cost(meter string) int64 {
	for _, c := range d.Charges {
		if c.Meter == meter {
			return c.Cost
		}
	}
	return 0
}

// scopedTo is the subject whose units a limit counts; 0 for the whole tenant.
func scopedTo(l *limit, subjectID int64) int64 {
	if l.Scope == catalog.ScopeSubject {
		return subjectID
	}
	return 0
}

// rules returns the rules that were in force under the tenant's calendars.
func (x *Reader) rules(ctx context.Context, tenant string, f catalog.InForce) (*rules, facts, error) {
	account, err := accountFacts(ctx, x.db, tenant)
	if err != nil {
		return nil, facts{}, err
	}
	plan, err := x.catalog.PlanVersion(ctx, x.db, f.VersionID)
	if err != nil {
		return nil, facts{}, err
	}
	sets, err := x.catalog.OverrideSets(ctx, x.db, []int64{f.OverrideSetID})
	if err != nil {
		return nil, facts{}, err
	}
	plan = plan.Under(sets[f.OverrideSetID], f.AtMicros)
	cal, err := account.calendar()
	if err != nil {
		return nil, facts{}, err
	}
	return compilePlan(plan, cal), account, nil
}

// askedLimit is a limit that was asked, and what the decision said of it.
type askedLimit struct {
	limit      *limit
	used, held int64
	cost       int64
	subjectID  int64
	beforeSeq  int64 // only entries before this one count
	denied     bool
}

// finish counts every limit again and says how the sums came out.
func (x *Reader) finish(ctx context.Context, out *Explanation, tenantID int64, asked []askedLimit) error {
	past, err := x.past(ctx, tenantID, out.At, asked)
	if err != nil {
		return err
	}
	out.Limits = make([]LimitExplanation, len(asked))
	v := newVersions(x.catalog)
	if err := v.follow(ctx, x.db, tenantID); err != nil {
		return err
	}
	for i := range asked {
		out.Limits[i] = asked[i].explain(out.At, past[i])
		l := &out.Limits[i]
		if l.Algorithm.KeepsLevel() {
			if l.Counted, err = x.countLevel(ctx, &v, out, tenantID, &asked[i]); err != nil {
				return err
			}
		}
		if l.Counted != nil && *l.Counted != l.Used {
			out.Consistent = false
		}
		if !out.follows(l, asked[i].denied) {
			out.Consistent = false
		}
	}
	out.Text = out.sentence()
	return nil
}

// follows reports whether it follows from a limit's sum that the decision was denied by it
// or was not. Denials that are kept from before may blame limits beside another reason.
func (x *Explanation) follows(l *LimitExplanation, denied bool) bool {
	over := l.Mode == catalog.ModeEnforce && !l.Fits
	switch {
	case x.recorded():
		return true
	case x.Allowed:
		return !over
	case x.Reason.ofLimit():
		return denied == over
	default:
		return over || !denied
	}
}

// recorded reports whether the limits had no say.
func (x *Explanation) recorded() bool {
	return x.Kind != ledger.KindConsume && x.Kind != ledger.KindHold
}

// countLevel returns what a level had used by the entries before; nil where they tell it
// only to a unit.
func (x *Reader) countLevel(ctx context.Context, v *versions, out *Explanation, tenantID int64, a *askedLimit) (*int64, error) {
	past, err := x.ledger.Past(ctx, ledger.PastQuery{
		TenantID: tenantID, Meter: a.limit.Meter, SubjectID: a.subjectID, At: out.At, BeforeSeq: a.beforeSeq, Limit: replayEntries,
	})
	if err != nil {
		return nil, err
	}
	kept, err := v.replay(ctx, x.db, past.Entries, levelName{a.limit.Meter, a.limit.Name}, out.inForce)
	if err != nil {
		return nil, err
	}
	if kept.begunAnew && a.used == 0 {
		return new(int64), nil
	}
	used := a.limit.rule.Used(View{NowMicros: out.At.UnixMicro(), State: kept.State})
	if kept.approximate && used > 0 {
		return nil, nil
	}
	return &used, nil
}

// past reads, for each limit that is a window, the running total just before and at the
// window's edges; nil for the others.
func (x *Reader) past(ctx context.Context, tenantID int64, at time.Time, asked []askedLimit) ([][]ledger.BeforeTotal, error) {
	var queries []ledger.BeforeQuery
	for i := range asked {
		for _, edge := range asked[i].edges(at) {
			queries = append(queries, ledger.BeforeQuery{
				TenantID: tenantID, Meter: asked[i].limit.Meter, SubjectID: asked[i].subjectID, At: at,
				BeforeSeq: asked[i].beforeSeq, Edge: edge,
			})
		}
	}
	totals, err := x.ledger.TotalsBefore(ctx, queries)
	if err != nil {
		return nil, err
	}
	past := make([][]ledger.BeforeTotal, len(asked))
	for i := range asked {
		n := len(asked[i].edges(at))
		past[i], totals = totals[:n], totals[n:]
	}
	return past, nil
}

// edges are the instants that a window counts from, behind a zero one for the total
// itself; none for a limit that keeps a level.
func (a *askedLimit) edges(at time.Time) []time.Time {
	if a.limit.Algorithm.KeepsLevel() {
		return nil
	}
	edges := []time.Time{{}}
	for _, edge := range a.limit.rule.Edges(at.UnixMicro()) {
		edges = append(edges, time.UnixMicro(edge.AtMicros).UTC())
	}
	return edges
}

// explain says what one limit compared.
func (a *askedLimit) explain(at time.Time, past []ledger.BeforeTotal) LimitExplanation {
	l := a.limit
	out := LimitExplanation{
		Name: l.Name, Meter: l.Meter, Algorithm: l.Algorithm, Scope: l.Scope, Mode: l.Mode, Unlimited: l.Unlimited,
		Used: a.used, Held: a.held, Cost: a.cost, Fits: l.admits(a.used, a.held, a.cost),
	}
	if !l.Unlimited {
		out.Limit = &l.units
	}
	if len(past) > 0 {
		view := View{NowMicros: at.UnixMicro(), Total: past[0].Total, Before: edgeTotals(past)}
		out.Total = &past[0].Total
		for i, edge := range a.edges(at)[1:] {
			out.Edges = append(out.Edges, EdgeExplain{At: edge, Total: view.Before[i]})
		}
		if l.Algorithm != catalog.Concurrency { // whose holds verify counts
			counted := l.rule.Used(view)
			out.Counted = &counted
		}
	}
	out.Text = out.sum(l.blocked)
	return out
}

// edgeTotals returns the running totals at the edges of a window, from a total and those
// before its edges: where there is no entry since an edge, all was used before it.
func edgeTotals(past []ledger.BeforeTotal) []int64 {
	totals := make([]int64, 0, len(past)-1)
	for _, edge := range past[1:] {
		if !edge.Found {
			edge.Total = past[0].Total
		}
		totals = append(totals, edge.Total+edge.Returned)
	}
	return totals
}

// sum reads "998 used + 1 asked = 999, at most 1000: fits".
func (l *LimitExplanation) sum(blocked bool) string {
	text := fmt.Sprintf("%d used", l.Used)
	if l.Held > 0 {
		text += fmt.Sprintf(" + %d held", l.Held)
	}
	text += fmt.Sprintf(" + %d asked = %d", l.Cost, l.Used+l.Held+l.Cost)
	switch {
	case blocked:
		return "its limit or its rate is 0: blocked"
	case l.Cost == 0:
		return text + ": a cost of 0 fits"
	case l.Unlimited:
		return text + ", unlimited: fits"
	case l.Fits:
		return text + fmt.Sprintf(", at most %d: fits", *l.Limit)
	default:
		return text + fmt.Sprintf(", at most %d: does not fit", *l.Limit)
	}
}

// sentence says in one line how it came out.
func (x *Explanation) sentence() string {
	var over []string
	for i := range x.Limits {
		if l := &x.Limits[i]; !l.Fits && l.Mode == catalog.ModeEnforce {
			over = append(over, l.Name)
		}
	}
	text := "Allowed: it fitted every limit on its meters."
	switch {
	case x.recorded():
		text = fmt.Sprintf("Recorded (%s), whatever the limits said.", x.Kind)
	case !x.Allowed && x.Reason.ofLimit() && len(over) > 0:
		text = fmt.Sprintf("Denied (%s): it did not fit %s.", x.Reason, strings.Join(over, ", "))
	case !x.Allowed:
		text = fmt.Sprintf("Denied (%s).", x.Reason)
	}
	if !x.Consistent {
		text += " Counted again from the ledger, this does not come out: run quotad verify."
	}
	return text
}

// calendar returns the calendars of a tenant, the present and the past ones.
func (f *facts) calendar() (*calendar.Calendar, error) {
	setting := calendar.Setting{Timezone: f.timezone, BillingAnchor: f.billingAnchor}
	return calendar.FromAccount(setting, []byte(f.calendarPast), time.LoadLocation)
}
