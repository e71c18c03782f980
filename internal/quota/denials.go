package quota

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pg"
)

// Bounds of what is remembered of denials until it is written.
const (
	denialsEvery     = time.Second     // between writes: what a crash may lose
	denialsKept      = 1000            // per tenant in the database
	denialsPerWrite  = 100             // per tenant: the newest ones of a second
	denialsGathered  = 5000            // over all tenants; further ones are counted only
	countsGathered   = 50_000          // tenant, limit, reason and minute; further ones are lost
	denialsPruneStep = 10_000          // rows of one statement
	denialsPruneMax  = 100             // statements of one run
	denialsFinal     = 5 * time.Second // what the end of an engine waits for the last write
	denialsRetention = 35 * 24 * time.Hour
)

// denialLog gathers what was denied and writes it in the background: counts of all,
// the newest of each tenant whole. A denial is told before it is written, and what the
// log cannot hold is dropped and counted in a metric; nothing ever waits for it.
type denialLog struct {
	engine  *Engine
	flushes chan chan error // asks for a write now
	ended   chan struct{}   // closed when nothing more will be gathered

	mu       sync.Mutex
	gathered gatheredDenials
}

// gatheredDenials is what one write takes.
type gatheredDenials struct {
	counts map[denialCountKey]int64
	last   map[int64][]deniedCall // by tenant, oldest first
	size   int                    // over all of last
}

// denialCountKey names a row of denial_count; limit "" counts each request once.
type denialCountKey struct {
	tenantID     int64
	minuteMicros int64
	limit        string
	reason       Reason
}

// deniedCall is a denial as it was answered.
type deniedCall struct {
	decision Decision
	afterSeq int64
	plan     *catalog.Plan // with the tenant's overrides
}

func newDenialLog(e *Engine) *denialLog {
	return &denialLog{
		engine:   e,
		flushes:  make(chan chan error),
		ended:    make(chan struct{}),
		gathered: newGatheredDenials(),
	}
}

func newGatheredDenials() gatheredDenials {
	return gatheredDenials{counts: make(map[denialCountKey]int64), last: make(map[int64][]deniedCall)}
}

// note takes a denial that was just answered.
func (l *denialLog) note(tenantID int64, d deniedCall) {
	l.mu.Lock()
	dropped := l.gathered.add(tenantID, d)
	l.mu.Unlock()
	if dropped {
		l.engine.metrics.dropped(1)
	}
}

// add takes a denial; it reports whether a part of it found no room.
func (g *gatheredDenials) add(tenantID int64, d deniedCall) (dropped bool) {
	key := denialCountKey{
		tenantID:     tenantID,
		minuteMicros: d.decision.DecidedAt.Truncate(time.Minute).UnixMicro(),
		reason:       d.decision.Reason,
	}
	dropped = !g.count(key, 1)
	for i := range d.decision.Limits {
		if l := &d.decision.Limits[i]; l.Violated {
			key.limit = l.Name
			dropped = !g.count(key, 1) || dropped
		}
	}
	return !g.keep(tenantID, d) || dropped
}

func (g *gatheredDenials) count(key denialCountKey, n int64) bool {
	if _, known := g.counts[key]; !known && len(g.counts) >= countsGathered {
		return false
	}
	g.counts[key] += n
	return true
}

// keep remembers d as the newest denial of its tenant, in place of the oldest where
// there are enough.
func (g *gatheredDenials) keep(tenantID int64, d deniedCall) bool {
	last := g.last[tenantID]
	if len(last) >= denialsPerWrite {
		last = last[1:]
		g.size--
	}
	if g.size >= denialsGathered {
		return false
	}
	g.last[tenantID] = append(last, d)
	g.size++
	return true
}

// putBack returns what could not be written, behind what was gathered since.
func (g *gatheredDenials) putBack(older gatheredDenials) {
	for key, n := range older.counts {
		g.count(key, n)
	}
	for tenantID, denials := range older.last {
		room := min(denialsPerWrite-len(g.last[tenantID]), denialsGathered-g.size)
		if room <= 0 {
			continue
		}
		denials = denials[max(0, len(denials)-room):]
		g.last[tenantID] = append(denials[:len(denials):len(denials)], g.last[tenantID]...)
		g.size += len(denials)
	}
}

