package quota

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/cache"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/spool"
)

// degradedSayEvery limits the lines about answers that were given without the database.
const degradedSayEvery = time.Second

// Why a call is answered without the database, or not.
var (
	errAway      = errors.New("the database is away")
	errRefuses   = errors.New("the database lets nothing be decided")
	errOnError   = errors.New("a limit's on_error is deny")
	errNotKnown  = errors.New("the tenant's plan is not in memory")
	errNoSpool   = errors.New("there is no directory to record it in (--degraded-dir)")
	errLocalFull = errors.New("local copies of limits have no room for more")
	errOnlySpend = errors.New("only consume is answered without the database")
)

// A DegradedLimit is what one enforcing limit said while the database was away.
type DegradedLimit struct {
	Name    string          `json:"name"`
	Meter   string          `json:"meter"`
	OnError catalog.OnError `json:"on_error"`

	// Of local ones: how this instance's share of the limit stands.
	Limit     *int64 `json:"limit,omitzero"`
	Used      *int64 `json:"used,omitzero"`
	Remaining *int64 `json:"remaining,omitzero"`
	Violated  bool   `json:"violated,omitzero"`
	RetryMS   *int64 `json:"retry_after_ms,omitzero"`
}

// A degrader answers requests to consume while the database is away, as the on_error of
// their limits says. What it grants is on disk first. It is safe for concurrent use.
type degrader struct {
	engine *Engine
	spool  *spool.Spool // nil: it grants nothing
	sets   *cache.Cache[int64, *catalog.OverrideSet]

	mu        sync.Mutex
	rules     map[rulesKey]*rules // of shared plans
	copies    *localCopies
	clock     func() int64 // µs, never falls; set with the first answer
	said      time.Time
	saidCount map[string]int // answers by outcome since then
	keyed     map[keyedGrant]*grant
}

func newDegrader(e *Engine) (*degrader, error) {
	g := &degrader{
		engine: e, spool: e.config.Spool, clock: e.config.localClock,
		sets:  cache.New[int64, *catalog.OverrideSet](cache.Options{EntriesMax: compiledMax}),
		rules: make(map[rulesKey]*rules), copies: newLocalCopies(),
		saidCount: make(map[string]int), keyed: make(map[keyedGrant]*grant),
	}
	if g.spool == nil {
		return g, nil
	}
	return g, errors.Join(e.config.Metrics.Register(pendingGauge(g.pending)), g.spool.Each(g.remember))
}

// degrade answers a call that was given up because of cause.
func (e *Engine) degrade(ctx context.Context, c *call, cause error) (Decision, error) {
	select {
	case <-c.done: // it was answered before it was given up
		return e.told(c)
	default:
	}
	if c.grant != nil {
		return Decision{}, unavailable(cause)
	}
	d, err := e.degraded.answer(c)
	outcome := "allowed"
	switch {
	case errors.Is(err, errOnError) || errors.Is(err, errOnlySpend):
		outcome, err = "refused", unavailable(cause)
	case err != nil:
		outcome = "refused"
	case !d.Allowed:
		outcome = "denied"
	case d.Replayed:
		outcome = "replayed"
	}
	if err != nil {
		e.metrics.refused(err)
	}
	e.metrics.degraded.WithLabelValues(outcome).Inc()
	e.degraded.say(ctx, outcome, err)
	return d, err
}

// answer decides a call without the database.
func (g *degrader) answer(c *call) (Decision, error) {
	r := &c.request
	if c.stand || r.DryRun || r.kind() != ledger.KindConsume {
		return Decision{}, unavailable(errOnlySpend)
	}
	known, snapshot, err := g.known(r.Tenant)
	if err != nil {
		return Decision{}, err
	}
	b := newBook(known, snapshot)
	charges, err := b.chargesOf(r)
	if err != nil {
		return Decision{}, err
	}
	voters, err := voters(known, charges)
	if err != nil {
		return Decision{}, err
	}
	if g.spool == nil {
		return Decision{}, unavailable(errNoSpool)
	}
	return g.once(r, func() (Decision, error) { return g.decide(r, charges, voters) })
}

