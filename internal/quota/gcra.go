package quota

import "github.com/quotad/quotad/internal/catalog"

// A gcra is the generic cell rate algorithm. With T the time one unit takes at the
// rate, and tat the theoretical arrival time, a cost passes when
//
//	max(now, tat) + cost·T − burst·T ≤ now
//
// It keeps the level of a bucket of capacity burst instead of tat, because T is
// rarely a whole number of microseconds while the level always is a whole number of
// its denominator. The two say the same: tat = now + (burst − level)·T.
type gcra struct {
	bucket
}

func newGCRA(l catalog.Limit) gcra {
	return gcra{newBucket(l.Burst, l.Rate)}
}
