package api

import (
	"context"
	"net/http"

	"github.com/quotad/quotad/internal/quota"
)

// limits is GET /v1/tenants/{tenant}/limits: every limit of the tenant's plan as a
// decision made now would see it, or as it stood at an instant of the past.
func (h *Handler) limits(c *call) error {
	query, err := c.query("subject", "at")
	if err != nil {
		return err
	}
	f := filter{values: query}
	subject, at := f.text("subject", quota.IDRule), f.instant("at")
	if err := f.problem(); err != nil {
		return err
	}
	var decision quota.Decision
	if at.IsZero() {
		decision, err = h.Engine.Limits(c.r.Context(), c.tenant, subject)
	} else {
		ctx, cancel := context.WithTimeout(c.r.Context(), readTimeout)
		defer cancel()
		if err := h.endHolds(ctx, c.tenant); err != nil {
			return err
		}
		decision, err = h.Reader.LimitsAt(ctx, c.tenant, subject, at)
	}
	if err != nil {
		return ledgerTenantNotFound(err)
	}
	b := appendText(append(c.out[:0], `{"tenant":`...), decision.Tenant)
	if decision.Subject != "" {
		b = appendText(append(b, `,"subject":`...), decision.Subject)
	}
	b = appendInstant(append(b, `,"at":`...), decision.DecidedAt)
	b = appendText(append(b, `,"status":`...), string(decision.Standing.Status))
	b = appendText(append(b, `,"plan":`...), decision.Standing.Plan)
	b = appendNumber(b, `,"plan_version":`, int64(decision.Standing.PlanVersion))
	b = append(b, `,"limits":[`...)
	for i := range decision.Limits {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(b, &decision.Limits[i])
	}
	c.out = append(b, "]}"...)
	c.w.Header()["Cache-Control"] = headerNoStore
	c.reply(http.StatusOK, headerJSON, c.out)
	return nil
}

// endHolds has the holds of a tenant that have ended entered into the ledger, where they
// are dated at their end: what is read after it of the past stays as it is.
func (h *Handler) endHolds(ctx context.Context, tenant string) error {
	due, err := h.Reader.HoldsDue(ctx, tenant)
	if err == nil && due {
		_, err = h.Engine.Limits(ctx, tenant, "")
	}
	return err
}
