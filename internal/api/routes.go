package api

import (
	"net/http"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// A Tenancy says where a route's tenant is named, and so what a key that is bound to
// one tenant may do there.
type Tenancy int

// Tenancies. A bound key that names another tenant gets 403 whether or not that
// tenant exists.
const (
	TenancyNone    Tenancy = iota + 1 // no tenant is involved: any key
	TenancyPath                       // {tenant} in the path
	TenancyBody                       // the body; the handler checks
	TenancyQuery                      // tenant in the query; the handler checks
	TenancyItems                      // each item of the body; the handler checks each
	TenancyList                       // a bound key sees its own part of the list
	TenancyPlan                       // {plan} in the path: a bound key sees those of its tenant; the handler checks
	TenancyUnbound                    // only keys that are bound to no tenant
)

// A Route is one operation of the contract.
type Route struct {
	Method  string
	Pattern string
	Scope   catalog.KeyScope // what the key must allow; "" needs no key
	Tenancy Tenancy

	timeout time.Duration // 0 where the engine or the handler bounds the time itself
	handle  func(c *call) error
}

// What an operation may take. A change may first wait for others, and for a tenant.
const (
	readTimeout   = 10 * time.Second
	changeTimeout = 20 * time.Second
)

// Routes returns the table of operations, for documents and tests.
func (h *Handler) Routes() []Route { return h.routes() }

func (h *Handler) routes() []Route {
	const (
		get  = http.MethodGet
		put  = http.MethodPut
		post = http.MethodPost
		del  = http.MethodDelete
	)
	return []Route{
		{post, "/v1/consume", catalog.KeyDecide, TenancyBody, 0, h.decide(consumeForm)},
		{post, "/v1/consume/batch", catalog.KeyDecide, TenancyItems, 0, h.batch(consumeForm)},
		{post, "/v1/holds", catalog.KeyDecide, TenancyBody, 0, h.decide(holdForm)},
		{post, "/v1/holds/batch", catalog.KeyDecide, TenancyItems, 0, h.batch(holdForm)},
		{post, "/v1/holds/{hold}/settle", catalog.KeyDecide, TenancyBody, 0, h.decide(settleForm)},
		{post, "/v1/holds/{hold}/release", catalog.KeyDecide, TenancyBody, 0, h.decide(releaseForm)},
		{post, "/v1/holds/{hold}/extend", catalog.KeyDecide, TenancyBody, 0, h.decide(extendForm)},
		{get, "/v1/holds", catalog.KeyRead, TenancyQuery, readTimeout, h.holds},
		{get, "/v1/holds/{hold}", catalog.KeyRead, TenancyQuery, readTimeout, h.hold},
		// Giving units back is giving money back: whoever may spend need not be able to.
		{post, "/v1/reversals", catalog.KeyAdmin, TenancyBody, 0, h.decide(reverseForm)},

		{get, "/v1/tenants/{tenant}/limits", catalog.KeyRead, TenancyPath, 0, h.limits},
		{get, "/v1/tenants/{tenant}/usage", catalog.KeyRead, TenancyPath, readTimeout, h.usage},
		{get, "/v1/tenants/{tenant}/entries", catalog.KeyAudit, TenancyPath, 0, h.entries},
		{get, "/v1/tenants/{tenant}/entries/{seq}", catalog.KeyAudit, TenancyPath, readTimeout, h.entry},
		{get, "/v1/tenants/{tenant}/explain", catalog.KeyAudit, TenancyPath, readTimeout, h.explain},
		{get, "/v1/tenants/{tenant}/denials", catalog.KeyAudit, TenancyPath, readTimeout, h.denials},
		{get, "/v1/tenants/{tenant}/denials/counts", catalog.KeyAudit, TenancyPath, readTimeout, h.denialCounts},

		{get, "/v1/meters", catalog.KeyRead, TenancyNone, readTimeout, h.meters},
		{get, "/v1/meters/{meter}", catalog.KeyRead, TenancyNone, readTimeout, h.meter},
		{put, "/v1/meters/{meter}", catalog.KeyAdmin, TenancyUnbound, changeTimeout, h.putMeter},
		{get, "/v1/plans", catalog.KeyRead, TenancyList, readTimeout, h.plans},
		{get, "/v1/plans/{plan}", catalog.KeyRead, TenancyPlan, readTimeout, h.plan},
		{put, "/v1/plans/{plan}", catalog.KeyAdmin, TenancyUnbound, changeTimeout, h.putPlan},
		{get, "/v1/plans/{plan}/versions", catalog.KeyRead, TenancyPlan, readTimeout, h.planVersions},
		{get, "/v1/plans/{plan}/versions/{version}", catalog.KeyRead, TenancyPlan, readTimeout, h.planVersion},
		{get, "/v1/tenants", catalog.KeyRead, TenancyList, readTimeout, h.tenants},
		{get, "/v1/tenants/{tenant}", catalog.KeyRead, TenancyPath, readTimeout, h.tenantConfig},
		{put, "/v1/tenants/{tenant}", catalog.KeyAdmin, TenancyPath, changeTimeout, h.putTenant},
		{get, "/v1/settings", catalog.KeyRead, TenancyUnbound, readTimeout, h.settings},
		{put, "/v1/settings", catalog.KeyAdmin, TenancyUnbound, changeTimeout, h.putSettings},
		{get, "/v1/changes", catalog.KeyAudit, TenancyList, readTimeout, h.changes},

		{get, "/v1/keys", catalog.KeyAdmin, TenancyUnbound, readTimeout, h.keys},
		{post, "/v1/keys", catalog.KeyAdmin, TenancyUnbound, changeTimeout, h.createKey},
		{del, "/v1/keys/{key}", catalog.KeyAdmin, TenancyUnbound, changeTimeout, h.revokeKey},

		{get, "/healthz", "", TenancyNone, 0, h.healthz},
		{get, "/readyz", "", TenancyNone, 0, h.readyz},
		{get, "/metrics", "", TenancyNone, 0, h.metricsText()},
		{get, "/openapi.json", "", TenancyNone, 0, h.openAPI},
	}
}
