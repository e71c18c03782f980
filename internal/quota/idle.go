package quota

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pg"
)

// idleMin is how long a subject's level must have been full before it is removed. A level
// that is in use is not made anew each time, and a clock that falls back by less takes
// nothing that was given.
const idleMin = 24 * time.Hour

// Bounds of removing idle levels. A step looks through a few thousand rows until some have
// levels to remove, and then locks their accounts for a few milliseconds. There is one with
// each turn of the upkeep, so ten million rows that keep none are looked through in about
// half an hour, and a million that all keep some.
const (
	idleStep  = 1000        // rows of one transaction
	idleLooks = 10          // statements of one step that found none
	idleEvery = time.Hour   // between looking through all
	idleFirst = time.Minute // after an engine starts
)

// forgettable reports whether a level that is missing answers as v would under l, which v
// is carried to: nothing of it is used at an instant, nor since, so both are full. A limit
// that blocks says nothing about when it is full again once it does not.
func (l *limit) forgettable(v *level, atMicros int64) bool {
	return l.Scope == catalog.ScopeSubject && l.Algorithm.KeepsLevel() && !l.blocked &&
		v.AtMicros <= atMicros && l.rule.Used(View{NowMicros: atMicros, State: v.State}) == 0
}

// mayBeGone reports whether a level may have been removed by an instant: it is a subject's,
// was last written a day before or more, and was full by what was in force at some time
// since.
func (v *level) mayBeGone(tl *catalog.Timeline, name string, by catalog.InForce) bool {
	written, known := tl.Piece(v.inForce())
	if v.Fresh() || !known || v.AtMicros > by.AtMicros-idleMin.Microseconds() {
		return false
	}
	s, was := v.State, ruleOf(&written, name)
	pieces := tl.Pieces(v.inForce(), by)
	for i := range pieces {
		until := by.AtMicros
		if i+1 < len(pieces) {
			until = pieces[i+1].FromMicros
		}
		s, was = elapse(s, was, pieces[i:i+1], until)
		if was.limit == nil || was.limit.Scope != catalog.ScopeSubject || blocked(*was.limit) {
			continue
		}
		if newAlgorithm(*was.limit, nil).Used(View{NowMicros: until, State: s}) == 0 {
			return true
		}
	}
	return false
}

// limitNamed returns the limit of that name on a meter; nil without one, or while it is off.
func (r *rules) limitNamed(meter, name string) *limit {
	for _, l := range r.byMeter[meter] {
		if l.Name == name {
			return l
		}
	}
	return nil
}

// An idleRound looks through all totals, once an hour. Its zero value is at the beginning.
type idleRound struct {
	after totalRef  // where the next step begins
	next  time.Time // when a step is due, on the monotonic clock
}

// removeIdle takes a step of the round if one is due.
func (r *runner) removeIdle(ctx context.Context, round *idleRound, now time.Time) {
	if now.Before(round.next) {
		return
	}
	last, more, err := r.removeIdleStep(ctx, round.after)
	switch {
	case err != nil:
		r.engine.config.Log.Warn("idle levels are not removed", "error", err)
		round.next = now.Add(idleEvery)
	case more:
		round.after = last
	default:
		*round = idleRound{next: now.Add(idleEvery)}
	}
}

// removeIdleStep looks through the totals after one, in the order of their key, and removes
// the levels that are idle of the tenants that nobody has locked. It returns the last total
// it has seen, and whether there may be more.
func (r *runner) removeIdleStep(ctx context.Context, after totalRef) (next totalRef, more bool, err error) {
	if err := r.connect(ctx); err != nil {
		return after, false, err
	}
	next, more = after, true
	var idle []idleCandidate
	for range idleLooks {
		if len(idle) > 0 || !more {
			break
		}
		seen := 0
		var queries pgx.Batch
		queueIdleCandidates(&queries, next, func(c idleCandidate) {
			if next, seen = c.totalRef, seen+1; c.idle {
				idle = append(idle, c)
			}
		})
		if err := r.session.Send(ctx, &queries, r.engine.config.readTimeout); err != nil {
			r.session.Close()
			return after, false, fmt.Errorf("look for idle levels: %w", err)
		}
		more = seen == idleStep
	}
	if len(idle) == 0 {
		return next, more, nil
	}
	if err := r.removeLevels(ctx, idle); err != nil {
		r.session.Rollback(ctx, r.engine.config.readTimeout)
		return after, false, fmt.Errorf("remove idle levels: %w", err)
	}
	return next, more, nil
}

