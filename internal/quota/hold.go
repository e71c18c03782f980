package quota

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// A hold is cost that is set aside: what one row of its table says. While it is open it is
// subtracted from what is available, and nothing of it is in a window or a level.
type hold struct {
	id            uuid.UUID
	subject       string
	charges       []heldCharge
	state         HoldState
	firstSeq      int64 // of its entries, one per charge
	startedMicros int64
	expiresMicros int64
	resolvedAt    int64    // µs; 0 while it is open
	expired       bool     // it has expired, whatever came after
	expiredSeq    int64    // the first entry of that
	resolution    [32]byte // what settle or release it was; zero for none
	answer        []byte   // what that got
	changed       bool
}

// A heldCharge is what a hold sets aside of one meter.
type heldCharge struct {
	meter   string
	meterID int32
	units   int64
	charged int64 // units that its expiry took
}

// on returns what h sets aside for a limit, and whether it is on its meter at all.
func (h *hold) on(l *limit, subject string) (units int64, counts bool) {
	if scoped := l.subjectOf(subject); scoped != "" && scoped != h.subject {
		return 0, false
	}
	for i := range h.charges {
		if h.charges[i].meter == l.Meter {
			return h.charges[i].units, true
		}
	}
	return 0, false
}

// result is h as an answer says it.
func (h *hold) result() *HoldResult {
	return &HoldResult{
		ID: h.id, State: h.state, ExpiresAt: time.UnixMicro(h.expiresMicros).UTC(),
		Late: h.expired && h.state == HoldSettled,
	}
}

// openHolds returns how many open holds there are on the limit's meter.
func (b *book) openHolds(l *limit, subject string) (n int64) {
	for _, h := range b.holds {
		if _, counts := h.on(l, subject); counts {
			n++
		}
	}
	return n
}

// due returns the open holds that have ended by now, in the order in which they did.
func (b *book) due() []*hold {
	var due []*hold
	for _, h := range b.holds {
		if h.expiresMicros <= b.nowMicros {
			due = append(due, h)
		}
	}
	slices.SortFunc(due, func(x, y *hold) int {
		return cmp.Or(cmp.Compare(x.expiresMicros, y.expiresMicros), cmp.Compare(x.firstSeq, y.firstSeq))
	})
	return due
}

// endedAt is the instant that the expiry of h is dated: its end, or when what is in force
// now began, if that was later. Nothing of the tenant is younger.
func (b *book) endedAt(h *hold) int64 { return min(max(h.expiresMicros, b.beganMicros), b.nowMicros) }

// expire ends a hold whose time is over, and returns the lines that say so. The meter says
// whether what was set aside is charged or given up.
func (b *book) expire(h *hold) []line {
	lines, at := make([]line, len(h.charges)), b.endedAt(h)
	for i := range h.charges {
		c := &h.charges[i]
		meter := b.snapshot.Meter(c.meter)
		if meter != nil && meter.OnExpiry == catalog.ExpiryCharge && b.room(c.meter) >= c.units {
			c.charged = c.units
		}
		lines[i] = line{
			kind: ledger.KindExpire, meter: c.meter, meterID: c.meterID, subject: h.subject,
			units: c.charged, held: -c.units, refSeq: h.firstSeq + int64(i), atMicros: at, effectiveMicros: at,
		}
		b.enter(&lines[i])
	}
	b.holds = slices.DeleteFunc(b.holds, func(other *hold) bool { return other == h })
	h.state, h.expired, h.resolvedAt, h.changed = HoldExpired, true, at, true
	return lines
}

// resolutionOf is what r resolves a hold with: equal ones are repetitions.
func resolutionOf(r *Request, costs []int64) [32]byte {
	same := Request{Kind: r.Kind, Dims: r.Dims}
	for _, cost := range costs {
		same.Charges = append(same.Charges, Charge{Cost: cost})
	}
	return same.fingerprint()
}

