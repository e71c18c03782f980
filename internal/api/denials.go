package api

import (
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/quota"
)

// A denialBody is a kept denial in JSON, with the whole answer.
type denialBody struct {
	RequestID   uuid.UUID      `json:"request_id"`
	At          time.Time      `json:"at"`
	Reason      quota.Reason   `json:"reason"`
	Subject     string         `json:"subject,omitempty"`
	LimitNames  []string       `json:"limit_names"`
	AfterSeq    int64          `json:"after_seq"`
	Plan        string         `json:"plan"`
	PlanVersion int32          `json:"plan_version"`
	Decision    quota.Decision `json:"decision"`
}

func newDenialBody(d quota.Denial) denialBody {
	return denialBody{
		RequestID: d.RequestID, At: d.At, Reason: d.Reason, Subject: d.Subject, LimitNames: d.LimitNames,
		AfterSeq: d.AfterSeq, Plan: d.Plan, PlanVersion: d.PlanVersion, Decision: d.Decision,
	}
}

type denialsPage struct {
	Tenant     string       `json:"tenant"`
	Denials    []denialBody `json:"denials"`
	NextCursor string       `json:"next_cursor,omitempty"`
}

// reasons are what a list of denials may be filtered by.
var reasons = []string{
	string(quota.ReasonTenantSuspended), string(quota.ReasonMeterNotInPlan), string(quota.ReasonBlocked),
	string(quota.ReasonCostExceedsLimit), string(quota.ReasonQuotaExceeded), string(quota.ReasonTooManyHolds),
}

// denials is GET /v1/tenants/{tenant}/denials: the last ones, the newest first.
func (h *Handler) denials(c *call) error {
	query, err := c.query("limit", "cursor", "meter", "subject", "limit_name", "reason", "from", "to")
	if err != nil {
		return err
	}
	f := filter{values: query}
	q := quota.DenialQuery{
		Tenant:    c.tenant,
		Meter:     f.text("meter", nameRule),
		Subject:   f.text("subject", quota.IDRule),
		LimitName: f.text("limit_name", nameRule),
		Reason:    quota.Reason(f.text("reason", oneOf(reasons...))),
		Limit:     f.pageSize() + 1, // one more tells whether there is a next page
	}
	q.From, q.To = f.span()
	list := listDigest("denials", q.Tenant, q.Meter, q.Subject, q.LimitName, string(q.Reason), stamp(q.From), stamp(q.To))
	f.place(list, func(p *placeReader) { q.BeforeAt, q.BeforeID = p.instant(), p.uuid() })
	if err := f.problem(); err != nil {
		return err
	}
	if err := h.seeTenant(c); err != nil {
		return err
	}
	denials, err := h.Denials.Denials(c.r.Context(), q)
	if err != nil {
		return err
	}
	page := denialsPage{Tenant: c.tenant}
	if len(denials) == q.Limit {
		denials = denials[:q.Limit-1]
		last := denials[len(denials)-1]
		page.NextCursor = encodeCursor(list, append(appendPlaceInstant(nil, last.At), last.RequestID[:]...))
	}
	page.Denials = mapped(denials, newDenialBody)
	return c.json(http.StatusOK, page)
}

// seeTenant makes sure that the tenant exists and that what this instance denied it is
// written, so that who was just denied can read why.
func (h *Handler) seeTenant(c *call) error {
	if _, err := h.Catalog.Tenant(c.r.Context(), c.tenant); err != nil {
		return tenantNotFound(err)
	}
	return h.Engine.FlushDenials(c.r.Context())
}

// A denialCountBody is how many requests were denied in one minute.
type denialCountBody struct {
	Minute    time.Time    `json:"minute"`
	LimitName string       `json:"limit_name,omitempty"`
	Reason    quota.Reason `json:"reason"`
	Denials   int64        `json:"denials"`
}

type denialCountsPage struct {
	Tenant     string            `json:"tenant"`
	Counts     []denialCountBody `json:"counts"`
	NextCursor string            `json:"next_cursor,omitempty"`
}

// denialCounts is GET /v1/tenants/{tenant}/denials/counts: denied requests per minute,
// the newest first. Without limit_name each request counts once; with one, those that
// this limit denied; with * every limit's count beside the whole.
func (h *Handler) denialCounts(c *call) error {
	query, err := c.query("limit", "cursor", "limit_name", "reason", "from", "to")
	if err != nil {
		return err
	}
	f := filter{values: query}
	q := quota.DenialCountQuery{
		Tenant:    c.tenant,
		AllLimits: f.values.Get("limit_name") == "*",
		Reason:    quota.Reason(f.text("reason", oneOf(reasons...))),
		Limit:     f.pageSize() + 1,
	}
	if !q.AllLimits {
		q.LimitName = f.text("limit_name", nameRule)
	}
	q.From, q.To = f.span()
	list := listDigest("denials/counts", q.Tenant, f.values.Get("limit_name"), string(q.Reason), stamp(q.From), stamp(q.To))
	f.place(list, func(p *placeReader) { q.After = countPlace(p) })
	if err := f.problem(); err != nil {
		return err
	}
	if err := h.seeTenant(c); err != nil {
		return err
	}
	counts, err := h.Denials.Counts(c.r.Context(), q)
	if err != nil {
		return err
	}
	page := denialCountsPage{Tenant: c.tenant}
	if len(counts) == q.Limit {
		counts = counts[:q.Limit-1]
		page.NextCursor = encodeCursor(list, encodeCountPlace(counts[len(counts)-1]))
	}
	page.Counts = mapped(counts, func(n quota.DenialCount) denialCountBody { return denialCountBody(n) })
	return c.json(http.StatusOK, page)
}

// encodeCountPlace is the place of a count in its list: the minute, then limit and
// reason, which hold no space.
func encodeCountPlace(n quota.DenialCount) []byte {
	place := appendPlaceInstant(nil, n.Minute)
	return append(place, n.LimitName+" "+string(n.Reason)...)
}

func countPlace(p *placeReader) *quota.DenialCount {
	limitName := func(name string) string {
		if name == "" {
			return "" // counts each request once
		}
		return nameRule(name)
	}
	return &quota.DenialCount{
		Minute: p.instant(), LimitName: p.word(limitName), Reason: quota.Reason(p.text(oneOf(reasons...))),
	}
}
