package quota

import (
	"fmt"
	"slices"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// verdict is a decision and what its writer and its waits need.
type verdict struct {
	decision Decision
	charges  []charge // what an allowed request consumed, one per meter
	waits    []wait   // what a denied request waits for
}

// charge is the summed cost of a request on one meter.
type charge struct {
	meter      *catalog.Meter
	cost       int64
	path       string
	limitsUsed []int64 // what each limit of the rules on the meter had used before
}

// wait is a violated limit as it stood, and what it must come down to.
type wait struct {
	limit  *limit
	key    meterKey
	view   View
	target int64
	result int // index in Decision.Limits
	read   int64
}

// decide answers r and, if it is allowed and no dry run, takes it from the book. The
// book must hold everything that rules.needs names for the request's meters. An error
// is an *[Error] about the request; the book is then unchanged, as it is when the
// request is denied.
func decide(b *book, r *Request) (verdict, error) {
	charges, err := b.chargesOf(r)
	if err != nil {
		return verdict{}, err
	}
	v := verdict{decision: Decision{
		Allowed: true,
		Tenant:  r.Tenant,
		Subject: r.Subject,
		DryRun:  r.DryRun,
		Charges: make([]ChargeResult, len(charges)),
		Limits:  make([]LimitResult, 0, len(b.rules.plan.Limits)),
	}}
	if b.status != catalog.StatusActive {
		v.deny(ReasonTenantSuspended)
	}
	for i, c := range charges {
		v.decision.Charges[i] = ChargeResult{Meter: c.meter.Name, Cost: c.cost}
		if !b.rules.named[c.meter.Name] {
			v.deny(ReasonMeterNotInPlan)
		}
	}
	for i := range charges {
		v.ask(b, &charges[i], r.Subject)
	}
	v.charges = charges
	if v.decision.Allowed {
		if err := b.checkTotals(charges); err != nil {
			return verdict{}, err
		}
	}
	if v.decision.Allowed && !r.DryRun {
		for _, c := range charges {
			b.take(c.meter.Name, r.Subject, c.cost)
		}
	}
	v.report(b, r)
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
		cost := c.Cost
		if c.Pools != nil {
			var err error
			if cost, err = costOf(meter, c); err != nil {
				return nil, err
			}
		}
		i := slices.IndexFunc(charges, func(have charge) bool { return have.meter == meter })
		if i < 0 {
			i = len(charges)
			charges = append(charges, charge{meter: meter, path: c.field("cost")})
		}
		charges[i].cost += cost
		if charges[i].cost > catalog.UnitsMax {
			return nil, &Error{Code: CodeInvalidRequest, Faults: []Fault{{
				c.field("cost"),
				"must sum to at most 999999999999999 over the charges on one meter",
			}}}
		}
	}
	for i := range charges {
		if err := b.checkCharge(&charges[i], r.Subject); err != nil {
			return nil, err
		}
	}
	return charges, nil
}

// checkCharge finds what makes a charge impossible to decide.
func (b *book) checkCharge(c *charge, subject string) error {
	for _, l := range b.rules.byMeter[c.meter.Name] {
		if l.Scope == catalog.ScopeSubject && subject == "" {
			return &Error{Code: CodeInvalidRequest, Faults: []Fault{{
				"subject",
				fmt.Sprintf("is required: limit %q on meter %q counts per subject", l.Name, c.meter.Name),
			}}}
		}
	}
	return nil
}

// checkTotals refuses what the limits would allow and the running totals cannot hold.
func (b *book) checkTotals(charges []charge) error {
	for _, c := range charges {
		if b.totals[meterKey{meter: c.meter.Name}].units+c.cost > catalog.UnitsMax {
			return &Error{Code: CodeAmountOverflow, Faults: []Fault{{
				c.path,
				"would take the tenant's running total over 999999999999999",
			}}}
		}
	}
	return nil
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
	}, r)
}

// blames reports whether limits that the request does not fit are why it is denied: a
// suspended tenant, or a meter outside of the plan, is denied whatever they say. Both are
// known before any limit is asked.
func (v *verdict) blames() bool {
	return v.decision.Reason == "" || v.decision.Reason.ofLimit()
}

