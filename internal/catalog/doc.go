// Package catalog holds what operators configure: meters, plans and their immutable
// versions, tenants, API keys, and the file that describes them.
//
// State: tables meter, plan, plan_version, api_key, config_change and the
// configuration columns of account. Every change is one transaction that raises
// catalog_version, stamps the rows it touched, and records who changed what.
//
// Time: instants of changes come from the database.
//
// Failure: input is validated as a whole before anything is written; the error
// lists every fault with its field path, and nothing has changed.
//
// Concurrency: a [Snapshot] is immutable; stores are safe for concurrent use. A
// change is seen by the next decision on every instance, because each decision reads
// catalog_version under the tenant's lock.
package catalog
