package quota

import "github.com/quotad/quotad/internal/catalog"

// A tokenBucket lets bursts of its capacity through and refills at a steady rate:
// over a time T never more than capacity + rate·T.
type tokenBucket struct {
	bucket
}

func newTokenBucket(l catalog.Limit) tokenBucket {
	return tokenBucket{newBucket(l.Capacity, l.Refill)}
}