// removeLevels locks the accounts of candidates, those that are free, reads the levels
// and the configuration again, and removes the levels that have been full for long.
func (r *runner) removeLevels(ctx context.Context, candidates []idleCandidate) error {
	b := &batch{runner: r, byName: make(map[string]*tenantWork)}
	levels := make(map[totalRef]keptLevels)
	var names []string
	for i, c := range candidates {
		if i == 0 || c.tenantID != candidates[i-1].tenantID {
			names = append(names, c.tenant)
		}
	}
	var reads pgx.Batch
	pg.Begin(&reads)
	ledger.QueueLock(&reads, names, false, func(a ledger.Account) {
		t := &tenantWork{name: a.Tenant, locked: true, account: a, facts: factsOf(&a)}
		b.tenants, b.byName[a.Tenant] = append(b.tenants, t), t
	})
	ledger.QueueEdges(&reads, nil, nil, func(c ledger.Clock) { b.clock = c }, nil)
	queueLevelsOf(&reads, candidates, func(ref totalRef, text []byte) {
		if kept, err := decodeLevels(text); err == nil { // else nobody knows what is full
			levels[ref] = kept
		}
	})
	if err := r.session.Send(ctx, &reads, r.engine.config.readTimeout); err != nil {
		return err
	}
	if err := b.openBooks(ctx); err != nil {
		return err
	}
	left, gone, err := b.withoutIdle(ctx, candidates, levels)
	if err != nil {
		return err
	}
	var writes pgx.Batch
	queueSetLevels(&writes, left)
	if err := r.session.Commit(ctx, &writes, r.engine.config.commitTimeout); err != nil {
		return err
	}
	r.engine.metrics.removed(gone)
	return nil
}

// openBooks gives the tenants books without totals, under the rules in force. A tenant
// whose plan cannot be compiled has none: nobody knows what is full. Nor has one with open
// holds, whose end may be charged to the levels as they were.
func (b *batch) openBooks(ctx context.Context) (err error) {
	b.snapshot = b.runner.engine.snapshot.Load()
	if b.snapshot == nil || b.snapshot.Version != b.clock.CatalogVersion {
		if b.snapshot, err = b.runner.reload(ctx); err != nil {
			return err
		}
	}
	if err := b.runner.loadSets(ctx, b.runner.session, b.tenants); err != nil {
		return err
	}
	for _, t := range b.tenants {
		if t.account.OpenHolds > 0 {
			continue
		}
		if rules, err := b.runner.rulesFor(b.snapshot, t.facts, b.now(t)); err == nil {
			t.book = newBook(rules, b.snapshot)
			t.book.nowMicros = b.now(t)
		}
	}
	return nil
}

// withoutIdle returns what is left of levels of which some have been full for long, and how
// many those are. One that was written under something else than is in force now is carried
// to that, and judged as it is now. Those of limits that the plan does not have are left.
func (b *batch) withoutIdle(
	ctx context.Context, candidates []idleCandidate, levels map[totalRef]keptLevels,
) (left map[totalRef]keptLevels, gone int, err error) {
	keyOf := func(book *book, c *idleCandidate, name string) limitKey {
		return limitKey{book.rules.limitNamed(c.meter, name), strconv.FormatInt(c.subjectID, 10)}
	}
	candidates = slices.DeleteFunc(candidates, func(c idleCandidate) bool {
		t := b.byName[c.tenant]
		return t == nil || t.book == nil
	})
	for i := range candidates {
		c := &candidates[i]
		book := b.byName[c.tenant].book
		for _, kept := range levels[c.totalRef] {
			if key := keyOf(book, c, kept.limit); key.limit != nil && key.limit.Algorithm.KeepsLevel() {
				book.levels[key] = &kept.level
			}
		}
	}
	if err := b.carryLevels(ctx, b.runner.session); err != nil {
		return nil, 0, err
	}
	left = make(map[totalRef]keptLevels)
	dayAgo := b.clock.At.Add(-idleMin).UnixMicro()
	for i := range candidates {
		c := &candidates[i]
		book, before := b.byName[c.tenant].book, levels[c.totalRef]
		after := slices.DeleteFunc(slices.Clone(before), func(kept namedLevel) bool {
			key, at := keyOf(book, c, kept.limit), dayAgo
			v := book.levels[key]
			if v == nil || kept.AtMicros > dayAgo {
				return false
			}
			if *v != kept.level {
				at = book.nowMicros
			}
			return key.limit.forgettable(v, at)
		})
		if removed := len(before) - len(after); removed > 0 {
			left[c.totalRef], gone = after, gone+removed
		}
	}
	return left, gone, nil
}
