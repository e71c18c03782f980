package quota

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/ledger"
)

const (
	// grantedAtDim is the dimension of an adjust entry that says when it was granted.
	grantedAtDim = "granted_at"
	// grantKeyPrefix begins the keys of grants whose callers gave none. It is one that no
	// caller can send.
	grantKeyPrefix = "\x01granted/"
)

// newID returns the id of a decision: that of what was granted already, or a new one.
func (c *call) newID() (uuid.UUID, error) {
	if c.grant != nil {
		return c.grant.RequestID, nil
	}
	return uuid.NewV7()
}

// fingerprint is what the call's idempotency key is bound to.
func (c *call) fingerprint() [32]byte {
	if c.grant != nil {
		return c.grant.Fingerprint // of the request that was granted
	}
	return c.request.fingerprint()
}

// kept is what the grant's entries are kept under a key with: its caller gets again what
// it got.
func (g *grant) kept(key string, answer []byte) keptAnswer {
	if key == g.Key {
		answer = g.Answer
	}
	return keptAnswer{requestHash: g.Fingerprint, answer: answer}
}

// call is what enters the grant into the ledger, whatever the limits say, unless the key
// has been used.
func (g *grant) call(key string) *call {
	r := Request{
		Kind: ledger.KindAdjust, Tenant: g.Tenant, Subject: g.Subject, Key: key,
		Charges: make([]Charge, len(g.Charges)),
		Dims:    map[string]string{grantedAtDim: g.At.Format(time.RFC3339Nano)},
	}
	for i, c := range g.Charges {
		r.Charges[i] = Charge{Meter: c.Meter, Cost: c.Cost}
	}
	dims := maps.Clone(g.Dims)
	if dims != nil {
		maps.Copy(dims, r.Dims)
		r.Dims = dims
	}
	return &call{request: r, grant: g}
}

// ownKey is a key that names the grant and nothing else.
func (g *grant) ownKey() string { return grantKeyPrefix + g.RequestID.String() }

// adjust enters grants into the ledger, each once however often it is asked to. It returns
// an error for each one that is not in it, nil for the others.
func (e *Engine) adjust(ctx context.Context, grants []*grant) []error {
	errs := make([]error, len(grants))
	calls := make([]*call, len(grants))
	for i, kept := range grants {
		key := kept.Key
		if key == "" {
			key = kept.ownKey()
		}
		calls[i] = kept.call(key)
		errs[i] = e.start(calls[i])
	}
	for i, kept := range grants {
		if errs[i] == nil {
			_, errs[i] = e.await(ctx, calls[i])
		}
		var refusal *Error
		if errors.As(errs[i], &refusal) && refusal.Code == CodeKeyReused {
			// The key belongs to another request that was allowed: this one was granted all
			// the same, since nobody could know.
			_, errs[i] = e.do(ctx, kept.call(kept.ownKey()))
		}
	}
	return errs
}
