package api

import (
	"net/http"

	"github.com/quotad/quotad/internal/catalog"
)

// A keyRequest is the body of POST /v1/keys. Tenant tells "" from absent: a caller
// whose variable was empty must not get a key for every tenant.
type keyRequest struct {
	Env    string             `json:"env"`
	Name   string             `json:"name"`
	Scopes []catalog.KeyScope `json:"scopes"`
	Tenant *string            `json:"tenant"`
}

// createKey is POST /v1/keys. Its answer is the only place that the token is in.
func (h *Handler) createKey(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	body, err := readSpec[keyRequest](c)
	if err != nil {
		return err
	}
	spec := catalog.KeySpec{Env: body.Env, Name: body.Name, Scopes: body.Scopes}
	if body.Tenant != nil {
		if *body.Tenant == "" {
			return invalid("tenant", "must not be empty: leave it out for a key that may act for every tenant")
		}
		spec.Tenant = *body.Tenant
	}
	key, token, err := h.Catalog.CreateKey(c.r.Context(), c.actor(), spec)
	if faults := catalog.Faults(err); len(faults) > 0 {
		return specProblem(faults)
	}
	if err != nil {
		return err
	}
	return c.json(http.StatusCreated, struct {
		catalog.Key
		Token string `json:"token"`
	}{key, token})
}

// keys is GET /v1/keys: revoked ones too, none with its secret.
func (h *Handler) keys(c *call) error {
	var q catalog.KeyQuery
	var revoked string
	page, err := c.page("keys", nameRule, nameFilter{"tenant", catalog.IDRule, &q.Tenant},
		nameFilter{"scope", oneOf(keyScopes...), (*string)(&q.Scope)},
		nameFilter{"revoked", oneOf("true", "false"), &revoked})
	if err != nil {
		return err
	}
	q.Page = page.Page
	if revoked != "" {
		is := revoked == "true"
		q.Revoked = &is
	}
	keys, next, err := h.Catalog.Keys(c.r.Context(), q)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, struct {
		Keys       []catalog.Key `json:"keys"`
		NextCursor string        `json:"next_cursor,omitempty"`
	}{append([]catalog.Key{}, keys...), page.cursor(next)})
}

// revokeKey is DELETE /v1/keys/{key}; repeating it changes nothing.
func (h *Handler) revokeKey(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	id, err := c.param("key")
	if err != nil {
		return err
	}
	if rule := catalog.IDRule(id); rule != "" {
		return invalid("key", rule)
	}
	key, err := h.Catalog.RevokeKey(c.r.Context(), c.actor(), id)
	if err != nil {
		return notFound(err, "There is no such key.")
	}
	return c.json(http.StatusOK, key)
}
