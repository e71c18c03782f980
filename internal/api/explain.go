package api

import (
	"net/http"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// An explainBody is a decision taken apart, with its entries if it was allowed.
type explainBody struct {
	quota.Explanation
	Entries []entryBody `json:"entries"`
}

// explain is GET /v1/tenants/{tenant}/explain: why a request was allowed, by the number
// of one of its entries, or why it was denied, by its id.
func (h *Handler) explain(c *call) error {
	query, err := c.query("seq", "request_id")
	if err != nil {
		return err
	}
	if query.Has("seq") == query.Has("request_id") {
		return invalid("seq", "must be given, or request_id, and not both")
	}
	if err := h.seeTenant(c); err != nil {
		return err
	}
	var explanation quota.Explanation
	if query.Has("seq") {
		seq, ok := parseUnits([]byte(query.Get("seq")))
		if !ok || seq == 0 {
			return invalid("seq", "must be a whole number from 1 to 999999999999999")
		}
		explanation, err = h.Reader.ExplainEntry(c.r.Context(), c.tenant, seq)
	} else {
		id, parseErr := uuid.Parse(query.Get("request_id"))
		if parseErr != nil {
			return invalid("request_id", "must be a UUID")
		}
		explanation, err = h.Reader.ExplainRequest(c.r.Context(), c.tenant, id)
	}
	if err != nil {
		return notFound(err, "The tenant has no entry of it, and no denial of it is kept.")
	}
	return c.json(http.StatusOK, explainBody{
		explanation, mapped(explanation.Entries, func(e ledger.Entry) entryBody { return newEntryBody(&e) }),
	})
}
