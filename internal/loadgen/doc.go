// Package loadgen sends requests as many callers do, and tells how long their answers took.
//
// State: none but what a run counts. Latencies go into one histogram of bounded size, so
// a run may last as long as its bounds let it.
//
// Time: in a closed loop a caller sends its next request when it has the answer to the
// last. In an open loop requests are sent when they are due, whether or not earlier ones
// are answered, and a request's time counts from the instant it was due: a service that
// stalls is not asked less while it does, and cannot look quick.
//
// Failure: an answer that is neither allowed nor denied, or not what was asked for, is
// never counted as a decision. It is counted by its kind, or ends a strict run.
//
// The generator shares the machine with what it measures more often than not, so it is
// cheap: it writes HTTP/1.1 itself from bytes made before the run, and reads of an answer
// what it needs.
package loadgen
