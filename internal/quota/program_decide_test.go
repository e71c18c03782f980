package quota_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// told is what an answer has to say, of the model's and of the engine's alike.
type told struct {
	Error     quota.Code
	Replayed  bool
	Allowed   bool
	Reason    quota.Reason
	At        int64
	Charges   []quota.ChargeResult
	Remaining *int64
	Retry     *int64
	Delay     *int64
	Limits    []toldLimit
	Hold      *quota.HoldResult
	Reversal  *quota.Reversal
	Entries   [2]int64 // first and last number; 0 without

	retryAt int64 // the instant itself, for the model's own use
}

type toldLimit struct {
	Name                  string
	Used, Held, Remaining int64
	Violated, WouldDeny   bool
	Retry, Delay          *int64
	Reset                 int64
	Never                 bool
}

// units is what a request asks of each meter, in the order in which it names them.
func (m *model) units(charges []quota.Charge) (sums []part) {
	for _, c := range charges {
		cost := whole(c.Cost)
		for pool, amount := range c.Pools {
			cost.Add(cost, new(big.Rat).Mul(whole(amount), m.meters[c.Meter].weights[pool]))
		}
		i := slices.IndexFunc(sums, func(p part) bool { return p.meter == c.Meter })
		if i < 0 {
			i = len(sums)
			sums = append(sums, part{meter: c.Meter})
		}
		sums[i].units += roundUp(cost)
	}
	return sums
}

// do answers a request. id is what the engine called the hold that it made, if it did.
func (m *model) do(r quota.Request, id uuid.UUID) told {
	tn := m.tenants[r.Tenant]
	if tn == nil {
		return told{Error: quota.CodeTenantNotFound}
	}
	entries := len(tn.facts) // that the request can have meant
	m.tidy(tn)
	if before, ok := m.keptAnswer(tn, r.Key); ok {
		if before.request != describe(r) {
			return told{Error: quota.CodeKeyReused}
		}
		return told{Replayed: true}
	}
	switch cmp.Or(r.Kind, ledger.KindConsume) {
	case ledger.KindConsume, ledger.KindHold:
		return m.spend(tn, r, id)
	case ledger.KindReverse:
		return m.reverse(tn, r, entries)
	default:
		return m.resolve(tn, r)
	}
}

// looksAt are the limits that a request on meters looks at.
func (m *model) looksAt(kind ledger.Kind, meters []part, subject string) (limits []*limit) {
	for _, l := range m.plan {
		named := slices.ContainsFunc(meters, func(p part) bool { return p.meter == l.meter })
		switch {
		case !named, l.mode == catalog.ModeOff:
		case l.bySubject && subject == "":
		case l.algorithm == catalog.Concurrency && kind == ledger.KindConsume:
		default:
			limits = append(limits, l)
		}
	}
	return limits
}

// refusal is the error of a request that the plan has no answer to.
func (m *model) refusal(kind ledger.Kind, asked []part, subject string) quota.Code {
	for _, p := range asked {
		for _, l := range m.plan {
			switch {
			case l.meter != p.meter, l.mode == catalog.ModeOff, l.algorithm == catalog.Concurrency && kind != ledger.KindHold:
			case l.bySubject && subject == "":
				return quota.CodeInvalidRequest
			case l.algorithm == catalog.LeakyBucket && kind == ledger.KindHold:
				return quota.CodeHoldsNotSupported
			}
		}
	}
	return ""
}

// costOf is what a request asks of a limit.
func costOf(l *limit, asked []part) int64 {
	if l.algorithm == catalog.Concurrency {
		return 1
	}
	i := slices.IndexFunc(asked, func(p part) bool { return p.meter == l.meter })
	return asked[i].units
}

// verdict is why a request does not fit a limit, or "".
func (tn *tenant) verdict(l *limit, subject string, at, cost int64) quota.Reason {
	switch {
	case tn.fits(l, subject, at, cost):
		return ""
	case l.blocks():
		return quota.ReasonBlocked
	case cost > l.size:
		return quota.ReasonCostExceedsLimit
	}
	return quota.ReasonQuotaExceeded
}

