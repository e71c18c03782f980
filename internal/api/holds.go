package api

import (
	"net/http"
	"strings"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/quota"
)

// holdStates are what a list of holds may be filtered by.
var holdStates = []string{
	string(quota.HoldOpen), string(quota.HoldSettled), string(quota.HoldReleased), string(quota.HoldExpired),
}

// A holdsPage is one page of holds; no cursor means that it is the last one.
type holdsPage struct {
	Tenant     string           `json:"tenant"`
	Holds      []quota.HoldView `json:"holds"`
	NextCursor string           `json:"next_cursor,omitempty"`
}

// holds is GET /v1/holds: a tenant's open holds, in the order in which they end, or those
// that have ended in one way, the newest first.
func (h *Handler) holds(c *call) error {
	query, err := c.query("tenant", "subject", "state", "limit", "cursor")
	if err != nil {
		return err
	}
	f := filter{values: query}
	q := quota.HoldQuery{
		Tenant:  f.tenant(),
		Subject: f.text("subject", quota.IDRule),
		State:   quota.HoldState(f.text("state", oneOf(holdStates...))),
		Limit:   f.pageSize(),
	}
	list := listDigest("holds", q.Tenant, q.Subject, string(q.State))
	f.place(list, func(p *placeReader) {
		if q.Open() {
			q.After.ExpiresAt = p.instant()
		}
		q.After.ID = p.uuid()
	})
	if err := f.problem(); err != nil {
		return err
	}
	if !c.key.MayActFor(q.Tenant) {
		return errTenantForbidden()
	}
	read, err := h.Reader.Holds(c.r.Context(), q)
	if err != nil {
		return ledgerTenantNotFound(err)
	}
	page := holdsPage{Tenant: q.Tenant, Holds: read.Holds}
	if next := read.Next; next != nil {
		var place []byte
		if q.Open() {
			place = appendPlaceInstant(place, next.ExpiresAt)
		}
		page.NextCursor = encodeCursor(list, append(place, next.ID[:]...))
	}
	return c.json(http.StatusOK, page)
}

// hold is GET /v1/holds/{hold}.
func (h *Handler) hold(c *call) error {
	query, err := c.query("tenant")
	if err != nil {
		return err
	}
	id, err := c.holdParam()
	if err != nil {
		return err
	}
	f := filter{values: query}
	tenant := f.tenant()
	if err := f.problem(); err != nil {
		return err
	}
	if !c.key.MayActFor(tenant) {
		return errTenantForbidden()
	}
	view, err := h.Reader.Hold(c.r.Context(), tenant, id)
	if err != nil {
		return ledgerTenantNotFound(err)
	}
	return c.json(http.StatusOK, view)
}

// tenant returns the parameter tenant, which is required.
func (f *filter) tenant() string {
	if !f.values.Has("tenant") {
		f.fault("tenant", "is required")
	}
	return f.text("tenant", quota.IDRule)
}

// holdParam returns the hold that the path names.
func (c *call) holdParam() (uuid.UUID, error) {
	text, err := c.param("hold")
	if err != nil {
		return uuid.Nil, err
	}
	id, err := uuid.Parse(text)
	if err != nil || !strings.EqualFold(text, id.String()) || id == uuid.Nil {
		return uuid.Nil, invalid("hold", uuidRule)
	}
	return id, nil
}