// flush writes what was gathered so far and returns when it is committed.
func (l *denialLog) flush(ctx context.Context) error {
	done := make(chan error, 1)
	select {
	case l.flushes <- done:
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// FlushDenials writes the denials that this instance has answered so far, so that who
// was just denied can read why. It returns ctx's error if the database is too slow.
func (e *Engine) FlushDenials(ctx context.Context) error { return e.denials.flush(ctx) }

// close says that nothing more will be gathered.
func (l *denialLog) close() { close(l.ended) }

// run writes at most once a second, or when asked, until close; then once more.
func (l *denialLog) run(ctx context.Context) {
	r := newRunner(l.engine)
	defer r.close()
	var now, prunedAt, failedAt time.Time // by the ticks
	tick := time.NewTicker(denialsEvery)
	defer tick.Stop()
	for {
		var asked chan error
		select {
		case now = <-tick.C:
		case asked = <-l.flushes:
		case <-l.ended:
			final, cancel := context.WithTimeout(ctx, denialsFinal)
			defer cancel()
			if err := l.write(final, r); err != nil {
				l.engine.config.Log.Warn("the last denials were not written", "error", err)
			}
			return
		}
		err := l.write(ctx, r)
		if asked != nil {
			asked <- err
		}
		if err != nil {
			if now.Sub(failedAt) > time.Minute {
				l.engine.config.Log.Warn("denials are not written", "error", err)
				failedAt = now
			}
			continue
		}
		if now.Sub(prunedAt) > partitionsEvery {
			if err := l.prune(ctx, r); err != nil {
				l.engine.config.Log.Warn("old denials are not deleted", "error", err)
			}
			prunedAt = now
		}
	}
}

// write takes what was gathered and commits it. What failed is put back, but for a row
// that the database will never take, and for a commit whose reply was lost: it may be
// there, and to count twice is worse than to miss a second.
func (l *denialLog) write(ctx context.Context, r *runner) error {
	l.mu.Lock()
	taken := l.gathered
	none := len(taken.counts) == 0
	if !none {
		l.gathered = newGatheredDenials()
	}
	l.mu.Unlock()
	if none {
		return nil // taken is still being gathered
	}
	err := r.writeDenials(ctx, &taken)
	switch {
	case err == nil:
	case errors.Is(err, pg.ErrCommitUnknown), pg.OneRowsFault(err):
		l.engine.metrics.dropped(taken.size)
	default:
		l.mu.Lock()
		l.gathered.putBack(taken)
		l.mu.Unlock()
	}
	return err
}

func (r *runner) writeDenials(ctx context.Context, g *gatheredDenials) error {
	if err := r.connect(ctx); err != nil {
		return err
	}
	var queries pgx.Batch
	pg.Begin(&queries)
	if err := queueDenials(&queries, g); err != nil {
		return err
	}
	if err := r.session.Commit(ctx, &queries, r.engine.config.commitTimeout); err != nil {
		r.session.Rollback(ctx, r.engine.config.readTimeout)
		return fmt.Errorf("write denials: %w", err)
	}
	return nil
}

// prune deletes what is past its retention, in steps that hold few locks.
func (l *denialLog) prune(ctx context.Context, r *runner) error {
	for range denialsPruneMax {
		if err := r.connect(ctx); err != nil {
			return err
		}
		var deleted int64
		var queries pgx.Batch
		pg.Begin(&queries)
		queuePruneDenials(&queries, &deleted)
		if err := r.session.Commit(ctx, &queries, r.engine.config.commitTimeout); err != nil {
			r.session.Rollback(ctx, r.engine.config.readTimeout)
			return fmt.Errorf("delete old denials: %w", err)
		}
		if deleted == 0 {
			return nil
		}
	}
	return nil
}

// A Denial is a request that was denied, as it was answered.
type Denial struct {
	At        time.Time
	RequestID uuid.UUID
	AfterSeq  int64 // the tenant's newest entry then; 0 for none

	PlanVersionID int64
	OverrideSetID int64 // 0 for none
	Plan          string
	PlanVersion   int32
	Reason        Reason
	Subject       string   // "" for none
	LimitNames    []string // that denied
	Decision      Decision
}

// A DenialCount is how many requests were denied in a minute. LimitName "" counts each
// request once; a name counts those that the limit denied.
type DenialCount struct {
	Minute    time.Time
	LimitName string
	Reason    Reason
	Denials   int64
}
