package quota

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// verdict is a decision and what its writer and its waits need.
type verdict struct {
	decision Decision
	charges  []charge // what a request to spend asks for, one per meter
	asked    []asked  // the limits of decision.Limits
	lines    []line   // what is entered if it is allowed
	hold     *hold    // that it makes or changes
	waits    []wait   // what a denied request waits for
	grant    *grant   // what is entered was granted without the database
}

// charge is the summed cost of a request on one meter.
type charge struct {
	meter *catalog.Meter
	cost  int64
	path  string
}

// asked is a limit that an answer reports, and the cost it is about.
type asked struct {
	limit *limit
	cost  int64
}

// decide answers a request to consume or to hold and, if it is allowed and no dry run,
// takes it from the book; id names the request, and the hold that it makes. The book must hold everything that rules.needs names for the
// request's meters. An error is an *[Error] about the request; the book is then
// unchanged, as it is when the request is denied.
func decide(b *book, r *Request, id uuid.UUID) (verdict, error) {
	charges, err := b.chargesOf(r)
	if err != nil {
		return verdict{}, err
	}
	v := recorded(r, r.Subject)
	v.decision.Charges = make([]ChargeResult, len(charges))
	v.decision.Limits = make([]LimitResult, 0, len(b.rules.plan.Limits))
	v.asked = make([]asked, 0, len(b.rules.plan.Limits))
	if b.status != catalog.StatusActive {
		v.deny(ReasonTenantSuspended)
	}
	for i, c := range charges {
		v.decision.Charges[i] = ChargeResult{Meter: c.meter.Name, Cost: c.cost}
		if !b.rules.named[c.meter.Name] {
			v.deny(ReasonMeterNotInPlan)
		}
	}
	v.charges = charges
	for i := range charges {
		v.ask(b, &charges[i], r)
	}
	if r.Kind == ledger.KindHold && len(b.holds) >= HoldsOpenMax {
		v.deny(ReasonTooManyHolds)
		v.waits = append(v.waits, wait{holdsFull: true, freeMicros: b.firstFree()})
	}
	if v.decision.Allowed {
		if err := b.checkTotals(r, charges); err != nil {
			return verdict{}, err
		}
	}
	b.enterAll(&v, r)
	if v.decision.Allowed && r.Kind == ledger.KindHold {
		b.setAside(r, id, &v)
	}
	v.report(b, r)
	return v, nil
}

// recorded begins the answer to a request that nothing stands against yet.
func recorded(r *Request, subject string) verdict {
	return verdict{decision: Decision{
		Allowed: true,
		Kind:    r.Kind,
		Tenant:  r.Tenant,
		Subject: subject,
		DryRun:  r.DryRun,
		Charges: []ChargeResult{},
		Limits:  []LimitResult{},
	}}
}

// adjust records usage that was allowed elsewhere, whatever the limits say.
func (b *book) adjust(r *Request) (verdict, error) {
	charges, err := b.chargesOf(r)
	if err != nil {
		return verdict{}, err
	}
	if err := b.checkTotals(r, charges); err != nil {
		return verdict{}, err
	}
	v := recorded(r, r.Subject)
	for i := range charges {
		c := &charges[i]
		v.decision.Charges = append(v.decision.Charges, ChargeResult{Meter: c.meter.Name, Cost: c.cost})
		v.lines = append(v.lines, b.lineOf(c, r))
	}
	b.enterAll(&v, r)
	v.reportAll(b, r)
	return v, nil
}

// chargesOf sums the request's charges per meter, in the order of first mention.
func (b *book) chargesOf(r *Request) ([]charge, error) {
	charges := make([]charge, 0, len(r.Charges))
	for _, c := range r.Charges {
		meter := b.snapshot.Meter(c.Meter)
		if meter == nil {
			return nil, &Error{Code: CodeMeterNotFound, Faults: []Fault{{c.field("meter"), "must name a configured meter"}}}
		}
		cost, err := b.costOf(c)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(charges, func(have charge) bool { return have.meter == meter })
		if i < 0 {
			i = len(charges)
			charges = append(charges, charge{meter: meter, path: c.field("cost")})
		}
		charges[i].cost += cost
		if charges[i].cost > catalog.UnitsMax {
			return nil, invalid(c.field("cost"), sumRule)
		}
	}
	for i := range charges {
		if err := b.checkCharge(&charges[i], r); err != nil {
			return nil, err
		}
	}
	return charges, nil
}

const sumRule = "must sum to at most 999999999999999 over the charges on one meter"