// resolve answers a settle, release or extend of h and, if it is no dry run, does it.
func (b *book) resolve(r *Request, h *hold) (verdict, error) {
	if h == nil {
		return verdict{}, errNoHold()
	}
	costs := make([]int64, len(h.charges))
	if r.Kind == ledger.KindSettle {
		var err error
		if costs, err = b.settleCosts(r, h); err != nil {
			return verdict{}, err
		}
	}
	switch {
	case h.state == HoldOpen, h.state == HoldExpired && r.Kind == ledger.KindSettle:
	case h.answer != nil && r.Kind != ledger.KindExtend && h.resolution == resolutionOf(r, costs):
		return verdict{decision: Decision{Allowed: true, Tenant: r.Tenant, Replayed: true, Encoded: h.answer}}, nil
	default:
		return verdict{}, &Error{Code: CodeHoldResolved, Faults: []Fault{{"hold", fmt.Sprintf(
			"must be open: it is %s since %s", h.state, time.UnixMicro(h.resolvedAt).UTC().Format(time.RFC3339Nano))}}}
	}
	expires := b.nowMicros + r.TTL.Microseconds()
	if r.Kind == ledger.KindExtend && expires > h.startedMicros+TTLMax.Microseconds() {
		return verdict{}, &Error{Code: CodeInvalidRequest, Faults: []Fault{{
			"ttl_ms", "must end within 24 hours of the hold's start, which was at " +
				time.UnixMicro(h.startedMicros).UTC().Format(time.RFC3339Nano),
		}}}
	}
	v := recorded(r, h.subject)
	for i := range h.charges {
		c := &h.charges[i]
		if costs[i]-c.charged > b.room(c.meter) { // the expiry's part is in the total already
			return verdict{}, overflow(r.costField(c.meter))
		}
		v.decision.Charges = append(v.decision.Charges, ChargeResult{Meter: c.meter, Cost: costs[i], Held: &c.units})
		l := line{
			kind: r.Kind, meter: c.meter, meterID: c.meterID, subject: h.subject,
			refSeq: h.firstSeq + int64(i), atMicros: b.nowMicros, effectiveMicros: b.nowMicros,
		}
		switch {
		case r.Kind == ledger.KindExtend:
			l.effectiveMicros = expires
		case h.state == HoldOpen:
			l.units, l.held = costs[i], -c.units
		default: // the truth, less what the expiry took for it
			l.units = costs[i] - c.charged
			if l.units < 0 {
				l.refSeq, l.effectiveMicros = h.expiredSeq+int64(i), h.resolvedAt
			}
		}
		v.lines = append(v.lines, l)
	}
	b.enterAll(&v, r)
	v.decision.Hold, v.hold = b.resolved(r, h, expires, resolutionOf(r, costs)), h
	v.reportAll(b, r)
	return v, nil
}

// resolved brings h to the state that r leaves it in, which it returns; in a dry run h
// stays as it is.
func (b *book) resolved(r *Request, h *hold, expires int64, resolution [32]byte) *HoldResult {
	after := *h
	if !r.DryRun {
		defer func() { *h = after }()
	}
	switch r.Kind {
	case ledger.KindExtend:
		after.expiresMicros, after.changed = expires, true
	case ledger.KindSettle:
		after.state = HoldSettled
	case ledger.KindRelease:
		after.state = HoldReleased
	}
	if after.state != HoldOpen {
		after.resolvedAt, after.resolution, after.changed = b.nowMicros, resolution, true
		if !r.DryRun {
			b.holds = slices.DeleteFunc(b.holds, func(other *hold) bool { return other == h })
		}
	}
	return after.result()
}

// settleCosts returns what r says each charge of h came to, in the order of the hold.
// The hold is of its meters: another one needs a decision of its own.
func (b *book) settleCosts(r *Request, h *hold) ([]int64, error) {
	charges := r.Charges
	if len(charges) == 1 && charges[0].Meter == "" {
		if len(h.charges) > 1 {
			return nil, invalid(charges[0].field("meter"), fmt.Sprintf("is required: the hold is on %d meters", len(h.charges)))
		}
		charges = slices.Clone(charges)
		charges[0].Meter = h.charges[0].meter
	}
	costs := make([]int64, len(h.charges))
	named := make([]bool, len(h.charges))
	for _, c := range charges {
		i := slices.IndexFunc(h.charges, func(held heldCharge) bool { return held.meter == c.Meter })
		if i < 0 {
			return nil, invalid(c.field("meter"), "must be a meter of the hold")
		}
		cost, err := b.costOf(c)
		if err != nil {
			return nil, err
		}
		if named[i], costs[i] = true, costs[i]+cost; costs[i] > catalog.UnitsMax {
			return nil, invalid(c.field("cost"), sumRule)
		}
	}
	for i, c := range h.charges {
		if !named[i] {
			return nil, invalid("charges", "must say what each meter of the hold came to: "+c.meter+" is missing (0 if nothing)")
		}
	}
	return costs, nil
}

// costOf returns the cost of one charge.
func (b *book) costOf(c Charge) (int64, error) {
	if c.Pools == nil {
		return c.Cost, nil
	}
	meter := b.snapshot.Meter(c.Meter)
	if meter == nil { // removed since it was held
		return 0, &Error{Code: CodeMeterNotFound, Faults: []Fault{{c.field("meter"), "must name a configured meter"}}}
	}
	return costOf(meter, c)
}

// setAside makes the hold of an allowed request; a dry run makes none.
func (b *book) setAside(r *Request, id uuid.UUID, v *verdict) {
	if r.DryRun {
		return
	}
	h := &hold{
		id: id, subject: r.Subject, state: HoldOpen, changed: true,
		startedMicros: b.nowMicros, expiresMicros: b.nowMicros + r.TTL.Microseconds(),
	}
	for _, c := range v.charges {
		h.charges = append(h.charges, heldCharge{meter: c.meter.Name, meterID: c.meter.ID, units: c.cost})
	}
	v.hold, v.decision.Hold = h, h.result()
	b.holds = append(b.holds, h)
}

// firstFree returns when a tenant with as many open holds as it may have can make one more.
func (b *book) firstFree() int64 {
	expires := b.holds[0].expiresMicros
	for _, h := range b.holds {
		expires = min(expires, h.expiresMicros)
	}
	return expires
}

func errNoHold() *Error {
	return &Error{Code: CodeHoldNotFound, Faults: []Fault{{"hold", "must be a hold of the tenant"}}}
}

func invalid(field, rule string) *Error {
	return &Error{Code: CodeInvalidRequest, Faults: []Fault{{field, rule}}}
}