// ask asks every limit on the charge's meter whether the cost fits.
func (v *verdict) ask(b *book, c *charge, subject string) {
	limits := b.rules.byMeter[c.meter.Name]
	c.limitsUsed = make([]int64, len(limits))
	for i, l := range limits {
		view, held := b.view(l, subject), b.held(l, subject)
		used := l.rule.Used(view)
		c.limitsUsed[i] = used
		result := newResult(l, c.meter)
		if v.blames() && !l.admits(used, held, c.cost) {
			result.WouldDeny = l.Mode == catalog.ModeShadow
			result.Violated = l.Mode == catalog.ModeEnforce
		}
		if result.Violated {
			switch {
			case l.blocked:
				v.deny(ReasonBlocked)
			case c.cost > l.units:
				v.deny(ReasonCostExceedsLimit)
			default:
				v.deny(ReasonQuotaExceeded)
				key := meterKey{meter: l.Meter, subject: l.subjectOf(subject)}
				v.waits = append(v.waits, wait{
					limit: l, key: key, view: view, target: l.units - held - c.cost,
					result: len(v.decision.Limits), read: b.totals[key].readUnits,
				})
			}
		}
		v.decision.Limits = append(v.decision.Limits, result)
	}
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
	i := 0
	for _, c := range v.charges {
		for _, l := range b.rules.byMeter[c.meter.Name] {
			result := &v.decision.Limits[i]
			b.describe(result, l, r.Subject)
			if v.decision.Allowed {
				v.shape(b, result, l, r, c.cost)
			}
			v.bound(result)
			i++
		}
	}
}

// describe fills in how l stands.
func (b *book) describe(result *LimitResult, l *limit, subject string) {
	view, held := b.view(l, subject), b.held(l, subject)
	used := l.rule.Used(view)
	result.Used, result.Held = used, held
	if l.blocked { // whatever is given back, nothing of it can be used
		result.NeverResets = true
		return
	}
	if b.status == catalog.StatusActive { // nothing fits for a tenant that may not spend
		result.Remaining = l.remaining(used, held)
	}
	if used == 0 {
		return
	}
	if at, ok := l.rule.FreeAt(view, 0); ok {
		result.ResetMS = ceilMillis(at - b.clockMicros)
	} else {
		result.NeverResets = true
	}
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
	delay := shaper.DelayMillis(after, b.nowMicros)
	result.DelayMS = &delay
	if v.decision.DelayMS == nil || *v.decision.DelayMS < delay {
		v.decision.DelayMS = &delay
	}
}

// bound lowers the decision's remaining to that of an enforcing limit.
func (v *verdict) bound(result *LimitResult) {
	if result.Mode != catalog.ModeEnforce || result.Unlimited {
		return
	}
	if v.decision.Remaining == nil || *v.decision.Remaining > result.Remaining {
		remaining := result.Remaining
		v.decision.Remaining = &remaining
	}
}

// crossings calls need for each running total whose instant settleWaits will ask for
// and that the ledger held before this batch.
func (v *verdict) crossings(need func(w *wait, target int64)) {
	if v.decision.Reason != ReasonQuotaExceeded {
		return
	}
	for i := range v.waits {
		w := &v.waits[i]
		if target := w.view.Total - w.target; w.limit.Algorithm == catalog.SlidingLog && target <= w.read {
			need(w, target)
		}
	}
}

// settleWaits tells how long a denied request has to wait: the longest of its limits'
// waits, from the real clock, or none if one of them never ends. crossing returns the
// instant at which a running total first reached target; entries of this batch are as
// old as the decision.
func (v *verdict) settleWaits(b *book, crossing func(key meterKey, target int64) int64) {
	if v.decision.Reason != ReasonQuotaExceeded {
		return
	}
	longest, ends := int64(0), true
	for i := range v.waits {
		w := &v.waits[i]
		w.view.Crossing = func(target int64) int64 {
			if target > w.read {
				return b.nowMicros
			}
			return crossing(w.key, target)
		}
		at, ok := w.limit.rule.FreeAt(w.view, w.target)
		if !ok {
			ends = false
			continue
		}
		ms := max(1, ceilMillis(at-b.clockMicros))
		v.decision.Limits[w.result].RetryMS = &ms
		longest = max(longest, ms)
	}
	if ends {
		v.decision.RetryMS = &longest
	}
}

// ceilMillis rounds a span up to milliseconds; negative spans are 0.
func ceilMillis(micros int64) int64 {
	return (max(0, micros) + 999) / 1000
}

// stand describes every limit of the plan as it stands, without a request. Limits that
// count per subject are left out when there is none.
func (b *book) stand(tenant, subject string) Decision {
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
			result := newResult(l, b.snapshot.Meter(l.Meter))
			b.describe(&result, l, subject)
			v.bound(&result)
			v.decision.Limits = append(v.decision.Limits, result)
		}
	}
	return v.decision
}
