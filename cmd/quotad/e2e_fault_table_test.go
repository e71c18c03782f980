package main

import (
	"time"

	"github.com/quotad/quotad/internal/devpg"
)

// durable is a server whose files outlive it.
var durable = devpg.Options{Fsync: true, Settings: map[string]string{"max_connections": "100"}}

// alone is a server that other tests do not notice.
var alone = devpg.Options{Settings: map[string]string{"max_connections": "80"}}

// The statements that begin the two round trips of a batch's transaction, and the end of
// the second.
const (
	onRound1 = "begin"
	onRound2 = "update quotad.account"
	onCommit = "commit"
)

// impatience is of callers that ask elsewhere when one instance does not answer.
const impatience = 2 * time.Second

// faults is every fault there is a test of.
var faults = []fault{
	{name: "an instance is killed", ignorant: true, inject: killInstance},
	{name: "an instance is stopped", flags: []string{"--drain-delay", "300ms"}, inject: stopInstance},
	{name: "an instance hangs for 10 s", slow: true, patience: impatience, ignorant: true, inject: hangInstance},
	{name: "PostgreSQL is killed", server: &durable, ignorant: true, inject: killPostgreSQL},
	{name: "PostgreSQL hangs", slow: true, server: &durable, ignorant: true, inject: hangPostgreSQL},
	{name: "a backend is killed", slow: true, server: &alone, ignorant: true, inject: killBackend},
	{name: "a working backend is terminated", silent: true, inject: ending("select pg_terminate_backend($1)")},
	{name: "a working backend is cancelled", slow: true, silent: true, inject: ending("select pg_cancel_backend($1)")},
	{name: "a waiting backend is terminated", silent: true, inject: endWaitingBackend},
	{name: "an outsider locks an account", silent: true, inject: lockAccount},
	{name: "an outsider takes all connections", server: &alone, inject: takeConnections},
	{name: "six connections for 500 callers", slow: true, server: &alone, inject: starve},
	{name: "the wire is cut at round 1", slow: true, proxied: true, silent: true, inject: breaking(onRound1, false)},
	{name: "the wire is cut at round 2", proxied: true, silent: true, inject: breaking(onRound2, false)},
	{name: "the wire is cut at the commit", proxied: true, silent: true, inject: breaking(onCommit, false)},
	{name: "the wire goes silent at round 1", slow: true, proxied: true, ignorant: true, inject: breaking(onRound1, true)},
	{name: "the wire goes silent at round 2", slow: true, proxied: true, ignorant: true, inject: breaking(onRound2, true)},
	{name: "the wire goes silent at the commit", proxied: true, ignorant: true, inject: breaking(onCommit, true)},
	{name: "clients vanish", ignorant: true, inject: vanish},
	{name: "5,000 calls with one key", slow: true, inject: oneKey},
	{name: "5,000 calls with one key, two bodies", inject: twoBodies},
	{name: "limits in opposite orders", inject: oppositeOrders},
	{name: "the disk of the database is full", server: &alone, place: tablesOnDisk, inject: fillTables},
	{name: "the disk of the log is full", slow: true, server: &durable, place: logOnDisk, ignorant: true, inject: fillLog},
	{name: "the clock jumps ahead an hour", server: &alone, place: ownClock, silent: true, inject: clockAhead},
	{name: "the clock falls back an hour", slow: true, server: &alone, place: ownClock, silent: true, inject: clockBack},
	{name: "the database is made read-only", server: &alone, inject: makeReadOnly},
	{name: "migrations run", server: &alone, silent: true, inject: migrate},
	{name: "a migration takes a column away", slow: true, server: &alone, inject: takeColumn},
	{name: "the primary is lost, its address follows", server: &durable, place: paired, ignorant: true, inject: losePrimary},
	{name: "the primary is lost, the URL names both", slow: true, server: &durable, place: pairedByURL, ignorant: true, inject: losePrimary},
	{name: "the standby stalls and goes on", slow: true, server: &durable, place: paired, ignorant: true, inject: stallStandby},
	{name: "the standby stalls, the primary is lost", slow: true, server: &durable, place: paired, ignorant: true, inject: loseStalled},
	{name: "waits for the standby are cancelled", slow: true, server: &durable, place: paired, ignorant: true, inject: loseCancelled},
	{name: "the address leads to a hot standby", slow: true, server: &durable, place: paired, ignorant: true, inject: leadToStandby},
}