// checkCharge finds what makes a charge impossible to decide. What is only recorded is
// not held up by how limits count.
func (b *book) checkCharge(c *charge, r *Request) error {
	for _, l := range b.rules.byMeter[c.meter.Name] {
		if r.spends() && !l.counts(r.Subject) && l.asked(r.kind()) {
			return invalid("subject", fmt.Sprintf("is required: limit %q on meter %q counts per subject", l.Name, c.meter.Name))
		}
		if r.Kind == ledger.KindHold && !l.Algorithm.CountsHolds() {
			return &Error{Code: CodeHoldsNotSupported, Faults: []Fault{{
				strings.TrimSuffix(c.path, "cost") + "meter",
				fmt.Sprintf("cannot be held: limit %q on meter %q is a leaky_bucket, which only takes consume", l.Name, c.meter.Name),
			}}}
		}
	}
	return nil
}

// checkTotals refuses what the limits would allow and the running totals cannot hold.
func (b *book) checkTotals(r *Request, charges []charge) error {
	for _, c := range charges {
		t := b.totals[meterKey{meter: c.meter.Name}]
		have := t.units
		if r.Kind == ledger.KindHold {
			have = t.held
		}
		if have+c.cost > catalog.UnitsMax {
			return overflow(c.path)
		}
	}
	return nil
}

func overflow(field string) *Error {
	return &Error{Code: CodeAmountOverflow, Faults: []Fault{{field, "would take the tenant's running total over 999999999999999"}}}
}

// deny denies with reason unless a reason that stands further from passing is there.
func (v *verdict) deny(reason Reason) {
	v.decision.Allowed = false
	if v.decision.Reason == "" || reasonRank(reason) < reasonRank(v.decision.Reason) {
		v.decision.Reason = reason
	}
}

func reasonRank(r Reason) int {
	return slices.Index([]Reason{
		ReasonTenantSuspended, ReasonMeterNotInPlan, ReasonBlocked, ReasonCostExceedsLimit, ReasonQuotaExceeded,
		ReasonTooManyHolds,
	}, r)
}

// blames reports whether limits that the request does not fit are why it is denied: a
// suspended tenant, or a meter outside of the plan, is denied whatever they say. Both are
// known before any limit is asked.
func (v *verdict) blames() bool {
	return v.decision.Reason == "" || v.decision.Reason.ofLimit()
}

// ask asks every limit on the charge's meter whether the cost fits.
func (v *verdict) ask(b *book, c *charge, r *Request) {
	limits := b.rules.byMeter[c.meter.Name]
	e := b.lineOf(c, r)
	e.limitsUsed, e.limitsHeld = b.standing(c.meter.Name, r.Subject)
	v.lines = append(v.lines, e)
	for i, l := range limits {
		if !l.asked(r.kind()) {
			continue
		}
		used, held, cost := e.limitsUsed[i], int64(0), l.asks(c.cost)
		if e.limitsHeld != nil {
			held = e.limitsHeld[i]
		}
		result := newResult(l, c.meter)
		if v.blames() && !l.admits(used, held, cost) {
			result.WouldDeny = l.Mode == catalog.ModeShadow
			result.Violated = l.Mode == catalog.ModeEnforce
		}
		if result.Violated {
			switch {
			case l.blocked:
				v.deny(ReasonBlocked)
			case cost > l.units:
				v.deny(ReasonCostExceedsLimit)
			default:
				v.deny(ReasonQuotaExceeded)
				v.waits = append(v.waits, wait{
					forecast: b.forecast(l, r.Subject), subject: l.subjectOf(r.Subject), asked: cost, result: len(v.decision.Limits),
					corrected: b.corrected(l, r.Subject),
				})
			}
		}
		v.decision.Limits = append(v.decision.Limits, result)
		v.asked = append(v.asked, asked{limit: l, cost: cost})
	}
}

// lineOf is what a charge enters if it is allowed.
func (b *book) lineOf(c *charge, r *Request) line {
	e := line{
		kind: r.kind(), meter: c.meter.Name, meterID: c.meter.ID, subject: r.Subject,
		units: c.cost, atMicros: b.nowMicros, effectiveMicros: b.nowMicros,
	}
	if r.Kind == ledger.KindHold {
		e.units, e.held, e.effectiveMicros = 0, c.cost, b.nowMicros+r.TTL.Microseconds()
	}
	return e
}

func newResult(l *limit, meter *catalog.Meter) LimitResult {
	result := LimitResult{
		Name: l.Name, Meter: l.Meter, Unit: meter.Unit, Algorithm: l.Algorithm, Scope: l.Scope, Mode: l.Mode,
		Unlimited: l.Unlimited, Limit: l.units, WindowMicros: l.windowMicros,
	}
	if o := l.Override; o != nil {
		result.Override = &OverrideResult{Until: o.Until(), Reason: o.Reason}
	}
	return result
}

