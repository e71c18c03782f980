package catalog

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quotad/quotad/internal/cache"
	"github.com/quotad/quotad/internal/pg"
)

// ErrKeyUnknown says that a token opens nothing: it is malformed, or there is no such
// key, or its secret is another, or it was revoked. Callers are not told which.
var ErrKeyUnknown = errors.New("unknown API key")

// ErrNoAnswer says that a key could not be looked up since the database is away or refuses.
var ErrNoAnswer = errors.New("the database does not tell")

// A Reach tells whether the database is away.
type Reach interface {
	// Gone returns a channel that is closed once it is.
	Gone() <-chan struct{}
	// Suspect makes it find out.
	Suspect()
}

// RevocationMax is how long a revoked key may still be let in, anywhere.
const RevocationMax = 5 * time.Second

const (
	// keyTTL leaves a second of RevocationMax for a look-up and a request under way.
	keyTTL = 4 * time.Second
	// Unknown ids are kept apart from keys, so that a flood of them evicts none.
	keysCached    = 10_000
	unknownCached = 10_000
)

const (
	// lookUpMax is how long into an outage of the database callers wait for it, as long as
	// a decision does: it must not matter whose key was copied before. Later ones are told
	// at once.
	lookUpMax        = 5 * time.Second
	lookUpPauseFirst = 10 * time.Millisecond // doubling
	lookUpPauseMax   = 250 * time.Millisecond
	// refusedMax is how long into an outage callers wait for a server that refuses
	// connections; decisions wait as long for one.
	refusedMax = time.Second
	// suspectAfter is how long a look-up takes before it suspects that the database is away.
	suspectAfter = 50 * time.Millisecond
)

// An Authenticator tells whose token a caller sends. It keeps copies of keys for a
// few seconds. It is safe for concurrent use.
type Authenticator struct {
	pool    Querier
	keys    *cache.Cache[string, storedKey] // by id; revoked ones are not among them
	unknown *cache.Cache[string, struct{}]
	now     func() time.Time
	outage  outage
	reach   Reach                           // nil: nothing tells that the database is away
	stale   *cache.Cache[string, storedKey] // what holds while it does not tell; nil for nothing
}

// An outage is since when look-ups have failed, one after another. It is safe for
// concurrent use.
type outage struct {
	mu          sync.Mutex
	since, last time.Time // zero if there is none
	refused     bool      // the last one, by a server that is there
}

// failed notes a failure, and returns how long the outage has lasted. One that nobody met
// for [lookUpMax] is another.
func (o *outage) failed(now time.Time, refused bool) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.last) > lookUpMax {
		o.since = now
	}
	o.last, o.refused = now, refused
	return now.Sub(o.since)
}

// refuses reports whether the server has refused for [refusedMax], and was just asked.
func (o *outage) refuses(now time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.refused && o.last.Sub(o.since) >= refusedMax && now.Sub(o.last) < lookUpPauseMax
}

func (o *outage) over() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since, o.last, o.refused = time.Time{}, time.Time{}, false
}

// NewAuthenticator returns an authenticator that looks keys up in the store's
// database. now is the clock that copies age by; time.Now if nil.
func NewAuthenticator(store *Store, now func() time.Time) *Authenticator {
	if now == nil {
		now = time.Now
	}
	return &Authenticator{
		now:     now,
		pool:    store.pool,
		keys:    cache.New[string, storedKey](cache.Options{EntriesMax: keysCached, TTL: keyTTL, Now: now}),
		unknown: cache.New[string, struct{}](cache.Options{EntriesMax: unknownCached, TTL: keyTTL, Now: now}),
	}
}

// GiveUp makes look-ups end with [ErrNoAnswer] as soon as reach says that the database is away.
// Copies are as good as ever; those that are too old are still taken then, and where the
// server refuses, if they are not older than staleMax, which is how long a key that was
// revoked just before an outage, or where this instance alone is cut off, may be let in. 0
// takes none of them. Call it before the authenticator is used.
func (a *Authenticator) GiveUp(reach Reach, staleMax time.Duration) {
	a.reach = reach
	if staleMax > 0 {
		a.stale = cache.New[string, storedKey](cache.Options{EntriesMax: keysCached, TTL: staleMax, Now: a.now})
	}
}

