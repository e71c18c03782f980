package quota

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// replayedHolds is what entries say of the holds of a tenant.
type replayedHolds struct {
	holds   map[uuid.UUID]*replayedHold // all there ever were
	charges map[int64]*replayedCharge   // by the number of their entry
	counts  map[heldKey]heldCount       // of those that are open
}

func newReplayedHolds() replayedHolds {
	return replayedHolds{
		holds: make(map[uuid.UUID]*replayedHold), charges: make(map[int64]*replayedCharge), counts: make(map[heldKey]heldCount),
	}
}

// A replayedHold is one hold. Its id is that of the request that made it.
type replayedHold struct {
	subjectID     int64
	firstSeq      int64
	meters        []string
	units         []int64
	startedMicros int64
	expiresMicros int64
	state         HoldState
}

// A replayedCharge is what a hold sets aside of one meter.
type replayedCharge struct {
	hold    *replayedHold
	meter   string
	units   int64
	charged int64 // by its expiry
	state   HoldState
}

type heldKey struct {
	meter     string
	subjectID int64 // 0 for the whole tenant
}

type heldCount struct{ holds, units int64 }

// open returns how many holds are open on the limit's meter, and how many units they set
// aside, before an entry.
func (x *replayedHolds) open(l *limit, e *ledger.Entry) (holds, units int64) {
	key := heldKey{meter: l.Meter}
	if l.Scope == catalog.ScopeSubject {
		if key.subjectID = e.SubjectID; key.subjectID == 0 {
			return 0, 0
		}
	}
	count := x.counts[key]
	return count.holds, count.units
}

func (x *replayedHolds) count(c *replayedCharge, holds int64) {
	for _, subjectID := range slices.Compact([]int64{0, c.hold.subjectID}) {
		key := heldKey{c.meter, subjectID}
		have := x.counts[key]
		x.counts[key] = heldCount{have.holds + holds, have.units + holds*c.units}
	}
}

// hold goes on to an entry. It returns what is wrong with it, or "".
func (x *replayedHolds) hold(e *ledger.Entry) string {
	switch e.Kind {
	case ledger.KindHold:
		x.begin(e)
		return ""
	case ledger.KindExtend, ledger.KindSettle, ledger.KindRelease, ledger.KindExpire:
	default:
		if e.Held != 0 {
			return fmt.Sprintf("is of kind %s and says that %d units were set aside", e.Kind, e.Held)
		}
		return ""
	}
	c := x.charges[e.RefSeq]
	if c == nil || c.meter != e.Meter || c.hold.subjectID != e.SubjectID {
		return fmt.Sprintf("answers entry %d, which is no hold on its meter", e.RefSeq)
	}
	if wrong := c.resolvedBy(e); wrong != "" {
		return wrong
	}
	if e.Kind == ledger.KindExtend {
		c.hold.expiresMicros = e.EffectiveAt.UnixMicro()
		return ""
	}
	if c.state == HoldOpen {
		x.count(c, -1)
	}
	if e.Kind == ledger.KindExpire {
		x.charges[e.Seq], c.charged = c, e.Units // a late settle that gives back answers the expiry
	}
	c.state = map[ledger.Kind]HoldState{
		ledger.KindSettle: HoldSettled, ledger.KindRelease: HoldReleased, ledger.KindExpire: HoldExpired,
	}[e.Kind]
	c.hold.state = c.state
	return ""
}

// begin notes a hold, or a further charge of it.
func (x *replayedHolds) begin(e *ledger.Entry) {
	h := x.holds[e.RequestID]
	if h == nil {
		h = &replayedHold{
			subjectID: e.SubjectID, firstSeq: e.Seq, state: HoldOpen,
			startedMicros: e.At.UnixMicro(), expiresMicros: e.EffectiveAt.UnixMicro(),
		}
		x.holds[e.RequestID] = h
	}
	h.meters, h.units = append(h.meters, e.Meter), append(h.units, e.Held)
	c := &replayedCharge{hold: h, meter: e.Meter, units: e.Held, state: HoldOpen}
	x.charges[e.Seq] = c
	x.count(c, 1)
}

