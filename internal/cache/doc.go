// Package cache keeps bounded copies of facts that the database holds: a key's
// scopes, where a tenant's account is, what denies until when.
//
// It never says "allowed". A copy saves a look-up or gives a denial sooner; what is
// granted comes from a commit.
//
// State: at most EntriesMax values in memory, or a few more for a moment; the ones
// least likely to be used again go first. Losing any of them costs a look-up.
//
// Time: a value ages from the instant before it was read or set, by the monotonic
// clock, and is not returned once it is as old as TTL. So what a caller sees was true
// at most TTL ago, however long reading it took.
//
// An [Exhaustion] is the other kind of copy: denials that stand until an instant. The
// oldest of them go first, and losing one costs a transaction.
//
// Failure: an error of a look-up goes to everyone who waited for it and is not kept.
//
// Concurrency: a [Cache] and an [Exhaustion] are safe for concurrent use. Misses of one
// key at the same time share one look-up. Neither starts a goroutine or needs closing.
package cache