// Authenticate returns the key that a token is of. It returns [ErrKeyUnknown] if the
// token opens nothing, and another error if the database cannot tell.
func (a *Authenticator) Authenticate(ctx context.Context, token string) (Key, error) {
	t, ok := ParseToken(token)
	if !ok {
		return Key{}, ErrKeyUnknown
	}
	if _, known := a.unknown.Get(t.ID); known {
		return Key{}, ErrKeyUnknown
	}
	stored, err := a.load(ctx, t.ID)
	switch {
	case errors.Is(err, ErrKeyUnknown):
		return Key{}, ErrKeyUnknown
	case err != nil:
		return Key{}, fmt.Errorf("look up API key %s: %w", t.ID, err)
	}
	hash := t.Hash()
	if subtle.ConstantTimeCompare(hash[:], stored.secretHash) != 1 || t.Env != stored.Env {
		return Key{}, ErrKeyUnknown
	}
	return stored.Key, nil
}

// load returns the copy of a key, or looks it up.
func (a *Authenticator) load(ctx context.Context, id string) (storedKey, error) {
	if stored, ok := a.keys.Get(id); ok {
		return stored, nil
	}
	if a.outage.refuses(a.now()) {
		return a.outdated(id, ErrNoAnswer)
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpMax)
	defer cancel()
	stored, err := a.loadUnlessAway(ctx, id)
	if errors.Is(err, ErrNoAnswer) {
		return a.outdated(id, err)
	}
	return stored, err
}

func (a *Authenticator) loadUnlessAway(ctx context.Context, id string) (storedKey, error) {
	if a.reach == nil {
		return a.keys.Load(ctx, id, a.lookUp)
	}
	gone := a.reach.Gone()
	select {
	case <-gone:
		return storedKey{}, ErrNoAnswer
	default:
		return a.loadUnless(ctx, gone, id)
	}
}

// loadUnless looks a key up, unless the database is away before there is an answer.
func (a *Authenticator) loadUnless(ctx context.Context, gone <-chan struct{}, id string) (storedKey, error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		timer := time.NewTimer(suspectAfter)
		defer timer.Stop()
		for {
			select {
			case <-gone:
				giveUp(ErrNoAnswer)
				return
			case <-timer.C:
				a.reach.Suspect()
			case <-ctx.Done():
				return
			}
		}
	})
	stored, err := a.keys.Load(ctx, id, a.lookUp)
	giveUp(nil)
	watching.Wait()
	if err != nil && errors.Is(context.Cause(ctx), ErrNoAnswer) {
		return storedKey{}, ErrNoAnswer
	}
	return stored, err
}

// outdated returns the copy of a key that is still good while the database does not tell,
// or otherwise err.
func (a *Authenticator) outdated(id string, err error) (storedKey, error) {
	if a.stale != nil {
		if stored, ok := a.stale.Get(id); ok {
			return stored, nil
		}
	}
	return storedKey{}, err
}

// remember keeps what a look-up found for a time when the database does not tell.
func (a *Authenticator) remember(id string, stored storedKey, err error) {
	switch {
	case a.stale == nil:
	case err == nil:
		a.stale.Set(id, stored)
	case errors.Is(err, ErrKeyUnknown):
		a.stale.Delete(id)
	}
}

// lookUp reads a key that is in force. It tries again while no connection is to be had,
// until ctx ends or the outage is older than [lookUpMax]; [refusedMax] where the server
// refuses connections.
func (a *Authenticator) lookUp(ctx context.Context, id string) (storedKey, error) {
	for pause := lookUpPauseFirst; ; pause = min(2*pause, lookUpPauseMax) {
		stored, err := a.read(ctx, id)
		refused := pg.Unwilling(err)
		if err == nil || !refused && !pg.Disconnected(err) {
			a.outage.over()
			return stored, err
		}
		lasted := a.outage.failed(a.now(), refused)
		if refused && (lasted >= refusedMax || !pg.Disconnected(err)) {
			return storedKey{}, fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		if lasted >= lookUpMax-lookUpPauseMax { // another attempt would end after it
			return stored, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return storedKey{}, err
		}
	}
}

func (a *Authenticator) read(ctx context.Context, id string) (storedKey, error) {
	stored, err := one(ctx, a.pool, scanKey, keySQL, id)
	if errors.Is(err, ErrNotFound) || err == nil && stored.RevokedAt != nil {
		a.unknown.Set(id, struct{}{})
		stored, err = storedKey{}, ErrKeyUnknown
	}
	a.remember(id, stored, err)
	return stored, err
}
