package api

import (
	"context"
	"net/http"
	"time"

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
		if _, err := h.settled(ctx, c.tenant, at); err != nil {
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

// settled makes final what is before an instant, or before now if it is zero, and returns
// now: what is read after it of that time stays as it is. It waits for decisions that are
// still being written, and then has the holds entered that have ended; a hold that one of
// those decisions made may be among them.
func (h *Handler) settled(ctx context.Context, tenant string, until time.Time) (now time.Time, err error) {
	if now, err = h.Ledger.Settle(ctx, tenant, until); err != nil {
		return now, ledgerTenantNotFound(err)
	}
	return now, h.endHolds(ctx, tenant, now)
}

// endHolds has the holds of a tenant that have ended by an instant, now if it is zero,
// entered into the ledger, where they are dated at their end.
func (h *Handler) endHolds(ctx context.Context, tenant string, by time.Time) error {
	due, err := h.Reader.HoldsDue(ctx, tenant, by)
	if err == nil && due {
		_, err = h.Engine.Limits(ctx, tenant, "")
	}
	return err
}
