// Package quota decides: may this tenant spend this now?
//
// It has a pure half and a durable half. The pure half is the algorithms, the rules
// compiled from a plan, and decide: they take values and an instant and return
// values. The durable half is the Engine: it gathers requests into batches, locks
// the accounts of a batch, reads what their limits need, decides each request in
// order with the pure half, and writes accounts, totals, levels, entries and
// idempotency keys in the same transaction. An answer leaves only after its commit.
//
// State: table idempotency, and the column levels (token buckets, GCRA, leaky buckets) of
// the ledger's running totals, from which everything else a limit needs is read. Levels
// of subjects that have been full for a day are removed in the background.
//
// Time: greatest(decision_clock(), account.last_at), read from the database after the
// account lock. The process clock bounds how long work may take, and for how long a denial
// is given again from memory, a second at most; it allows nothing.
//
// Failure: a denial changes nothing. A batch whose commit reply was lost is resolved
// by looking for its entries under the lock. A batch that fails because of one
// request is run again in parts. Queues are bounded; a full one refuses at once.
//
// Concurrency: an Engine is safe for concurrent use. Everything of one tenant is
// serial under its account row; no transaction waits for a lock while holding one.
package quota
