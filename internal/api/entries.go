package api

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// An entryBody is an entry in JSON.
type entryBody struct {
	Tenant       string            `json:"tenant"`
	Seq          int64             `json:"seq"`
	At           time.Time         `json:"at"`
	EffectiveAt  time.Time         `json:"effective_at"`
	Kind         ledger.Kind       `json:"kind"`
	Meter        string            `json:"meter"`
	Subject      string            `json:"subject,omitempty"`
	Units        int64             `json:"units"`
	Held         int64             `json:"held"`
	Total        int64             `json:"total"`
	SubjectTotal *int64            `json:"subject_total,omitempty"`
	RequestID    uuid.UUID         `json:"request_id"`
	BatchID      uuid.UUID         `json:"batch_id"`
	RefSeq       int64             `json:"ref_seq,omitempty"`
	Plan         string            `json:"plan"`
	PlanVersion  int32             `json:"plan_version"`
	LimitsUsed   []int64           `json:"limits_used"`
	Dims         map[string]string `json:"dims,omitempty"`
	Hash         quota.Hash        `json:"hash"`
}

func newEntryBody(e *ledger.Entry) entryBody {
	body := entryBody{
		Tenant: e.Tenant, Seq: e.Seq, At: e.At.UTC(), EffectiveAt: e.EffectiveAt.UTC(), Kind: e.Kind,
		Meter: e.Meter, Subject: e.Subject, Units: e.Units, Held: e.Held, Total: e.Total,
		RequestID: e.RequestID, BatchID: e.BatchID, RefSeq: e.RefSeq, Plan: e.Plan,
		PlanVersion: e.PlanVersion, LimitsUsed: e.LimitsUsed, Dims: e.Dims, Hash: e.Hash,
	}
	if body.LimitsUsed == nil {
		body.LimitsUsed = []int64{}
	}
	if e.SubjectDigest != nil { // the subject's text may be erased, its total stays
		body.SubjectTotal = &e.SubjectTotal
	}
	return body
}

// An entriesPage is one page of entries; no cursor means that it is the last one.
type entriesPage struct {
	Entries    []entryBody `json:"entries"`
	NextCursor string      `json:"next_cursor,omitempty"`
}

// entryKinds are the kinds that a list may be filtered by.
var entryKinds = []string{
	"consume", "hold", "extend", "settle", "release", "expire", "reverse", "adjust", "grant",
}

// entries is GET /v1/tenants/{tenant}/entries: the ledger, page by page.
func (h *Handler) entries(c *call) error {
	q, list, err := c.entryQuery()
	if err != nil {
		return err
	}
	size := q.Limit
	q.Limit = min(size+1, ledger.EntriesMax) // one more tells whether there is a next page
	entries, err := h.Ledger.Entries(c.r.Context(), q)
	if err != nil {
		return err
	}
	if len(entries) == 0 {
		if _, err := h.Catalog.Tenant(c.r.Context(), c.tenant); err != nil {
			return tenantNotFound(err)
		}
	}
	page := entriesPage{Entries: make([]entryBody, 0, len(entries))}
	for i := range entries[:min(size, len(entries))] {
		page.Entries = append(page.Entries, newEntryBody(&entries[i]))
	}
	// A page of the largest size may be the last one and not know it: the next is empty.
	if len(entries) > size || len(entries) == ledger.EntriesMax {
		page.NextCursor = encodeSeqCursor(list, entries[size-1].Seq)
	}
	return c.json(http.StatusOK, page)
}

// entryQuery reads the filters of a list of entries, and what identifies that list.
func (c *call) entryQuery() (ledger.EntryQuery, [cursorDigestBytes]byte, error) {
	var list [cursorDigestBytes]byte
	query, err := c.query("limit", "cursor", "order", "meter", "subject", "kind", "from", "until")
	if err != nil {
		return ledger.EntryQuery{}, list, err
	}
	f := filter{values: query}
	q := ledger.EntryQuery{
		Tenant:  c.tenant,
		Limit:   f.pageSize(),
		Meter:   f.text("meter", nameRule),
		Subject: f.text("subject", quota.IDRule),
		Kind:    ledger.Kind(f.text("kind", oneOf(entryKinds...))),
		From:    f.instant("from"),
		Until:   f.instant("until"),
	}
	q.Descending = f.text("order", oneOf("asc", "desc")) == "desc"
	if !q.From.IsZero() && !q.Until.IsZero() && !q.From.Before(q.Until) {
		f.fault("until", "must be after from")
	}
	list = listDigest("entries", q.Tenant, q.Meter, q.Subject, string(q.Kind),
		stamp(q.From), stamp(q.Until), strconv.FormatBool(q.Descending))
	if f.values.Has("cursor") {
		seq, ok := decodeSeqCursor(list, f.values.Get("cursor"))
		if !ok {
			f.fault("cursor", cursorRule)
		}
		q.AfterSeq = seq
	}
	return q, list, f.problem()
}

// entry is GET /v1/tenants/{tenant}/entries/{seq}.
func (h *Handler) entry(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	text, err := c.param("seq")
	if err != nil {
		return err
	}
	seq, ok := parseUnits([]byte(text))
	if !ok || seq == 0 {
		return invalid("seq", "must be a whole number from 1 to 999999999999999")
	}
	e, err := h.Ledger.Entry(c.r.Context(), c.tenant, seq)
	if err != nil {
		return notFound(err, "The tenant has no entry "+text+".")
	}
	return c.json(http.StatusOK, newEntryBody(&e))
}

// nameRule is the rule that a meter's, plan's or limit's name breaks, or "".
func nameRule(name string) string {
	if catalog.ValidName(name) {
		return ""
	}
	return catalog.NameRule
}

func oneOf(words ...string) func(string) string {
	return func(word string) string {
		if slices.Contains(words, word) {
			return ""
		}
		return "must be one of " + strings.Join(words, ", ")
	}
}

// stamp is an instant as a part of a list's digest.
func stamp(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return strconv.FormatInt(at.UnixMicro(), 10)
}
