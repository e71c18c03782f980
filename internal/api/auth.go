package api

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/quotad/quotad/internal/catalog"
)

// challenge is what a 401 asks for.
const challenge = `Bearer realm="quotad"`

// authorize checks that the request's key is known, has the route's scope, and may
// act for the tenant that the path names; it leaves the key and the tenant in c.
//
// The tenant is compared with the key's before anyone asks whether it exists: a bound
// key learns nothing about other tenants.
func (h *Handler) authorize(rt Route, c *call) error {
	token, ok := bearer(c.r.Header)
	if !ok {
		return &problem{
			code:      codeUnauthenticated,
			detail:    "Send an API key: Authorization: Bearer qk_...",
			challenge: challenge,
		}
	}
	key, err := h.Keys.Authenticate(c.r.Context(), token)
	switch {
	case errors.Is(err, catalog.ErrKeyUnknown):
		return &problem{
			code:      codeUnauthenticated,
			detail:    "The API key is not known, or it was revoked.",
			challenge: challenge + `, error="invalid_token"`,
		}
	case err != nil:
		return err
	}
	c.key = key
	if !key.Allows(rt.Scope) {
		return &problem{
			code:   codeInsufficientScope,
			detail: "This needs a key with the scope " + string(rt.Scope) + ".",
		}
	}
	switch rt.Tenancy {
	case TenancyUnbound:
		if key.Tenant != "" {
			return &problem{code: codeTenantForbidden, detail: "This needs a key that is not bound to a tenant."}
		}
	case TenancyPath:
		return c.pathTenant()
	}
	return nil
}

// pathTenant reads {tenant} and checks that the key may act for it.
func (c *call) pathTenant() error {
	tenant, err := c.param("tenant")
	if err != nil {
		return err
	}
	if rule := catalog.IDRule(tenant); rule != "" {
		return invalid("tenant", rule)
	}
	if !c.key.MayActFor(tenant) {
		return errTenantForbidden()
	}
	c.tenant = tenant
	return nil
}

// bearer returns the token of the Authorization header.
func bearer(header http.Header) (string, bool) {
	values := header["Authorization"]
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	token = strings.Trim(token, " ")
	return token, token != ""
}

func errTenantForbidden() error {
	return &problem{code: codeTenantForbidden, detail: "The key is bound to another tenant."}
}

// actor is who changes the configuration, as its history names them.
func (c *call) actor() string { return "key:" + c.key.ID }

// param returns a path parameter, percent-decoded. The router matches the escaped
// path where it differs from the plain one, so that a tenant may hold a slash; only
// then is the parameter still escaped.
func (c *call) param(name string) (string, error) {
	value := chi.URLParam(c.r, name)
	if c.r.URL.RawPath == "" {
		return value, nil
	}
	decoded, err := url.PathUnescape(value)
	if err != nil {
		return "", invalid(name, "must be percent-encoded")
	}
	return decoded, nil
}
