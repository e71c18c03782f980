package api

import (
	"net/http"

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
	f := filter{values: query}
	seq, id := f.seq(), f.uuid("request_id")
	if err := f.problem(); err != nil {
		return err
	}
	if err := h.seeTenant(c); err != nil {
		return err
	}
	var explanation quota.Explanation
	if seq > 0 {
		explanation, err = h.Reader.ExplainEntry(c.r.Context(), c.tenant, seq)
	} else {
		explanation, err = h.Reader.ExplainRequest(c.r.Context(), c.tenant, id)
	}
	if err != nil {
		return notFound(err, "The tenant has no entry of it, and no denial of it is kept.")
	}
	return c.json(http.StatusOK, explainBody{
		explanation, mapped(explanation.Entries, func(e ledger.Entry) entryBody { return newEntryBody(&e) }),
	})
}
