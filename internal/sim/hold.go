package sim

import (
	"fmt"

	"github.com/google/uuid"
)

// A hold is what entries say of one hold. Its id is that of the request that made it.
type hold struct {
	expires int64
	charges []*heldCharge
	ended   bool // settled, released or expired
}

// A heldCharge is what a hold sets aside of one meter.
type heldCharge struct {
	hold    *hold
	entry   *entry
	end     Kind  // what ended it; "" while it is open
	charged int64 // by its expiry
}

// holds is what the entries of a tenant say of its holds.
type holds struct {
	byRequest map[uuid.UUID]*hold
	bySeq     map[int64]*heldCharge // by the number of its entry, and of its expiry's
	open      map[*hold]bool
}

func newHolds() holds {
	return holds{
		byRequest: make(map[uuid.UUID]*hold), bySeq: make(map[int64]*heldCharge), open: make(map[*hold]bool),
	}
}

// begin notes a hold, or a further charge of it.
func (h *holds) begin(e *entry) string {
	made := h.byRequest[e.requestID]
	if made == nil {
		made = &hold{expires: e.effectiveAt}
		h.byRequest[e.requestID], h.open[made] = made, true
	}
	c := &heldCharge{hold: made, entry: e}
	made.charges, h.bySeq[e.seq] = append(made.charges, c), c
	if e.units != 0 || e.held < 0 || e.refSeq != 0 || e.effectiveAt <= e.at {
		return "holds, and uses units, frees some, answers an entry or is over before it began"
	}
	return ""
}

// answer goes on to an entry that answers a hold, and says what is wrong with it.
func (h *holds) answer(e *entry, charges bool) string {
	c := h.bySeq[e.refSeq]
	switch {
	case c == nil || c.entry.meter != e.meter || c.entry.subject != e.subject:
		return fmt.Sprintf("answers entry %d, which is no hold of its meter and subject", e.refSeq)
	case c.end == kindExpire && e.kind == KindSettle:
		return c.late(e)
	case c.end != "":
		return fmt.Sprintf("is a %s of the hold of entry %d, which a %s has ended", e.kind, e.refSeq, c.end)
	}
	over, held := c.hold.expires <= e.at, c.entry.held
	if over != (e.kind == kindExpire) {
		return fmt.Sprintf("is a %s, and the hold of entry %d is over: %t", e.kind, e.refSeq, over)
	}
	if e.kind == KindExtend {
		if e.units != 0 || e.held != 0 || e.effectiveAt <= e.at {
			return "extends, and uses or frees units, or ends before it began"
		}
		c.hold.expires = e.effectiveAt
		return ""
	}
	c.end, c.hold.ended = e.kind, true
	delete(h.open, c.hold)
	units := map[Kind]int64{KindSettle: e.units}[e.kind] // whatever it came to
	if e.kind == kindExpire {
		h.bySeq[e.seq], c.charged = c, e.units
		if charges {
			units = held
		}
	}
	if e.held != -held || e.units != units || units < 0 || e.effectiveAt != e.at {
		return fmt.Sprintf("is a %s of %d units and frees %d; the hold of entry %d set %d aside", e.kind, e.units, -e.held, c.entry.seq, held)
	}
	return ""
}

// late is a settle after the expiry: the truth, less what the expiry has taken for it.
func (c *heldCharge) late(e *entry) string {
	c.end = KindSettle
	if e.held != 0 || e.units < -c.charged {
		return fmt.Sprintf("settles the expired hold of entry %d with %d units and frees %d", c.entry.seq, e.units, -e.held)
	}
	return ""
}

// overdue returns an open hold that has ended by an instant and has no entry that says so;
// nil if there is none. Decisions are made after all of those.
func (h *holds) overdue(at int64) *hold {
	for open := range h.open {
		if open.expires <= at {
			return open
		}
	}
	return nil
}
