package quota

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// A Reason says why a decision denied.
type Reason string

// Reasons, the one that stands furthest from passing first.
const (
	ReasonTenantSuspended  Reason = "tenant_suspended"   // or closed
	ReasonMeterNotInPlan   Reason = "meter_not_in_plan"  // the plan has no limit on the meter
	ReasonBlocked          Reason = "blocked"            // a limit or rate of 0
	ReasonCostExceedsLimit Reason = "cost_exceeds_limit" // could never fit
	ReasonQuotaExceeded    Reason = "quota_exceeded"     // fits later: see RetryAfter
	ReasonTooManyHolds     Reason = "too_many_holds"     // the tenant has HoldsOpenMax open ones: see RetryAfter
)

// passes reports whether a request denied for this reason fits later.
func (r Reason) passes() bool { return r == ReasonQuotaExceeded || r == ReasonTooManyHolds }

// ofLimit reports whether a limit is why, and so which limits are to be named.
func (r Reason) ofLimit() bool {
	return r == ReasonBlocked || r == ReasonCostExceedsLimit || r == ReasonQuotaExceeded
}

// A Decision is the answer to a Request, with what every limit said. Its JSON form
// is the body of the answer; all headers are computed from it.
type Decision struct {
	Allowed   bool        `json:"allowed"`
	Kind      ledger.Kind `json:"kind,omitzero"` // what was asked for; "" is consume
	Reason    Reason      `json:"reason,omitzero"`
	Tenant    string      `json:"tenant"`
	Subject   string      `json:"subject,omitzero"`
	RequestID uuid.UUID   `json:"request_id"`
	DecidedAt time.Time   `json:"decided_at"`
	DryRun    bool        `json:"dry_run,omitzero"`

	// Remembered says that this is the denial that the same request got at DecidedAt, less
	// than a second ago, with its waits as they are now.
	Remembered bool `json:"remembered,omitzero"`

	Charges   []ChargeResult `json:"charges"`
	Remaining *int64         `json:"remaining,omitzero"` // smallest over the enforcing limits; nil if none bounds
	Limits    []LimitResult  `json:"limits"`
	DelayMS   *int64         `json:"delay_ms,omitzero"`       // when to send it, if a leaky bucket shapes
	RetryMS   *int64         `json:"retry_after_ms,omitzero"` // denied only: the longest wait; nil if waiting never helps
	Hold      *HoldResult    `json:"hold,omitzero"`           // of hold, settle, release and extend
	Reversal  *Reversal      `json:"reversal,omitzero"`       // of reverse
	Receipt   *Receipt       `json:"receipt,omitzero"`        // allowed and recorded only

	// Degraded says that the database was away and DegradedLimits decided: nothing is in the
	// ledger yet, and nobody knows how the limits stand.
	Degraded       bool            `json:"degraded,omitzero"`
	DegradedLimits []DegradedLimit `json:"degraded_limits,omitzero"`

	// Standing is whose limits they are, where nothing was decided.
	Standing *Standing `json:"-"`
	// Replayed says that this is the answer an earlier request with the same key got.
	Replayed bool `json:"-"`
	// ClockAt is the real clock that the waits of this decision are told from. DecidedAt
	// may be ahead of it: a tenant's time never runs backwards.
	ClockAt time.Time `json:"-"`
	// Encoded is the JSON form where it is already at hand (keyed and replayed
	// answers); nil otherwise.
	Encoded []byte `json:"-"`
}

// A Standing says under which plan, and whether at all, a tenant may spend.
type Standing struct {
	Status      catalog.Status
	Plan        string
	PlanVersion int32
}

// A ChargeResult is what one meter was charged, or would have been.
type ChargeResult struct {
	Meter string `json:"meter"`
	Cost  int64  `json:"cost"`           // units; of a hold, what it sets aside
	Held  *int64 `json:"held,omitempty"` // settle, release, extend: units that the hold had set aside
}

// A HoldState is what has become of a hold.
type HoldState string

// The states of a hold. Only a hold that has expired leaves its state again: a late settle
// still records the truth.
const (
	HoldOpen     HoldState = "open"
	HoldSettled  HoldState = "settled"
	HoldReleased HoldState = "released"
	HoldExpired  HoldState = "expired"
)

// A HoldResult is a hold as an answer leaves it.
type HoldResult struct {
	ID        uuid.UUID `json:"id"`
	State     HoldState `json:"state"`
	ExpiresAt time.Time `json:"expires_at"`
	Late      bool      `json:"late,omitempty"` // it was settled after it had expired
}

// A Reversal is what was given back.
type Reversal struct {
	Seq   int64  `json:"seq"` // the entry it was of
	Meter string `json:"meter"`
	Units int64  `json:"units"`
	Left  int64  `json:"left"` // units of the entry that are still used
}