// known returns the rules of a tenant as this instance knows them, local limits in its
// share of their numbers.
func (g *degrader) known(tenant string) (*rules, *catalog.Snapshot, error) {
	snapshot := g.engine.snapshot.Load()
	f, ok := g.engine.tenants.Get(tenant)
	if snapshot == nil || !ok || f.status != catalog.StatusActive {
		return nil, nil, unavailable(errNotKnown)
	}
	now := g.engine.clock.estimate()
	plan := snapshot.Plan(f.terms.PlanAt(now))
	set, ok := g.sets.Get(f.terms.OverrideSetID)
	if plan == nil || !ok && f.terms.OverrideSetID != 0 {
		return nil, nil, unavailable(errNotKnown)
	}
	key := rulesKey{plan.VersionID, f.terms.OverrideSetID, set.Active(now), f.timezone, f.billingAnchor, f.calendarPast}
	g.mu.Lock()
	defer g.mu.Unlock()
	if have := g.rules[key]; have != nil {
		return have, snapshot, nil
	}
	calendar, err := f.calendar()
	if err != nil {
		return nil, nil, unavailable(err)
	}
	if len(g.rules) >= compiledMax {
		clear(g.rules)
	}
	g.rules[key] = compilePlan(sharedPlan(plan.Under(set, now)), calendar)
	return g.rules[key], snapshot, nil
}

// A voter is a limit whose on_error decides about a charge.
type voter struct {
	limit *limit
	cost  int64
}

// voters returns the limits that decide, or an error if one of them grants nothing. They
// are the enforcing ones; on a meter that has none, those that only watch.
func voters(known *rules, charges []charge) ([]voter, error) {
	var found []voter
	for _, c := range charges {
		before := len(found)
		for _, mode := range []catalog.Mode{catalog.ModeEnforce, catalog.ModeShadow} {
			if len(found) > before {
				break
			}
			for _, l := range known.byMeter[c.meter.Name] {
				if l.Mode != mode || l.Algorithm == catalog.Concurrency { // consume has nothing to do with it
					continue
				}
				if l.OnError != catalog.OnErrorAllow && l.OnError != catalog.OnErrorLocal {
					return nil, unavailable(errOnError)
				}
				found = append(found, voter{l, c.cost})
			}
		}
		if len(found) == before { // nothing says that it may be granted
			return nil, unavailable(errOnError)
		}
	}
	return found, nil
}

// decide asks every voter, takes from the local ones if all of them admit, and records
// what is granted.
func (g *degrader) decide(r *Request, charges []charge, voters []voter) (Decision, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Decision{}, &Error{Code: CodeInternal, Err: err}
	}
	d := Decision{
		Allowed: true, Degraded: true, Tenant: r.Tenant, Subject: r.Subject, RequestID: id,
		DecidedAt: time.UnixMicro(g.engine.clock.estimate()).UTC(),
		Charges:   make([]ChargeResult, len(charges)), Limits: []LimitResult{},
	}
	for i, c := range charges {
		d.Charges[i] = ChargeResult{Meter: c.meter.Name, Cost: c.cost}
	}
	if err := g.ask(r, voters, &d); err != nil || !d.Allowed {
		return d, err
	}
	if err := g.record(r, &d); err != nil {
		return Decision{}, unavailable(fmt.Errorf("record what is granted: %w", err))
	}
	return d, nil
}

