// Package spool keeps records on a local disk until someone has taken them over.
//
// State: a directory that one process holds, with files of records that are written once
// and removed whole. A record is one line: its checksum, then its bytes.
//
// Failure: [Spool.Append] returns nil only when the record is on disk. A record whose
// write was cut short by a crash was never acknowledged, and is dropped when it is read. A
// file that cannot be written or synced any more is left, cut back to what was
// acknowledged, and the next record begins another. A crash between taking records over
// and removing their file shows them again: whoever takes them over must know them.
//
// Bounds: the bytes of all files together. When they are reached nothing is appended.
//
// Concurrency: a Spool is safe for concurrent use. Records that are appended at the same
// time share one write and one sync.
package spool
