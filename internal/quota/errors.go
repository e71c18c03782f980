package quota

import (
	"strings"
	"time"
)

// A Code names a kind of error for programs. Codes are stable.
type Code string

// Codes of errors that a decision can end in. None of them changed anything, but
// CodeOutcomeUnknown, which says that nobody can tell yet.
const (
	CodeInvalidRequest Code = "invalid_request"        // Faults says which fields
	CodeTenantNotFound Code = "tenant_not_found"       //
	CodeMeterNotFound  Code = "meter_not_found"        //
	CodeKeyReused      Code = "idempotency_key_reused" // same key, another request
	CodeOverloaded     Code = "overloaded"             // a queue is full; try again
	CodeUnavailable    Code = "unavailable"            // the database cannot be reached in time
	CodeOutcomeUnknown Code = "outcome_unknown"        // the same key settles it
	CodeShuttingDown   Code = "shutting_down"          // try another instance
	CodeAmountOverflow Code = "amount_overflow"        // a running total would pass 15 digits
	CodeInternal       Code = "internal"               // a fault of ours

	CodeHoldNotFound      Code = "hold_not_found"      // the tenant has none of that id
	CodeHoldResolved      Code = "hold_resolved"       // it has ended otherwise
	CodeEntryNotFound     Code = "entry_not_found"     // the tenant has none of that number
	CodeNotReversible     Code = "not_reversible"      // the entry used nothing
	CodeReversalTooLarge  Code = "reversal_too_large"  // more than is left of the entry
	CodeHoldsNotSupported Code = "holds_not_supported" // a leaky bucket only takes consume

	CodeTenantCreationLimited Code = "tenant_creation_limited" // the default plan makes no more tenants for now
)

// An Error is why a request got no decision.
type Error struct {
	Code       Code
	Faults     []Fault       // for CodeInvalidRequest and codes about one field
	RetryAfter time.Duration // when trying again may help; 0 if it will not
	Err        error         // what happened underneath, for logs; may be nil
}

// A Fault is one field that breaks a rule.
type Fault struct {
	Field string `json:"field"`  // as the caller wrote it: "charges[1].cost"
	Rule  string `json:"detail"` // "must be a whole number from 0 to 999999999999999"
}

// Error lists the code, the faults and the cause.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(string(e.Code))
	for i, f := range e.Faults {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		b.WriteString(f.Field + " " + f.Rule)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
