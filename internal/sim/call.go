package sim

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// An Outcome is what a caller knows after a call.
type Outcome int

// Outcomes.
const (
	OutcomeAllowed Outcome = iota + 1 // 200: it is in the ledger, unless it was a dry run
	OutcomeDenied                     // 429: nothing happened
	OutcomeRefused                    // another 4xx, a 503 that is sure, or nobody listened: nothing happened
	OutcomeUnknown                    // no answer, or one that says nobody knows
)

// String names the outcome.
func (o Outcome) String() string {
	names := []string{"none", "allowed", "denied", "refused", "unknown"}
	if o < 0 || int(o) >= len(names) {
		o = 0
	}
	return names[o]
}

// A Call is a request and what came of it.
type Call struct {
	Request
	Outcome  Outcome
	Status   int // 0 without an answer
	Started  time.Time
	Took     time.Duration
	BodyHash [sha256.Size]byte
	Body     string // kept unless allowed or denied; an error's text without an answer
	Replayed bool   // marked Idempotent-Replayed: true
	Fault    string // what is wrong with the answer by itself; "" if nothing is
	// ClockOff is how far the database's clock may have been stepped while calls were made.
	// After a fall back, waits are told from the clock and are longer by that.
	ClockOff time.Duration

	// Of an allowed or denied answer.
	RequestID uuid.UUID
	At        int64 // decided_at, in microseconds
	Charged   map[string]int64
	Violated  []Violation
	Receipt   Receipt // zero if there is none
	DelayMS   int64
	RetryMS   int64
	Remaining int64     // over the limits that enforce
	HoldID    uuid.UUID // of a hold, and of what answers one
}

// A Violation is one limit that a denial names.
type Violation struct {
	Name  string
	Meter string
	Limit int64
}

// A Receipt names the entries of an allowed request.
type Receipt struct {
	FirstSeq int64  `json:"first_seq"`
	Seq      int64  `json:"seq"`
	Hash     string `json:"hash"`
}

// end is when the answer was there.
func (c *Call) end() time.Time { return c.Started.Add(c.Took) }

// String identifies the call in a finding about its tenant.
func (c *Call) String() string {
	text := fmt.Sprintf("call %q", c.Tag)
	if c.Key != "" {
		text += fmt.Sprintf(" key %q", c.Key)
	}
	return text
}

// answerBody is what is read of an answer.
type answerBody struct {
	Allowed   bool      `json:"allowed"`
	Kind      Kind      `json:"kind"`
	Reason    string    `json:"reason"`
	Tenant    string    `json:"tenant"`
	RequestID uuid.UUID `json:"request_id"`
	DecidedAt time.Time `json:"decided_at"`
	DryRun    bool      `json:"dry_run"`
	Charges   []struct {
		Meter string `json:"meter"`
		Cost  int64  `json:"cost"`
	} `json:"charges"`
	Limits []struct {
		Name     string `json:"name"`
		Meter    string `json:"meter"`
		Limit    int64  `json:"limit"`
		Violated bool   `json:"violated"`
	} `json:"limits"`
	DelayMS   *int64   `json:"delay_ms"`
	RetryMS   *int64   `json:"retry_after_ms"`
	Receipt   *Receipt `json:"receipt"`
	Remaining int64    `json:"remaining"`
	Hold      struct {
		ID uuid.UUID `json:"id"`
	} `json:"hold"`
	Reversal struct {
		Meter string `json:"meter"`
		Units int64  `json:"units"`
	} `json:"reversal"`
	Outcome string `json:"outcome"` // of a problem
}

// answered notes an answer.
func (c *Call) answered(status int, header http.Header, body []byte) {
	c.Status, c.BodyHash = status, sha256.Sum256(body)
	c.Replayed = header.Get("Idempotent-Replayed") == "true"
	var a answerBody
	err := json.Unmarshal(body, &a)
	switch {
	case err != nil:
		c.Fault = "the body is not JSON: " + err.Error()
		c.Outcome = OutcomeUnknown
	case status == http.StatusOK:
		c.Outcome = OutcomeAllowed
		c.decided(&a)
	case status == http.StatusTooManyRequests:
		c.Outcome = OutcomeDenied
		c.decided(&a)
		c.checkRetryAfter(header.Get("Retry-After"))
	case status == http.StatusServiceUnavailable && a.Outcome == "", status >= 400 && status < 500:
		c.Outcome = OutcomeRefused
	default:
		c.Outcome = OutcomeUnknown
	}
	if c.Outcome > OutcomeDenied || c.Fault != "" {
		c.Body = string(body)
	}
}