// report fills in how every limit stands after the decision.
func (v *verdict) report(b *book, r *Request) {
	for i, a := range v.asked {
		result := &v.decision.Limits[i]
		v.describe(b, i, a.limit, v.decision.Subject)
		if v.decision.Allowed && v.decision.kind() == ledger.KindConsume {
			v.shape(b, result, a.limit, r, a.cost)
		}
		v.bound(result)
	}
}

// reportAll tells how all limits stand on the meters of what was recorded.
func (v *verdict) reportAll(b *book, r *Request) {
	for i := range v.lines {
		e := &v.lines[i]
		meter := b.snapshot.Meter(e.meter)
		for _, l := range b.rules.byMeter[e.meter] {
			if meter != nil && l.counts(e.subject) {
				v.decision.Limits = append(v.decision.Limits, newResult(l, meter))
				v.asked = append(v.asked, asked{limit: l})
			}
		}
	}
	v.report(b, r)
}

// describe fills in how l, the limit at an index of the answer, stands.
func (v *verdict) describe(b *book, at int, l *limit, subject string) {
	result, f := &v.decision.Limits[at], b.forecast(l, subject)
	used := l.rule.Used(f.view)
	result.Used, result.Held = used, f.held
	if l.blocked { // whatever is given back, nothing of it can be used
		result.NeverResets = true
		return
	}
	if b.status == catalog.StatusActive { // nothing fits for a tenant that may not spend
		result.Remaining = l.remaining(used, f.held)
	}
	if used == 0 && f.held == 0 {
		return
	}
	if atMicros, ok := f.resetAt(); ok {
		result.resetAt(atMicros, b.clockMicros)
	} else {
		result.NeverResets = true
	}
	if w := (wait{forecast: f, subject: l.subjectOf(subject), asked: l.units, result: at, reset: true}); b.corrected(l, subject) && w.crosses() {
		v.waits = append(v.waits, w) // what was used last may have been given back
	}
}

// corrected reports whether anything of the limit's meter was ever given back.
func (b *book) corrected(l *limit, subject string) bool {
	return b.totals[meterKey{meter: l.Meter, subject: l.subjectOf(subject)}].returned > 0
}

// shape adds the delay that a leaky bucket asks for.
func (v *verdict) shape(b *book, result *LimitResult, l *limit, r *Request, cost int64) {
	shaper, ok := l.rule.(Shaper)
	if !ok || l.Mode != catalog.ModeEnforce {
		return
	}
	view := b.view(l, r.Subject)
	after := view.State
	if r.DryRun {
		after = l.rule.Take(view, cost)
	}
	delay := shaper.DelayMillis(after, b.clockMicros) // as all waits, from the real clock
	result.DelayMS = &delay
	if v.decision.DelayMS == nil || *v.decision.DelayMS < delay {
		v.decision.DelayMS = &delay
	}
}

// bound lowers the decision's remaining to that of an enforcing limit. One of concurrency
// counts holds: with none left nothing can be held, else any cost can, for all it says.
func (v *verdict) bound(result *LimitResult) {
	if result.Mode != catalog.ModeEnforce || result.Unlimited {
		return
	}
	if result.Algorithm == catalog.Concurrency && (v.decision.Kind != ledger.KindHold || result.Remaining > 0) {
		return
	}
	if v.decision.Remaining == nil || *v.decision.Remaining > result.Remaining {
		remaining := result.Remaining
		v.decision.Remaining = &remaining
	}
}

// ceilMillis rounds a span up to milliseconds; negative spans are 0.
func ceilMillis(micros int64) int64 {
	return (max(0, micros) + 999) / 1000
}

// stand describes every limit of the plan as it stands, without a request. Limits that
// count per subject are left out when there is none.
func (b *book) stand(tenant, subject string) verdict {
	v := verdict{decision: Decision{
		Tenant:    tenant,
		Subject:   subject,
		Standing:  &Standing{Status: b.status, Plan: b.rules.plan.Name, PlanVersion: b.rules.plan.Version},
		DecidedAt: time.UnixMicro(b.nowMicros).UTC(),
		ClockAt:   time.UnixMicro(b.clockMicros).UTC(),
		Limits:    []LimitResult{},
	}}
	for i := range b.rules.plan.Limits {
		spec := &b.rules.plan.Limits[i]
		for _, l := range b.rules.byMeter[spec.Meter] {
			if l.Name != spec.Name || (l.Scope == catalog.ScopeSubject && subject == "") {
				continue
			}
			v.decision.Limits = append(v.decision.Limits, newResult(l, b.snapshot.Meter(l.Meter)))
			last := len(v.decision.Limits) - 1
			v.describe(b, last, l, subject)
			v.bound(&v.decision.Limits[last])
		}
	}
	return v
}
