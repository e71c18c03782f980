package quota

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// A HoldQuery selects holds of a tenant. Open ones come in the order in which they end,
// the others the newest first.
type HoldQuery struct {
	Tenant  string
	Subject string    // of this subject alone
	State   HoldState // "" is open
	After   HoldPlace // zero for the first page
	Limit   int
}

// Open reports whether the query is for open holds.
func (q *HoldQuery) Open() bool { return q.State == "" || q.State == HoldOpen }

// A HoldPlace is a place in a list of holds: behind that hold.
type HoldPlace struct {
	ExpiresAt time.Time // in a list of open ones
	ID        uuid.UUID
}

// A HoldPage is one page of holds. A page of those that have ended looks at a bounded
// number of them, so it may hold few, or none, and still have a next one.
type HoldPage struct {
	Holds []HoldView
	Next  *HoldPlace // nil after the last page
}

// A HoldView is a hold as it stands. One whose time is over is expired, whether or not
// the ledger has its expiry yet: the next request of the tenant enters that.
type HoldView struct {
	ID         uuid.UUID    `json:"id"`
	Tenant     string       `json:"tenant"`
	Subject    string       `json:"subject,omitzero"`
	State      HoldState    `json:"state"`
	Charges    []HoldCharge `json:"charges"`
	StartedAt  time.Time    `json:"started_at"`
	ExpiresAt  time.Time    `json:"expires_at"`
	ResolvedAt time.Time    `json:"resolved_at,omitzero"` // zero until the ledger has its end
	AgeMS      int64        `json:"age_ms"`               // from its start until its end, or now
	Late       bool         `json:"late,omitzero"`        // it was settled after it had expired
	FirstSeq   int64        `json:"first_seq"`            // of its entries, one per charge
}

// A HoldCharge is what a hold sets, or had set, aside of one meter.
type HoldCharge struct {
	Meter string `json:"meter"`
	Held  int64  `json:"held"`          // units
	Cost  *int64 `json:"cost,omitzero"` // units that it came to; nil until the ledger has its end
}

// Holds returns a page of holds; [ledger.ErrNotFound] if there is no such tenant.
func (x *Reader) Holds(ctx context.Context, q HoldQuery) (HoldPage, error) {
	t, err := holdTenantOf(ctx, x.db, q.Tenant)
	if err != nil {
		return HoldPage{}, err
	}
	subject, err := subjectID(ctx, x.db, t.id, q.Subject)
	if err != nil {
		return HoldPage{}, err
	}
	list := endedHolds
	if q.Open() {
		list = openHolds
	}
	stored, next, err := list(ctx, x.db, t, subject, q)
	if err != nil {
		return HoldPage{}, err
	}
	page := HoldPage{Holds: make([]HoldView, len(stored)), Next: next}
	for i := range stored {
		if page.Holds[i], err = stored[i].view(q.Tenant, t.now); err != nil {
			return HoldPage{}, err
		}
	}
	return page, nil
}

// Hold returns one hold: [ledger.ErrNotFound] if there is no such tenant, an *[Error]
// with [CodeHoldNotFound] if the tenant has no such hold.
func (x *Reader) Hold(ctx context.Context, tenant string, id uuid.UUID) (HoldView, error) {
	t, err := holdTenantOf(ctx, x.db, tenant)
	if err != nil {
		return HoldView{}, err
	}
	h, err := holdOf(ctx, x.db, t, id)
	if err != nil {
		return HoldView{}, err
	}
	return h.view(tenant, t.now)
}

// view is h as it stands now.
func (h *storedHold) view(tenant string, now time.Time) (HoldView, error) {
	v := HoldView{
		ID: h.id, Tenant: tenant, Subject: h.subject, State: h.state, Late: h.result().Late, FirstSeq: h.firstSeq,
		StartedAt: time.UnixMicro(h.startedMicros).UTC(), ExpiresAt: time.UnixMicro(h.expiresMicros).UTC(),
	}
	ended := now
	switch {
	case h.resolvedAt != 0:
		v.ResolvedAt = time.UnixMicro(h.resolvedAt).UTC()
		ended = v.ResolvedAt
	case !v.ExpiresAt.After(now):
		v.State = HoldExpired
		ended = v.ExpiresAt
	}
	v.AgeMS = ended.Sub(v.StartedAt).Milliseconds()
	costs, err := h.costs()
	if err != nil {
		return v, err
	}
	for i, c := range h.charges {
		charge := HoldCharge{Meter: c.meter, Held: c.units}
		if costs != nil {
			charge.Cost = &costs[i]
		}
		v.Charges = append(v.Charges, charge)
	}
	return v, nil
}

// costs is what each charge of h came to; nil until the ledger has its end.
func (h *storedHold) costs() ([]int64, error) {
	if h.state == HoldOpen {
		return nil, nil
	}
	costs := make([]int64, len(h.charges))
	for i := range h.charges {
		costs[i] = h.charges[i].charged
	}
	if h.answer == nil {
		return costs, nil
	}
	var resolved struct{ Charges []ChargeResult }
	if err := json.Unmarshal(h.answer, &resolved); err != nil {
		return nil, fmt.Errorf("read the answer that resolved hold %s: %w", h.id, err)
	}
	if len(resolved.Charges) != len(costs) {
		return nil, fmt.Errorf("hold %s has %d charges, and the answer that resolved it has %d", h.id, len(costs), len(resolved.Charges))
	}
	for i := range resolved.Charges {
		costs[i] = resolved.Charges[i].Cost
	}
	return costs, nil
}