// ask asks every voter and notes what it said. Only a limit that is used up denies: one
// that could never hold the cost in its share may well hold it when the database is back.
func (g *degrader) ask(r *Request, voters []voter, d *Decision) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.nowMicros()
	if n := localVoters(voters); n > 0 && !g.copies.room(n, now) {
		return unavailable(errLocalFull)
	}
	copies := make([]*localCopy, len(voters))
	for i, v := range voters {
		d.DegradedLimits = append(d.DegradedLimits, DegradedLimit{Name: v.limit.Name, Meter: v.limit.Meter, OnError: v.limit.OnError})
		if v.limit.OnError != catalog.OnErrorLocal {
			continue
		}
		key := localKey{r.Tenant, v.limit.Name, v.limit.subjectOf(r.Subject)}
		copies[i] = g.copies.of(key, v.limit)
		view := g.copies.view(copies[i], now)
		if used := v.limit.rule.Used(view); !v.limit.admits(used, 0, v.cost) && v.limit.Mode == catalog.ModeEnforce {
			at, ok := v.limit.rule.FreeAt(view, v.limit.units-v.cost)
			if v.limit.blocked || v.cost > v.limit.units || !ok {
				return unavailable(fmt.Errorf("this instance's share of limit %q never holds it", v.limit.Name))
			}
			wait := max(1, ceilMillis(at-now))
			d.deny(&d.DegradedLimits[i], wait)
		}
	}
	for i, v := range voters {
		if copies[i] == nil {
			continue
		}
		if d.Allowed {
			g.copies.take(copies[i], now, v.cost)
			d.delay(copies[i], now)
		}
		d.DegradedLimits[i].stand(copies[i].limit, v.limit.rule.Used(g.copies.view(copies[i], now)))
	}
	return nil
}

// localVoters counts those that a copy decides for.
func localVoters(voters []voter) (n int) {
	for _, v := range voters {
		if v.limit.OnError == catalog.OnErrorLocal {
			n++
		}
	}
	return n
}

// deny notes that a local limit is used up for a while.
func (d *Decision) deny(l *DegradedLimit, waitMS int64) {
	d.Allowed, d.Reason = false, ReasonQuotaExceeded
	l.Violated, l.RetryMS = true, &waitMS
	if d.RetryMS == nil || *d.RetryMS < waitMS {
		d.RetryMS = &waitMS
	}
}

// delay adds the delay that a leaky bucket asks for.
func (d *Decision) delay(c *localCopy, nowMicros int64) {
	shaper, ok := c.limit.rule.(Shaper)
	if !ok || c.limit.Mode != catalog.ModeEnforce {
		return
	}
	if delay := shaper.DelayMillis(c.level, nowMicros); d.DelayMS == nil || *d.DelayMS < delay {
		d.DelayMS = &delay
	}
}

// stand fills in how this instance's share stands.
func (l *DegradedLimit) stand(share *limit, used int64) {
	remaining := share.remaining(used, 0)
	l.Limit, l.Used, l.Remaining = &share.units, &used, &remaining
}

// nowMicros is the clock of local limits: the database's as it was last known, carried on
// by the monotonic one whatever the database's does. mu is held.
func (g *degrader) nowMicros() int64 {
	if g.clock == nil {
		base, since := g.engine.clock.estimate(), time.Now()
		g.clock = func() int64 { return base + time.Since(since).Microseconds() }
	}
	return g.clock()
}

// DegradedBy says what granted or denied a degraded answer: local if any limit did so,
// else allow; "" for an answer that is not degraded.
func (d *Decision) DegradedBy() catalog.OnError {
	if !d.Degraded {
		return ""
	}
	for i := range d.DegradedLimits {
		if d.DegradedLimits[i].OnError == catalog.OnErrorLocal {
			return catalog.OnErrorLocal
		}
	}
	return catalog.OnErrorAllow
}

// say logs, once in a while, how many answers were given without the database.
func (g *degrader) say(ctx context.Context, outcome string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.saidCount[outcome]++
	now := time.Now()
	if now.Sub(g.said) < degradedSayEvery {
		return
	}
	g.said = now
	attrs := make([]slog.Attr, 0, len(g.saidCount)+1)
	for _, outcome := range []string{"allowed", "replayed", "denied", "refused"} {
		if n := g.saidCount[outcome]; n > 0 {
			attrs = append(attrs, slog.Int(outcome, n))
		}
	}
	if err != nil {
		attrs = append(attrs, slog.Any("error", err))
	}
	clear(g.saidCount)
	g.engine.config.Log.LogAttrs(ctx, slog.LevelWarn, "answered without the database", attrs...)
}
