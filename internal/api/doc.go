// Package api is the HTTP contract: it decodes and authenticates a request, calls
// the package that knows, and encodes what it said. It decides nothing itself and
// touches no SQL.
//
// Every operation is a row of one table ([Routes]): method, pattern, the scope a key
// needs, where the tenant of a request is named, and the handler. The router is
// built from it, and so is whatever describes or tests the contract.
//
// Answers: all fields and header fields of a decision's answer come from the one
// [quota.Decision] that was made; the header dialect is in ratelimit.go and nowhere
// else. An answer to a replayed key is the stored body byte for byte.
//
// Failure: every error is an RFC 9457 problem with a stable code; one table maps
// codes to statuses. Answers of 500 and above carry no internals: the cause is
// logged with the request id that the problem shows. A panic is such an error too.
//
// Bounds: bodies, headers, pages, cursors and the time to read or write are limited.
//
// Concurrency: a [Handler] is safe for concurrent use and starts no goroutine.
package api
