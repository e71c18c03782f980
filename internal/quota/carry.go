package quota

import (
	"context"
	"fmt"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// carry brings a level that was written under other rules to what is in force now, through
// everything that the tenant had meanwhile. Each stretch of time counts at the rate and up
// to the capacity of the limit as it was then, and a level above a new capacity is cut to it. A
// plan without a limit of that name, or with one that keeps no level, has no rate: then
// the level stands still. One that another limit took the place of starts full: see
// [goesOn]. The departures that a leaky bucket has promised never move.
func (v *level) carry(tl *catalog.Timeline, name string, to catalog.InForce) error {
	from := v.inForce()
	if v.Fresh() || tl.Steady(from, to) {
		return nil
	}
	written, known := tl.Piece(from)
	now, there := tl.Piece(to)
	if !known || !there {
		return fmt.Errorf("the level of limit %q: plan versions %d and %d are not both known", name, from.VersionID, to.VersionID)
	}
	v.versionID, v.overrideSetID = to.VersionID, to.OverrideSetID
	was, is := ruleOf(&written, name), ruleOf(&now, name)
	if was.limit.Algorithm != catalog.LeakyBucket {
		v.State, was = elapse(v.State, was, tl.Pieces(from, to), to.AtMicros)
	}
	if !is.goesOn(was) {
		v.State = State{}
	}
	return nil
}

// inForce is what a level was written under. A leaky bucket's instant is that of its last
// departure.
func (v *level) inForce() catalog.InForce {
	return catalog.InForce{AtMicros: v.AtMicros, VersionID: v.versionID, OverrideSetID: v.overrideSetID}
}

// elapse lets the time of pieces pass, until an instant, for the level of a limit that was
// written under a rule. It returns the level, and the last rule that had it.
func elapse(s State, was planRule, pieces []catalog.Piece, untilMicros int64) (State, planRule) {
	for i := range pieces {
		until := untilMicros
		if i+1 < len(pieces) {
			until = pieces[i+1].FromMicros
		}
		is := ruleOf(&pieces[i], was.name)
		if is.limit == nil || !is.limit.Algorithm.KeepsLevel() {
			s.AtMicros = until
			continue
		}
		if !is.goesOn(was) {
			s = State{}
		}
		if was = is; !s.Fresh() && is.limit.Algorithm != catalog.LeakyBucket {
			s = newBucket(limitUnits(*is.limit), levelRate(*is.limit)).level(View{NowMicros: until, State: s})
		}
	}
	return s, was
}

// A planRule is the limit of a name in a plan; nil if the plan has none.
type planRule struct {
	name  string
	plan  string
	limit *catalog.Limit
}

func ruleOf(p *catalog.Piece, name string) planRule {
	return planRule{name, p.Plan.Name, p.Limit(name)}
}

// goesOn reports whether a level of the limit was goes on as the limit r: it counts the same
// by the same. A limit that its plan gave another algorithm, meter or scope meanwhile
// starts full, once.
func (r planRule) goesOn(was planRule) bool {
	if r.limit == nil || was.limit == nil {
		return false
	}
	return r.limit.Algorithm == was.limit.Algorithm && r.limit.Meter == was.limit.Meter && r.limit.Scope == was.limit.Scope &&
		(r.plan != was.plan || r.limit.Since == was.limit.Since)
}

// carryLevels brings every level that was read to what is in force now. Most were written
// under just that; for the others, the timelines of their tenants are read.
func (b *batch) carryLevels(ctx context.Context, q catalog.Querier) error {
	var queries []catalog.TimelineQuery
	var works []*tenantWork
	for _, t := range b.tenants {
		if q := t.timelineQuery(b.runner.sets[t.facts.terms.OverrideSetID]); len(q.VersionIDs) > 0 {
			queries, works = append(queries, q), append(works, t)
		}
	}
	if len(queries) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, b.runner.engine.config.readTimeout)
	defer cancel()
	timelines, err := b.runner.engine.config.Catalog.Timelines(ctx, q, queries)
	if err != nil {
		return err
	}
	for i, t := range works {
		if err := t.book.carry(timelines[i]); err != nil {
			return err
		}
	}
	return nil
}

// carry brings the levels to what is in force now: to now, or, if holds have ended before,
// to when it began, so that each expiry finds them as they were.
func (b *book) carry(tl *catalog.Timeline) error {
	to := b.inForce()
	if due := b.due(); len(due) > 0 {
		pieces := tl.Pieces(catalog.InForce{AtMicros: due[0].expiresMicros}, to)
		if len(pieces) > 0 {
			b.beganMicros = pieces[len(pieces)-1].FromMicros
			if pieces[len(pieces)-1].Plan.VersionID != to.VersionID {
				b.beganMicros = to.AtMicros // it was made after now was read
			}
		}
	}
	for key, v := range b.levels {
		to := to
		if b.beganMicros > 0 {
			to.AtMicros = max(v.AtMicros, b.beganMicros)
		}
		if err := v.carry(tl, key.limit.Name, to); err != nil {
			return err
		}
	}
	return nil
}

// timelineQuery asks for what the tenant had since the oldest of its levels that was
// written under something else than is in force now, and since the first of its holds has
// ended; for nothing if none was and none has.
func (t *tenantWork) timelineQuery(set *catalog.OverrideSet) (q catalog.TimelineQuery) {
	if !t.locked || t.book == nil {
		return q
	}
	now := t.book.inForce()
	if due := t.book.due(); len(due) > 0 {
		q.TenantID, q.Since = t.facts.tenantID, time.UnixMicro(due[0].expiresMicros).UTC()
		q.VersionIDs = append(q.VersionIDs, now.VersionID)
	}
	for _, v := range t.book.levels {
		if v.Fresh() || v.versionID == now.VersionID && v.overrideSetID == now.OverrideSetID &&
			t.facts.terms.Steady(set, v.AtMicros, now.AtMicros) {
			continue
		}
		if at := time.UnixMicro(v.AtMicros).UTC(); len(q.VersionIDs) == 0 || at.Before(q.Since) {
			q.Since = at
		}
		q.TenantID, q.VersionIDs = t.facts.tenantID, append(q.VersionIDs, v.versionID, now.VersionID)
	}
	return q
}

// inForce is what the book's decisions are made under.
func (b *book) inForce() catalog.InForce {
	plan := b.rules.plan
	return catalog.InForce{AtMicros: b.nowMicros, VersionID: plan.VersionID, OverrideSetID: plan.OverrideSetID}
}
