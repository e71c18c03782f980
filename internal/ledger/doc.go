// Package ledger keeps what happened: entries, running totals, and the hash chain
// that proves nobody changed them.
//
// State: tables account (sequence, head of the chain), subject, meter_total, entry
// and entry_dims. Per tenant, entries are numbered 1, 2, 3 … without gaps, their
// instants never run backwards, and each carries the running total of its meter, so
// the usage of any window is a subtraction.
//
// Time: instants arrive as arguments; they come from the database's clock.
//
// Failure: entries are append-only by privilege and by trigger. Verify is read-only
// and names the first entry that does not follow from the one before.
//
// Concurrency: everything of a tenant is written under the lock of its account row,
// which [QueueLock] takes. The Queue functions add statements to a batch and fill
// their results when it is sent; [Store] is safe for concurrent use.
package ledger
