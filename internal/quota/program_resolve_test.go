package quota_test

import (
	"slices"
	"time"

	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// resolve carries out settle, release and extend, which no limit can deny.
func (m *model) resolve(tn *tenant, r quota.Request) told {
	i := slices.IndexFunc(tn.holds, func(h *hold) bool { return h.id == r.Hold })
	if i < 0 {
		return told{Error: quota.CodeHoldNotFound}
	}
	h, now := tn.holds[i], m.now(tn)
	settled, ok := m.settled(h, r)
	switch {
	case !ok:
		return told{Error: quota.CodeInvalidRequest}
	case r.Kind != ledger.KindExtend && h.resolution != "" && h.resolution == m.resolution(h, r):
		return told{Replayed: true}
	case h.resolution != "",
		h.state == quota.HoldExpired && r.Kind != ledger.KindSettle:
		return told{Error: quota.CodeHoldResolved}
	case r.Kind == ledger.KindExtend && now+r.TTL.Microseconds() > h.start+quota.TTLMax.Microseconds():
		return told{Error: quota.CodeInvalidRequest}
	}
	t := told{At: now, Allowed: true, Charges: settled}
	was := *h
	if r.DryRun {
		h = &was
	}
	switch r.Kind {
	case ledger.KindSettle:
		h.late = h.state == quota.HoldExpired
		h.state = quota.HoldSettled
	case ledger.KindRelease:
		h.state = quota.HoldReleased
	case ledger.KindExtend:
		h.expires = now + r.TTL.Microseconds()
	}
	t.Hold = h.result()
	if !r.DryRun {
		t.Entries = [2]int64{int64(len(tn.facts)) + 1, int64(len(tn.facts) + len(h.parts))}
		for j, p := range h.parts {
			m.settlePart(tn, h, p, r.Kind, settled[j].Cost, now)
		}
		if r.Kind != ledger.KindExtend {
			h.resolution = m.resolution(h, r)
		}
		tn.remember(now)
	}
	m.report(r.Kind, tn, m.looksAt(r.Kind, h.parts, h.subject), h.subject, &t)
	return t
}

// settlePart writes what a resolution says of one meter of a hold. What an expiry had
// charged is made up for: more is used now, less is given back where it was taken.
func (m *model) settlePart(tn *tenant, h *hold, p part, kind ledger.Kind, cost, now int64) {
	f := fact{kind: kind, at: now, effective: now, meter: p.meter, subject: h.subject, units: cost, corrects: -1}
	if h.late {
		charged := tn.facts[p.fact]
		if f.units -= charged.units; f.units < 0 {
			f.effective, f.corrects = charged.effective, p.fact
		}
	}
	if kind == ledger.KindSettle {
		m.take(tn, p.meter, h.subject, f.units, now)
	}
	tn.post(f)
}

// settled is what a resolution says of each meter of its hold.
func (m *model) settled(h *hold, r quota.Request) (charges []quota.ChargeResult, ok bool) {
	for _, p := range h.parts {
		held := p.units
		charges = append(charges, quota.ChargeResult{Meter: p.meter, Held: &held})
	}
	if r.Kind != ledger.KindSettle {
		return charges, true
	}
	named := slices.Clone(r.Charges)
	if len(named) == 1 && named[0].Meter == "" {
		if len(h.parts) != 1 {
			return nil, false
		}
		named[0].Meter = h.parts[0].meter
	}
	asked := m.units(named)
	for _, p := range asked {
		i := slices.IndexFunc(h.parts, func(q part) bool { return p.meter == q.meter })
		if i < 0 {
			return nil, false
		}
		charges[i].Cost = p.units
	}
	return charges, len(asked) == len(h.parts)
}

// resolution says what a resolution comes to, so that the same one can be told.
func (m *model) resolution(h *hold, r quota.Request) string {
	text := string(r.Kind)
	charges, _ := m.settled(h, r)
	for _, c := range charges {
		text += " " + c.Meter + " " + time.Duration(c.Cost).String()
	}
	return text
}

// reverse gives back units of an entry.
func (m *model) reverse(tn *tenant, r quota.Request, entries int) told {
	i := int(r.Seq) - 1
	if i >= entries {
		return told{Error: quota.CodeEntryNotFound}
	}
	f, left := tn.facts[i], tn.left(i)
	units := r.Units
	if units == 0 {
		units = left
	}
	switch {
	case f.units <= 0, tn.awaited(i):
		return told{Error: quota.CodeNotReversible}
	case units > left || units == 0:
		return told{Error: quota.CodeReversalTooLarge}
	}
	now := m.now(tn)
	t := told{
		At: now, Allowed: true,
		Reversal: &quota.Reversal{Seq: r.Seq, Meter: f.meter, Units: units, Left: left - units},
	}
	if !r.DryRun {
		t.Entries = [2]int64{int64(len(tn.facts)) + 1, int64(len(tn.facts)) + 1}
		m.take(tn, f.meter, f.subject, -units, now)
		tn.post(fact{
			kind: ledger.KindReverse, at: now, effective: f.effective, meter: f.meter, subject: f.subject,
			units: -units, corrects: i,
		})
		tn.remember(now)
	}
	m.report(r.Kind, tn, m.looksAt(r.Kind, []part{{meter: f.meter}}, f.subject), f.subject, &t)
	return t
}

// awaited reports whether a fact is the charge of a hold that can still be settled: that
// is how to give some of it back.
func (tn *tenant) awaited(i int) bool {
	return slices.ContainsFunc(tn.holds, func(h *hold) bool {
		return h.state == quota.HoldExpired && slices.ContainsFunc(h.parts, func(p part) bool { return p.fact == i })
	})
}
