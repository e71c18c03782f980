package api

import (
	"fmt"
	"strconv"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// A denial is a problem of the type that draft-ietf-httpapi-ratelimit-headers
// registers, with the whole decision beside it. RFC 9457 fixes the title to the type;
// code and detail say what it was this time.
const (
	quotaExceededType  = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	quotaExceededTitle = "Request cannot be satisfied as assigned quota has been exceeded"
)

// denialHead is what every denial begins with.
const denialHead = `{"type":"` + quotaExceededType + `","title":"` + quotaExceededTitle + `","status":429,"code":`

// appendDenial appends the problem: its own members, then those of the decision.
func appendDenial(b []byte, d *quota.Decision) []byte {
	b = appendText(append(b, denialHead...), string(d.Reason))
	b = appendText(append(b, `,"detail":`...), denialDetail(d))
	b = append(b, `,"violated-policies":[`...)
	first := true
	for i := range d.Limits {
		if !d.Limits[i].Violated {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendText(b, d.Limits[i].Name)
	}
	for i := range d.DegradedLimits {
		if !d.DegradedLimits[i].Violated {
			continue
		}
		if !first {
			b = append(b, ',')
		}
		first = false
		b = appendText(b, d.DegradedLimits[i].Name)
	}
	b = append(b, `],`...)
	brace := len(b)
	b = appendDecision(b, d)
	// The decision is an object of its own: drop its opening brace.
	return append(b[:brace], b[brace+1:]...)
}

// denialDetail is a sentence or two for the customer who was just denied.
func denialDetail(d *quota.Decision) string {
	l := worst(d)
	switch {
	case d.Reason == quota.ReasonTenantSuspended:
		return fmt.Sprintf("Tenant %q is suspended or closed and may use nothing.", d.Tenant)
	case d.Reason == quota.ReasonMeterNotInPlan:
		return "The tenant's plan has no limit on " + meterNotInPlan(d) + ", so nothing of it may be used."
	case d.Reason == quota.ReasonTooManyHolds:
		return fmt.Sprintf("The tenant has %d open holds, which is as many as it may have: settle or release some.", quota.HoldsOpenMax) +
			tryAgain(d)
	case d.Degraded:
		return "The database is away, and this instance's share of the limit is used up."
	case l == nil:
		return "The request does not fit the tenant's quota."
	case d.Reason == quota.ReasonBlocked:
		return fmt.Sprintf("Limit %q on %s admits nothing: its limit or its rate is 0.", l.Name, l.Meter)
	case d.Reason == quota.ReasonCostExceedsLimit:
		return fmt.Sprintf("Limit %q on %s is %d, so a request for %d can never fit.",
			l.Name, l.Meter, l.Limit, asked(d, l.Meter))
	}
	what := "request"
	switch {
	case l.Algorithm == catalog.Concurrency: // counts holds, whatever they are of
		return fmt.Sprintf("Limit %q on %s is %d: %s.", l.Name, l.Meter, l.Limit, openText(l.Used)) + tryAgain(d)
	case d.Kind == ledger.KindHold:
		what = "hold"
	}
	return fmt.Sprintf("Limit %q on %s is %d: %s, and this %s asks for %d more.",
		l.Name, l.Meter, l.Limit, usedText(l), what, asked(d, l.Meter)) + tryAgain(d)
}

// tryAgain is the sentence that says when to, if waiting helps.
func tryAgain(d *quota.Decision) string {
	if d.RetryMS == nil {
		return ""
	}
	wait := time.Duration(retryAfterSeconds(*d.RetryMS)) * time.Second
	return " Try again in " + wait.String() + "."
}

// openText reads "50 holds are open".
func openText(holds int64) string {
	if holds == 1 {
		return "1 hold is open"
	}
	return strconv.FormatInt(holds, 10) + " holds are open"
}

// worst returns the violated limit that takes longest to pass; nil if none is violated.
func worst(d *quota.Decision) *quota.LimitResult {
	var found *quota.LimitResult
	for i := range d.Limits {
		l := &d.Limits[i]
		if l.Violated && (found == nil || waitsLonger(l, found)) {
			found = l
		}
	}
	return found
}

// waitsLonger reports whether a passes later than b; no wait at all means never.
func waitsLonger(a, b *quota.LimitResult) bool {
	switch {
	case b.RetryMS == nil:
		return false
	case a.RetryMS == nil:
		return true
	}
	return *a.RetryMS > *b.RetryMS
}

// usedText reads "998 are used", or "990 are used and 8 held".
func usedText(l *quota.LimitResult) string {
	text := strconv.FormatInt(l.Used, 10) + " are used"
	if l.Used == 1 {
		text = "1 is used"
	}
	if l.Held > 0 {
		text += " and " + strconv.FormatInt(l.Held, 10) + " held"
	}
	return text
}

// asked is what the request would have spent on a meter.
func asked(d *quota.Decision, meter string) int64 {
	for _, charge := range d.Charges {
		if charge.Meter == meter {
			return charge.Cost
		}
	}
	return 0
}

// meterNotInPlan names the charged meters that no limit of the decision is on.
func meterNotInPlan(d *quota.Decision) string {
	for _, charge := range d.Charges {
		named := false
		for i := range d.Limits {
			named = named || d.Limits[i].Meter == charge.Meter
		}
		if !named {
			return charge.Meter
		}
	}
	return "this meter"
}
