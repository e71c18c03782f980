// Package devpg runs a private PostgreSQL from the binaries that are on the machine,
// for `quotad dev`, for benchmarks and for tests.
//
// State: one directory per server, made and owned by this package:
//
//	data/          the database files
//	run/           the unix socket
//	postgres.log   what the server says
//	lock           held by the process that started the server, and by the server
//
// The server listens on the unix socket alone, so two servers never compete for a
// port, and nobody who may not enter the directory can connect; that is why
// connections need no password. A long directory has its socket elsewhere, because
// a socket's path may have about a hundred bytes.
//
// Without Fsync a temporary directory is made in memory where Linux offers at least
// 4 GB for it and TMPDIR is not set: that is ten times quicker for many small files.
//
// As root, the server runs as whoever owns the database files; for new files that
// is user postgres if there is one, else nobody.
//
// Time: a start takes about 0.6 s with new files and 0.1 s with kept ones; waits are
// bounded by the caller's context and by constants here.
//
// Failure: a server that does not come up is ended before Start returns, and the
// error carries the last lines of its log. The server never outlives the process
// that started it on Linux, even when that process is killed: the kernel ends it.
// Elsewhere a killed process leaves the server running, and the next Start on its
// directory says so. Files that a killed server leaves behind are recovered by
// PostgreSQL at the next Start; temporary ones are removed by it.
//
// Concurrency: Start may be called at once from anywhere; on one directory one of
// the calls wins. A [Server] is safe for concurrent use.
package devpg