var severity = []quota.Reason{
	"", quota.ReasonQuotaExceeded, quota.ReasonCostExceedsLimit, quota.ReasonBlocked,
	quota.ReasonMeterNotInPlan, quota.ReasonTenantSuspended,
}

// spend decides a consume or a hold.
func (m *model) spend(tn *tenant, r quota.Request, id uuid.UUID) told {
	now, asked := m.now(tn), m.units(r.Charges)
	kind := cmp.Or(r.Kind, ledger.KindConsume)
	if code := m.refusal(kind, asked, r.Subject); code != "" {
		return told{Error: code}
	}
	limits := m.looksAt(kind, asked, r.Subject)
	t := told{At: now, Charges: chargesOf(asked)}
	worst := quota.Reason("")
	raise := func(reason quota.Reason) {
		if slices.Index(severity, reason) > slices.Index(severity, worst) {
			worst = reason
		}
	}
	verdicts := map[*limit]quota.Reason{}
	for _, l := range limits {
		verdicts[l] = tn.verdict(l, r.Subject, now, costOf(l, asked))
		if l.mode == catalog.ModeEnforce {
			raise(verdicts[l])
		}
	}
	for _, p := range asked {
		if !slices.ContainsFunc(m.plan, func(l *limit) bool { return l.meter == p.meter }) {
			raise(quota.ReasonMeterNotInPlan)
		}
	}
	if tn.suspended {
		raise(quota.ReasonTenantSuspended)
	}
	t.Reason, t.Allowed = worst, worst == ""
	if t.Allowed && !r.DryRun {
		m.enter(tn, r, asked, limits, verdicts, &t, id)
	}
	m.report(kind, tn, limits, r.Subject, &t)
	for i, l := range limits {
		m.explain(tn, l, r.Subject, costOf(l, asked), verdicts[l], &t, &t.Limits[i])
	}
	return t
}

// explain adds to what a limit says why it denies, until when, and the delay of a queue.
func (m *model) explain(tn *tenant, l *limit, subject string, cost int64, why quota.Reason, t *told, said *toldLimit) {
	named := t.Reason != quota.ReasonMeterNotInPlan && t.Reason != quota.ReasonTenantSuspended
	said.WouldDeny = l.mode == catalog.ModeShadow && why != "" && named
	said.Violated = l.mode == catalog.ModeEnforce && why != "" && named
	if said.Violated && why == quota.ReasonQuotaExceeded && t.Reason == quota.ReasonQuotaExceeded {
		at, found := firstAt(m.now(tn), func(at int64) bool { return tn.fits(l, subject, at, cost) })
		if found {
			said.Retry = m.wait(at)
			t.retryAt = max(t.retryAt, at)
			if t.Retry == nil || *t.Retry < *said.Retry {
				t.Retry = said.Retry
			}
		}
	}
	if l.algorithm == catalog.LeakyBucket && l.mode == catalog.ModeEnforce && t.Allowed {
		departure := tn.lastDeparture(l, subject, m.now(tn))
		if t.Entries[0] == 0 { // a dry run: it would leave behind the others
			departure = depart(departure, m.now(tn), cost, l)
		}
		delay := max(0, roundUp(departure.Sub(departure, whole(m.clock)).Quo(departure, whole(1000))))
		said.Delay = &delay
		if t.Delay == nil || *t.Delay < delay {
			t.Delay = &delay
		}
	}
}

// wait is the time until an instant, told from the real clock in ms.
func (m *model) wait(at int64) *int64 {
	ms := roundUp(big.NewRat(at-m.clock, 1000))
	return &ms
}

