package api

import (
	"github.com/quotad/quotad/internal/catalog"
)

// settings is GET /v1/settings. It is not for keys that are bound to a tenant: the settings
// are about tenants that are not there yet, and name a plan that is made for those.
func (h *Handler) settings(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	s, err := h.Catalog.Settings(c.r.Context())
	if err != nil {
		return err
	}
	return c.tagged(s.Tag(), s.Spec())
}

// putSettings is PUT /v1/settings: what is left out becomes what a new database has.
func (h *Handler) putSettings(c *call) error {
	change, err := c.change()
	if err != nil {
		return err
	}
	when, err := c.precondition()
	if err != nil {
		return err
	}
	body, err := readSpec[catalog.SettingsSpec](c)
	if err != nil {
		return err
	}
	put, err := change.store.PutSettings(c.r.Context(), c.actor(), body, when)
	return c.put(change, put, err)
}
