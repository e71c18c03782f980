package quota

import (
	"context"
	"fmt"
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

// Bounds of removing idle levels. A step locks the accounts of its levels for a few
// milliseconds. There is one with each turn of the upkeep, so a million levels are looked
// through in about half an hour.
const (
	idleStep  = 1000        // levels of one transaction
	idleEvery = time.Hour   // between looking through all
	idleFirst = time.Minute // after an engine starts
)

// forgettable reports whether a level that is missing answers as v would under l: nothing
// of it was used at an instant, nor since, so both are full. A limit that blocks says
// nothing about when it is full again once it does not.
func (l *limit) forgettable(v level, plan string, atMicros int64) bool {
	return l.Scope == catalog.ScopeSubject && l.Algorithm.KeepsLevel() && !l.blocked && v.belongsTo(l, plan) &&
		v.AtMicros <= atMicros && l.rule.Used(View{NowMicros: atMicros, State: v.State}) == 0
}

// begunAnew reports whether a level may have been removed before an instant at which
// nothing of it was used: it is then as new, whatever its entries say under a later plan.
func (l *limit) begunAnew(v *level, used, atMicros int64) bool {
	return l.Scope == catalog.ScopeSubject && used == 0 && v.AtMicros <= atMicros-idleMin.Microseconds()
}

// limitNamed returns the limit of that name; nil without one, or while it is off.
func (r *rules) limitNamed(name string) *limit {
	for _, limits := range r.byMeter {
		for _, l := range limits {
			if l.Name == name {
				return l
			}
		}
	}
	return nil
}

// An idleRound looks through all levels, once an hour. Its zero value is at the beginning.
type idleRound struct {
	after levelRef  // where the next step begins
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

// removeIdleStep looks through the levels after one, in the order of their key, and
// removes what is idle of the tenants that nobody has locked. It returns the last one it
// has seen, and whether there may be more.
func (r *runner) removeIdleStep(ctx context.Context, after levelRef) (next levelRef, more bool, err error) {
	if err := r.connect(ctx); err != nil {
		return after, false, err
	}
	var seen []idleCandidate
	var queries pgx.Batch
	queueIdleCandidates(&queries, after, func(c idleCandidate) { seen = append(seen, c) })
	if err := r.session.Send(ctx, &queries, r.engine.config.readTimeout); err != nil {
		r.session.Close()
		return after, false, fmt.Errorf("look for idle levels: %w", err)
	}
	if len(seen) == 0 {
		return levelRef{}, false, nil
	}
	next, more = seen[len(seen)-1].levelRef, len(seen) == idleStep
	var idle []idleCandidate
	for _, c := range seen {
		if c.idle {
			idle = append(idle, c)
		}
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
	accounts := make(map[int64]ledger.Account)
	levels := make(map[levelRef]level)
	var names []string
	for i, c := range candidates {
		if i == 0 || c.tenantID != candidates[i-1].tenantID {
			names = append(names, c.tenant)
		}
	}
	var clock ledger.Clock
	var reads pgx.Batch
	pg.Begin(&reads)
	ledger.QueueLock(&reads, names, false, func(a ledger.Account) { accounts[a.TenantID] = a })
	ledger.QueueEdges(&reads, nil, nil, func(c ledger.Clock) { clock = c }, nil)
	queueLevelsOf(&reads, candidates, func(ref levelRef, v level) { levels[ref] = v })
	if err := r.session.Send(ctx, &reads, r.engine.config.readTimeout); err != nil {
		return err
	}
	snapshot := r.engine.snapshot.Load()
	if snapshot == nil || snapshot.Version != clock.CatalogVersion {
		var err error
		if snapshot, err = r.reload(ctx); err != nil {
			return err
		}
	}
	var gone []levelRef
	for _, c := range candidates {
		account, locked := accounts[c.tenantID]
		v, kept := levels[c.levelRef]
		if !locked || !kept {
			continue
		}
		rules, err := r.rulesFor(snapshot, factsOf(&account))
		if err != nil {
			continue // its plan cannot be compiled, so nobody knows what is full
		}
		l := rules.limitNamed(c.limit)
		if l != nil && l.forgettable(v, rules.plan.Name, clock.At.Add(-idleMin).UnixMicro()) {
			gone = append(gone, c.levelRef)
		}
	}
	var writes pgx.Batch
	queueRemoveLevels(&writes, gone)
	if err := r.session.Commit(ctx, &writes, r.engine.config.commitTimeout); err != nil {
		return err
	}
	r.engine.metrics.removed(len(gone))
	return nil
}
