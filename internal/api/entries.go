package api

import (
	"context"
	"errors"
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
	OverrideSet  int64             `json:"override_set_id,omitempty"`
	LimitsUsed   []int64           `json:"limits_used"`
	LimitsHeld   []int64           `json:"limits_held,omitempty"`
	Dims         map[string]string `json:"dims,omitempty"`
	Hash         quota.Hash        `json:"hash"`
}

func newEntryBody(e *ledger.Entry) entryBody {
	body := entryBody{
		Tenant: e.Tenant, Seq: e.Seq, At: e.At.UTC(), EffectiveAt: e.EffectiveAt.UTC(), Kind: e.Kind,
		Meter: e.Meter, Subject: e.Subject, Units: e.Units, Held: e.Held, Total: e.Total,
		RequestID: e.RequestID, BatchID: e.BatchID, RefSeq: e.RefSeq, Plan: e.Plan,
		PlanVersion: e.PlanVersion, OverrideSet: e.OverrideSetID, LimitsUsed: e.LimitsUsed, LimitsHeld: e.LimitsHeld, Dims: e.Dims, Hash: e.Hash,
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

// entries is GET /v1/tenants/{tenant}/entries: the ledger, page by page, or as one
// stream of all that the filters select.
func (h *Handler) entries(c *call) error {
	q, digest, err := c.entryQuery()
	if err != nil {
		return err
	}
	if q.format != formatJSON {
		return h.exportEntries(c, q)
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), readTimeout)
	defer cancel()
	list, err := h.entryList(ctx, q.EntryQuery)
	if err != nil {
		return ledgerTenantNotFound(err)
	}
	read, err := list.Next(ctx)
	if err != nil {
		return err
	}
	page := entriesPage{Entries: mapped(read.Entries, func(e ledger.Entry) entryBody { return newEntryBody(&e) })}
	if read.NextSeq > 0 {
		page.NextCursor = encodeSeqCursor(digest, read.NextSeq)
	}
	return c.json(http.StatusOK, page)
}

// entryList begins a list. One that has an end is final.
func (h *Handler) entryList(ctx context.Context, q ledger.EntryQuery) (list *ledger.EntryList, err error) {
	if q.To.IsZero() {
		err = h.endHolds(ctx, q.Tenant, q.To)
	} else {
		_, err = h.settled(ctx, q.Tenant, q.To)
	}
	if err != nil {
		return nil, err
	}
	return h.Ledger.EntryList(ctx, q)
}

// ledgerTenantNotFound is the problem that a reader of a tenant's ledger has when there
// is no such tenant.
func ledgerTenantNotFound(err error) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return &problem{code: codeTenantNotFound, cause: err}
	}
	return err
}

// An entryListQuery is a list of entries and the form it is asked for in.
type entryListQuery struct {
	ledger.EntryQuery
	format format
}

// entryQuery reads the filters of a list of entries, and what identifies that list.
func (c *call) entryQuery() (entryListQuery, [cursorDigestBytes]byte, error) {
	var list [cursorDigestBytes]byte
	query, err := c.query("limit", "cursor", "order", "meter", "subject", "kind", "plan", "request_id", "from", "to", "format")
	if err != nil {
		return entryListQuery{}, list, err
	}
	f := filter{values: query}
	q := entryListQuery{EntryQuery: ledger.EntryQuery{
		Tenant:    c.tenant,
		Limit:     f.pageSize(),
		Meter:     f.text("meter", nameRule),
		Subject:   f.text("subject", quota.IDRule),
		Kind:      ledger.Kind(f.text("kind", oneOf(entryKinds...))),
		Plan:      f.text("plan", nameRule),
		RequestID: f.uuid("request_id"),
	}}
	q.From, q.To = f.span()
	q.Descending = f.text("order", oneOf("asc", "desc")) == "desc"
	q.format = f.format(c.r.Header)
	if q.format != formatJSON {
		for _, name := range []string{"limit", "cursor"} {
			if f.values.Has(name) {
				f.fault(name, "is for pages of JSON: a stream has the whole list")
			}
		}
		return q, list, f.problem()
	}
	list = listDigest("entries", q.Tenant, q.Meter, q.Subject, string(q.Kind), q.Plan, q.RequestID.String(),
		stamp(q.From), stamp(q.To), strconv.FormatBool(q.Descending))
	q.AfterSeq = f.seqCursor(list)
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
		return invalid("seq", seqRule)
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
