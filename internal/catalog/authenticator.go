package catalog

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"time"

	"github.com/quotad/quotad/internal/cache"
)

// ErrKeyUnknown says that a token opens nothing: it is malformed, or there is no such
// key, or its secret is another, or it was revoked. Callers are not told which.
var ErrKeyUnknown = errors.New("unknown API key")

// RevocationMax is how long a revoked key may still be let in, anywhere.
const RevocationMax = 5 * time.Second

const (
	// keyTTL leaves a second of RevocationMax for a look-up and a request under way.
	keyTTL = 4 * time.Second
	// Unknown ids are kept apart from keys, so that a flood of them evicts none.
	keysCached    = 10_000
	unknownCached = 10_000
)

// An Authenticator tells whose token a caller sends. It keeps copies of keys for a
// few seconds. It is safe for concurrent use.
type Authenticator struct {
	pool    Querier
	keys    *cache.Cache[string, storedKey] // by id; revoked ones are not among them
	unknown *cache.Cache[string, struct{}]
}

// NewAuthenticator returns an authenticator that looks keys up in the store's
// database. now is the clock that copies age by; time.Now if nil.
func NewAuthenticator(store *Store, now func() time.Time) *Authenticator {
	return &Authenticator{
		pool:    store.pool,
		keys:    cache.New[string, storedKey](cache.Options{EntriesMax: keysCached, TTL: keyTTL, Now: now}),
		unknown: cache.New[string, struct{}](cache.Options{EntriesMax: unknownCached, TTL: keyTTL, Now: now}),
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
	stored, err := a.keys.Load(ctx, t.ID, a.lookUp)
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

// lookUp reads a key that is in force.
func (a *Authenticator) lookUp(ctx context.Context, id string) (storedKey, error) {
	stored, err := one(ctx, a.pool, scanKey, keySQL, id)
	if errors.Is(err, ErrNotFound) || err == nil && stored.RevokedAt != nil {
		a.unknown.Set(id, struct{}{})
		return storedKey{}, ErrKeyUnknown
	}
	return stored, err
}