// resolvedBy returns what is wrong with an entry that answers c, or "".
func (c *replayedCharge) resolvedBy(e *ledger.Entry) string {
	over := c.hold.expiresMicros <= e.At.UnixMicro()
	switch {
	case c.state == HoldExpired && e.Kind == ledger.KindSettle:
		if e.Held != 0 || e.Units < -c.charged {
			return fmt.Sprintf("settles the expired hold of entry %d by %d units and %d held", e.RefSeq, e.Units, e.Held)
		}
		return ""
	case c.state != HoldOpen:
		return fmt.Sprintf("is of kind %s and answers entry %d, whose hold was %s before", e.Kind, e.RefSeq, c.state)
	case e.Kind == ledger.KindExpire && !over, e.Kind != ledger.KindExpire && over:
		return fmt.Sprintf("is of kind %s, and the hold of entry %d ends at %s", e.Kind, e.RefSeq,
			time.UnixMicro(c.hold.expiresMicros).UTC().Format(time.RFC3339Nano))
	case e.Kind == ledger.KindExtend && e.Held == 0 && e.Units == 0:
		return ""
	case e.Held != -c.units, e.Kind == ledger.KindRelease && e.Units != 0, e.Units < 0,
		e.Kind == ledger.KindExpire && e.Units != 0 && e.Units != c.units:
		return fmt.Sprintf("is of kind %s, uses %d units and frees %d, and the hold of entry %d set aside %d",
			e.Kind, e.Units, -e.Held, e.RefSeq, c.units)
	}
	return ""
}

// index: hold_pkey. lock: none.
const verifyHoldsSQL = holdColumns + `
from quotad.hold h` + holdTexts + `
where h.tenant_id = $1`

// checkHolds compares the holds of a tenant with the replayed ones. Resolved ones may be
// gone: they are kept for a while only.
func checkHolds(ctx context.Context, db ledger.Querier, v *ledger.Verification, want map[uuid.UUID]*replayedHold) ([]string, error) {
	rows, err := db.Query(ctx, verifyHoldsSQL, v.TenantID)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	var details []string
	kept, err := pgx.CollectRows(rows, scanHold)
	if err != nil {
		return nil, fmt.Errorf("read holds: %w", err)
	}
	have := make(map[uuid.UUID]bool, len(kept))
	for i := range kept {
		h := &kept[i]
		have[h.id] = true
		if wrong := h.differs(want[h.id]); wrong != "" {
			details = append(details, fmt.Sprintf("hold %s %s", h.id, wrong))
		}
	}
	var open int32
	for id, h := range want {
		if h.state != HoldOpen {
			continue
		}
		open++
		if !have[id] {
			details = append(details, fmt.Sprintf("hold %s of entry %d is open and missing", id, h.firstSeq))
		}
	}
	if v.OpenHolds != open {
		details = append(details, fmt.Sprintf("the account says that %d holds are open, the entries say %d", v.OpenHolds, open))
	}
	slices.Sort(details)
	return details, nil
}

// differs returns what of a kept hold is not what its entries say, or "".
func (h *storedHold) differs(want *replayedHold) string {
	switch {
	case want == nil:
		return "is kept without an entry"
	case h.state != want.state:
		return fmt.Sprintf("is %s; its entries say %s", h.state, want.state)
	case h.firstSeq != want.firstSeq || h.subjectID != want.subjectID ||
		h.startedMicros != want.startedMicros || h.expiresMicros != want.expiresMicros:
		return fmt.Sprintf("is of entry %d, subject %d, and ends at %s; its entries say %d, %d, %s", h.firstSeq, h.subjectID,
			time.UnixMicro(h.expiresMicros).UTC().Format(time.RFC3339Nano), want.firstSeq, want.subjectID,
			time.UnixMicro(want.expiresMicros).UTC().Format(time.RFC3339Nano))
	case len(h.charges) != len(want.meters):
		return fmt.Sprintf("is on %d meters; its entries say %d", len(h.charges), len(want.meters))
	}
	for i, c := range h.charges {
		if c.meter != want.meters[i] || c.units != want.units[i] {
			return fmt.Sprintf("sets %d of %s aside; its entries say %d of %s", c.units, c.meter, want.units[i], want.meters[i])
		}
	}
	return ""
}
