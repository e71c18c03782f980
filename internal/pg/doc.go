// Package pg is quotad's way to PostgreSQL: pools for configuration and reading,
// sessions for decisions, and what an error of the server means.
//
// State: a [Session] owns one connection. Time: none of its own; bounds arrive as
// arguments. Failure: an error says whether the server certainly refused (see
// [Refused]) or whether nobody knows (see [Session.Commit]). Concurrency: a pool is
// safe for concurrent use, a Session is not.
package pg