// A LimitResult is what one limit said: after the charge if it was allowed, as things
// stand if it was denied or a dry run.
type LimitResult struct {
	Name      string            `json:"name"`
	Meter     string            `json:"meter"`
	Unit      string            `json:"unit"` // of the meter
	Algorithm catalog.Algorithm `json:"algorithm"`
	Scope     catalog.Scope     `json:"scope"`
	Mode      catalog.Mode      `json:"mode"`
	Unlimited bool              `json:"unlimited,omitzero"`
	Limit     int64             `json:"limit"`     // units; the capacity, burst or queue where the algorithm has one; open holds of concurrency
	Used      int64             `json:"used"`      // units
	Held      int64             `json:"held"`      // units set aside by open holds
	Remaining int64             `json:"remaining"` // this cost fits now, one more does not
	Violated  bool              `json:"violated,omitzero"`
	WouldDeny bool              `json:"would_deny,omitzero"` // shadow only
	RetryMS   *int64            `json:"retry_after_ms,omitzero"`
	ResetMS   int64             `json:"reset_after_ms"`    // until nothing of it is used, with no further traffic
	ResetAt   time.Time         `json:"reset_at,omitzero"` // the same, exactly; zero if nothing is used, or if it never resets
	DelayMS   *int64            `json:"delay_ms,omitzero"`

	// Override says why the tenant has other numbers than the plan for now; nil for the
	// plan's own.
	Override *OverrideResult `json:"override,omitzero"`

	// Approximate says, at an instant of the past, that used may be one unit less.
	Approximate bool `json:"approximate,omitzero"`

	// NeverResets says that what is used does not come back by itself, or that nothing can
	// be used at all; ResetMS is then 0 and not sent.
	NeverResets bool `json:"-"`

	// WindowMicros is the span the limit is quoted over in RateLimit-Policy: the
	// window, or the time a full level takes to come back. 0 if it never does.
	WindowMicros int64 `json:"-"`
}

// An OverrideResult is a dated override that a limit has its numbers by.
type OverrideResult struct {
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
}

// MarshalJSON leaves out what has no number: limit and remaining of an unlimited limit,
// and the reset of one that never resets.
func (l LimitResult) MarshalJSON() ([]byte, error) {
	type plain LimitResult
	out := struct {
		plain
		Limit       *int64          `json:"limit,omitzero"`
		Used        int64           `json:"used"` // again, to keep the order of members
		Held        int64           `json:"held"`
		Remaining   *int64          `json:"remaining,omitzero"`
		Violated    bool            `json:"violated,omitzero"`
		WouldDeny   bool            `json:"would_deny,omitzero"`
		RetryMS     *int64          `json:"retry_after_ms,omitzero"`
		ResetMS     *int64          `json:"reset_after_ms,omitzero"`
		ResetAt     time.Time       `json:"reset_at,omitzero"`
		DelayMS     *int64          `json:"delay_ms,omitzero"`
		Override    *OverrideResult `json:"override,omitzero"`
		Approximate bool            `json:"approximate,omitzero"`
	}{
		plain: plain(l), Used: l.Used, Held: l.Held, Violated: l.Violated, WouldDeny: l.WouldDeny,
		RetryMS: l.RetryMS, ResetAt: l.ResetAt, DelayMS: l.DelayMS, Override: l.Override, Approximate: l.Approximate,
	}
	if !l.Unlimited {
		out.Limit, out.Remaining = &l.Limit, &l.Remaining
	}
	if !l.NeverResets {
		out.ResetMS = &l.ResetMS
	}
	return json.Marshal(out)
}

// resetAt says when nothing of the limit will be used, as a wait from the clock, too.
func (l *LimitResult) resetAt(atMicros, clockMicros int64) {
	l.ResetMS, l.ResetAt = ceilMillis(atMicros-clockMicros), time.UnixMicro(atMicros).UTC()
}

// UnmarshalJSON reads what MarshalJSON writes, so that a kept answer is given again as it
// was: a limit without a reset is one that never resets.
func (l *LimitResult) UnmarshalJSON(text []byte) error {
	type plain LimitResult
	in := struct {
		*plain
		ResetMS *int64 `json:"reset_after_ms"`
	}{plain: (*plain)(l)}
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	if l.NeverResets = in.ResetMS == nil; !l.NeverResets {
		l.ResetMS = *in.ResetMS
	}
	return nil
}

// A Receipt names the entries of an allowed request: first_seq to seq, and the hash
// of the last one, which covers all before it.
type Receipt struct {
	FirstSeq int64 `json:"first_seq"`
	Seq      int64 `json:"seq"`
	Hash     Hash  `json:"hash"`
}

// A Hash is a SHA-256 value, hexadecimal in text.
type Hash [32]byte

// MarshalText encodes the hash as lower-case hexadecimal.
func (h Hash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText decodes 64 hexadecimal digits.
func (h *Hash) UnmarshalText(text []byte) error {
	_, err := hex.Decode(h[:], text)
	return err
}

// String returns the hash in hexadecimal.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// kind is the decision's kind, spelled out.
func (d *Decision) kind() ledger.Kind {
	return cmp.Or(d.Kind, ledger.KindConsume)
}

// JSON returns the decision's JSON form, the one that is sent and kept.
func (d *Decision) JSON() ([]byte, error) { return json.Marshal(d) }