// enter records what was allowed.
func (m *model) enter(
	tn *tenant, r quota.Request, asked []part, limits []*limit, verdicts map[*limit]quota.Reason, t *told, id uuid.UUID,
) {
	kind := cmp.Or(r.Kind, ledger.KindConsume)
	t.Entries = [2]int64{int64(len(tn.facts)) + 1, int64(len(tn.facts) + len(asked))}
	for _, p := range asked {
		f := fact{kind: kind, at: t.At, effective: t.At, meter: p.meter, subject: r.Subject, units: p.units, corrects: -1}
		if kind == ledger.KindHold {
			f.units = 0
		}
		tn.post(f)
	}
	if kind == ledger.KindHold {
		h := &hold{
			id: id, subject: r.Subject, parts: slices.Clone(asked), start: t.At,
			expires: t.At + r.TTL.Microseconds(), state: quota.HoldOpen,
		}
		tn.holds = append(tn.holds, h)
		t.Hold = h.result()
	} else {
		for _, l := range limits {
			if l.hasLevel() && verdicts[l] == "" && costOf(l, asked) > 0 { // a shadow takes what it would have admitted
				tn.ops = append(tn.ops, op{keyOf(l, r.Subject), t.At, costOf(l, asked), *l})
			}
		}
	}
	tn.remember(t.At)
}

func (h *hold) result() *quota.HoldResult {
	return &quota.HoldResult{ID: h.id, State: h.state, ExpiresAt: time.UnixMicro(h.expires).UTC(), Late: h.late}
}

// report says how limits stand now.
func (m *model) report(kind ledger.Kind, tn *tenant, limits []*limit, subject string, t *told) {
	for _, l := range limits {
		said := tn.say(l, subject, m.now(tn))
		if said.Never = l.blocks(); !said.Never {
			at, _ := firstAt(m.now(tn), func(at int64) bool {
				s := tn.stand(l, subject, at)
				return s.used.Sign() <= 0 && s.held == 0
			})
			if at > m.now(tn) {
				said.Reset = *m.wait(at)
			}
		}
		bounds := l.mode == catalog.ModeEnforce && !l.unlimited
		if l.algorithm == catalog.Concurrency && (kind != ledger.KindHold || said.Remaining > 0) {
			bounds = false // its remaining is holds, not cost
		}
		if bounds && (t.Remaining == nil || *t.Remaining > said.Remaining) {
			remaining := said.Remaining
			t.Remaining = &remaining
		}
		t.Limits = append(t.Limits, said)
	}
}

// say is the numbers of a limit at an instant.
func (tn *tenant) say(l *limit, subject string, at int64) toldLimit {
	s := tn.stand(l, subject, at)
	said := toldLimit{Name: l.name, Used: roundUp(s.used), Held: s.held}
	if !l.blocks() && !l.unlimited && !tn.suspended {
		room := new(big.Rat).Sub(whole(l.size-s.held), s.used)
		said.Remaining = max(0, roundDown(room))
	}
	return said
}

func chargesOf(parts []part) (charges []quota.ChargeResult) {
	for _, p := range parts {
		charges = append(charges, quota.ChargeResult{Meter: p.meter, Cost: p.units})
	}
	return charges
}

// describe is a request as one line, its key and tenant left out.
func describe(r quota.Request) string {
	r.Key, r.Tenant = "", ""
	text := new(strings.Builder)
	fmt.Fprintf(text, "%s", cmp.Or(r.Kind, ledger.KindConsume))
	if r.Subject != "" {
		fmt.Fprintf(text, " by %s", r.Subject)
	}
	for _, c := range r.Charges {
		amount := fmt.Sprint(c.Cost)
		if c.Pools != nil {
			pools, _ := json.Marshal(c.Pools) // in the order of names
			amount = string(pools)
		}
		fmt.Fprintf(text, " %s of %q", amount, c.Meter)
	}
	if r.Hold != uuid.Nil {
		fmt.Fprintf(text, " hold %s", r.Hold)
	}
	if r.TTL != 0 {
		fmt.Fprintf(text, " for %s", r.TTL)
	}
	if r.Seq != 0 {
		fmt.Fprintf(text, " seq %d units %d", r.Seq, r.Units)
	}
	if r.DryRun {
		text.WriteString(" (dry run)")
	}
	return text.String()
}