// beside are the reasons of a denial that no limit has to do with.
var beside = map[string]bool{"tenant_suspended": true, "meter_not_in_plan": true, "too_many_holds": true}

// decided notes a decision and what is wrong with it by itself.
func (c *Call) decided(a *answerBody) {
	c.RequestID, c.At = a.RequestID, a.DecidedAt.UnixMicro()
	c.Charged = make(map[string]int64, len(a.Charges))
	for _, charge := range a.Charges {
		c.Charged[charge.Meter] += charge.Cost
	}
	if a.Reversal.Units != 0 {
		c.Charged[a.Reversal.Meter] -= a.Reversal.Units
	}
	c.Remaining, c.HoldID = a.Remaining, a.Hold.ID
	for _, l := range a.Limits {
		if l.Violated {
			c.Violated = append(c.Violated, Violation{l.Name, l.Meter, l.Limit})
		}
	}
	if a.DelayMS != nil {
		c.DelayMS = *a.DelayMS
	}
	if a.RetryMS != nil {
		c.RetryMS = *a.RetryMS
	}
	if a.Receipt != nil {
		c.Receipt = *a.Receipt
	}
	allowed := c.Outcome == OutcomeAllowed
	switch {
	case a.Allowed != allowed:
		c.Fault = fmt.Sprintf("status %d with allowed: %t", c.Status, a.Allowed)
	case a.Kind != "" && a.Kind != c.kind():
		c.Fault = fmt.Sprintf("the answer is to a %s", a.Kind)
	case !allowed && !c.kind().decided():
		c.Fault = "a denial of what cannot be denied"
	case a.Tenant != c.Tenant:
		c.Fault = fmt.Sprintf("the answer is about tenant %q", a.Tenant)
	case a.RequestID == uuid.Nil:
		c.Fault = "the answer has no request_id"
	case (a.Receipt != nil) != (allowed && !c.DryRun):
		c.Fault = "an answer has a receipt if it is allowed and no dry run, and only then"
	case !allowed && beside[a.Reason] && len(c.Violated) > 0:
		c.Fault = "a denial that blames limits and gives another reason"
	case !allowed && !beside[a.Reason] && len(c.Violated) == 0:
		c.Fault = "a denial that names no limit"
	}
}

// checkRetryAfter wants the header to be the body's wait in whole seconds, rounded up.
func (c *Call) checkRetryAfter(header string) {
	want := ""
	if c.RetryMS > 0 {
		want = fmt.Sprint((c.RetryMS + 999) / 1000)
	}
	if header != want && c.Fault == "" {
		c.Fault = fmt.Sprintf("Retry-After is %q and the body says %d ms", header, c.RetryMS)
	}
}

// Count returns how many calls had each outcome.
func Count(calls []Call) map[Outcome]int {
	counts := make(map[Outcome]int)
	for i := range calls {
		counts[calls[i].Outcome]++
	}
	return counts
}

// Statuses returns how many calls had each status; 0 is no answer.
func Statuses(calls []Call) map[int]int {
	counts := make(map[int]int)
	for i := range calls {
		counts[calls[i].Status]++
	}
	return counts
}

// TookAt returns what a share of the answered calls took at most, in thousandths: 500
// is the median, 990 the 99th percentile. 0 without any.
func TookAt(calls []Call, permille int) time.Duration {
	var took []time.Duration
	for i := range calls {
		if calls[i].Status != 0 {
			took = append(took, calls[i].Took)
		}
	}
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[min(len(took)-1, len(took)*permille/1000)]
}

// oneLine makes a body fit into a finding.
func oneLine(text string) string {
	const most = 300
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), most)]
}
