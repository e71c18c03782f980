// Package sim tests quotad from the outside. A [Load] drives running instances over
// HTTP and keeps every answer. A [Ledger] is all that the database holds, read with SQL
// of this package; its checks recompute what every limit had used and held and say where
// entries, counters, levels, holds and answers disagree. Two checks look at answers alone:
// [Ledger.CheckOutside] for windows that they show to be over a limit, and [Counter.Linear]
// for an order of the calls that explains them. A [Tally] sums up what came of a run.
//
// The faults that these are checked under are the table of the end-to-end tests in
// cmd/quotad; docs/reliability.md tells of both.
//
// Independence: it imports nothing else of quotad. Whatever it recomputes it does anew
// from the documented rules, in integers and fractions of any size and from the first
// entry on, so a fault of the engine's arithmetic is not repeated here. It is slow and
// holds everything in memory; only tests use it.
//
// State: a Ledger is one snapshot and never changes. A Load keeps nothing after Run.
//
// Time: instants are those of the entries. The clock of the process only bounds a Load
// and measures how long calls took.
//
// Failure: a disagreement is a line of text, bounded in number per tenant; an error
// means that the database could not be read, or that a Load was set up wrong. A call
// that gets no answer is an outcome, not an error.
//
// Concurrency: a Load runs its workers itself and Run waits for all of them. Checks
// run on the caller's goroutine.
package sim
