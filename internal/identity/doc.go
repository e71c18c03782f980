// Package identity says which client an HTTP request came from, as a subject that limits
// can count: an address that the client cannot choose.
//
// State, time: none. Everything is a value; there is no look-up of names.
//
// Trust: a header is believed only as far as proxies that are configured wrote it. Each of
// them appends the address that it saw, so X-Forwarded-For is read from its right end, past
// trusted addresses, to the first that is not. What stands further left anyone may have
// made up. A hop that is no address ends the walk at the trusted proxy that passed it on:
// then the clients of that proxy share a subject, and none gets another's.
//
// Grouping: an IPv6 client usually has a /64 to itself and may change its address within
// it at will, so that prefix is one subject. IPv4 addresses are one each. Both lengths can
// be configured. An address has one text, whichever way it was written.
//
// Failure: only a direct peer that is no address is an error.
//
// Concurrency: a [Resolver] is safe for concurrent use.
package identity
