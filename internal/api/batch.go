package api

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quotad/quotad/internal/quota"
)

// batchItemsMax bounds the requests of one batch.
const batchItemsMax = 1000

// A batchItem is one request of a batch, or why it is none.
type batchItem struct {
	request quota.Request
	err     error
}

// batch is POST …/batch of an operation: requests that are answered in their order, each
// as if it had been sent alone. They are no unit: what is wrong with one, or denied, is in
// its own result.
func (h *Handler) batch(f form) func(c *call) error {
	return func(c *call) error { return h.decideBatch(c, f) }
}

func (h *Handler) decideBatch(c *call, f form) error {
	if _, err := c.query(); err != nil {
		return err
	}
	if values := c.r.Header[idempotencyKeyHeader]; len(values) > 0 {
		return invalid(idempotencyKeyHeader, "must not be given for a batch: each item has its own "+idempotencyKeyField)
	}
	if err := c.readBody(batchBytesMax); err != nil {
		return err
	}
	c.in.resetBatch()
	items := decodeBatch(&c.in, f)
	if len(c.in.faults) > 0 {
		return c.in.problem()
	}
	requests := make([]quota.Request, 0, len(items))
	for i := range items {
		if items[i].err == nil && !c.key.MayActFor(items[i].request.Tenant) {
			items[i].err = errTenantForbidden()
		}
		if items[i].err == nil {
			requests = append(requests, items[i].request)
		}
	}
	results := h.Engine.DecideAll(c.r.Context(), requests)
	if err := c.r.Context().Err(); err != nil {
		return err
	}
	b := append(c.out[:0], `{"results":[`...)
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		result := quota.Result{Err: items[i].err}
		if result.Err == nil {
			result, results = results[0], results[1:]
		}
		b = h.appendResult(b, c, &result)
	}
	c.out = append(b, "]}"...)
	c.w.Header()["Cache-Control"] = headerNoStore
	c.reply(http.StatusOK, headerJSON, c.out)
	return nil
}

// appendResult appends what an item would have got alone: the status, whether it is an
// earlier answer, and the body.
func (h *Handler) appendResult(b []byte, c *call, result *quota.Result) []byte {
	b = append(b, `{"status":`...)
	if result.Err != nil {
		_, body := h.describe(c, inItem(result.Err))
		b = strconv.AppendInt(b, int64(body.Status), 10)
		b = append(append(b, `,"body":`...), body.json()...)
		return append(b, '}')
	}
	d := &result.Decision
	if !d.Allowed {
		b = strconv.AppendInt(b, http.StatusTooManyRequests, 10)
		return append(appendDenial(append(b, `,"body":`...), d), '}')
	}
	b = strconv.AppendInt(b, http.StatusOK, 10)
	if d.Replayed {
		b = append(b, `,"replayed":true`...)
	}
	return append(appendDecision(append(b, `,"body":`...), d), '}')
}

// inItem names the idempotency key of an error as an item of a batch does.
func inItem(err error) error {
	p := problemOf(err)
	if !slices.ContainsFunc(p.faults, func(f quota.Fault) bool { return f.Field == idempotencyKeyHeader }) {
		return err
	}
	renamed := *p
	renamed.faults = slices.Clone(p.faults)
	for i := range renamed.faults {
		if renamed.faults[i].Field == idempotencyKeyHeader {
			renamed.faults[i].Field = idempotencyKeyField
		}
	}
	return &renamed
}

// resetBatch starts the walk over a batch, which is cut into its items whatever their
// texts and names are; each item is then read as strictly as a request alone. Otherwise
// one bad text, from one of the callers that a gateway batches, would refuse all others.
func (b *bodyReader) resetBatch() {
	b.reset(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
}

// decodeBatch reads the body of a batch: {items: [{…, idempotency_key?}]}.
// Faults of the batch are left in b; those of an item are the item's, with its fields
// named as if it stood alone.
func decodeBatch(b *bodyReader, f form) []batchItem {
	var items []batchItem
	given := false
	if !b.object("") {
		return nil
	}
	for b.member() {
		switch {
		case string(b.name) != "items":
			b.unknown()
		case given:
			b.skip("items", "must be given only once")
		default:
			given = true
			if b.array("items") {
				items = decodeItems(b, f)
			}
		}
	}
	b.end()
	switch {
	case b.broken:
	case !given:
		b.fault("items", "is required")
	case len(items) == 0 && !b.faulted("items"):
		b.fault("items", "must hold at least one item")
	}
	return items
}

// decodeItems reads the items of a batch. The reader of items has no text of its own: it
// walks the bytes of the batch.
func decodeItems(b *bodyReader, f form) []batchItem {
	var items []batchItem
	item := bodyReader{clients: b.clients}
	for b.more() {
		if len(items) == batchItemsMax {
			b.fault("items", fmt.Sprintf("must hold at most %d items", batchItemsMax))
			b.broken = true // nobody reads the rest
			return nil
		}
		text, err := b.dec.ReadValue()
		if err != nil {
			b.fail(err)
			return nil
		}
		item.text = *bytes.NewBuffer(text)
		item.reset()
		request := decodeRequest(&item, f, true)
		items = append(items, batchItem{request: request, err: item.check(request)})
	}
	return slices.Clip(items)
}
