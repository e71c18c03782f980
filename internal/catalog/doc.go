// Package catalog holds what operators configure: meters, plans and their immutable
// versions, tenants, API keys, and the file that describes them.
//
// It has a pure half and a stored half. Pure are the specs, which are what a file and
// JSON say ([Config], [MeterSpec], [PlanSpec], [TenantSpec]); what they compile to
// ([Meter], [Plan], [Tenant]); and reconcile, which compares the two with what the
// database has. Stored are the [Store] and the [Authenticator].
//
// State: tables meter, plan, plan_version, override_set, terms, api_key, config_change
// and the configuration columns of account. What a tenant has changes by itself as well,
// where a next plan or a dated override begins or ends: see [Timeline]. Every change is one transaction that first locks
// the row of catalog_version, raises it, stamps the rows it touched, and records who
// changed what. A change that changes nothing writes nothing. Keys are no part of a
// version: they come and go by themselves, and are recorded too.
//
// Time: instants of changes come from the database. Copies of keys age by the
// process's monotonic clock.
//
// Failure: input is validated as a whole before anything is written; the error joins
// every [Fault], each with its field path and, from a file, its line. Nothing has
// changed then. An error of any other kind is the database's.
//
// Concurrency: a [Snapshot] is immutable; stores are safe for concurrent use. Changes
// are serial over all instances. Locks are taken in one order: the version, then
// accounts by tenant name. A change is seen by the next decision on every instance,
// because each decision reads catalog_version under the tenant's lock. A revoked key
// is refused on every instance within [RevocationMax].
package catalog
