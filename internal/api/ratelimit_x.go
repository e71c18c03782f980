package api

import (
	"strconv"

	"github.com/quotad/quotad/internal/quota"
)

// The X-RateLimit trio, of which no standard says whether a reset is a time or a span:
// both are found in the field.
const (
	headerXLimit     = "X-RateLimit-Limit"
	headerXRemaining = "X-RateLimit-Remaining"
	headerXReset     = "X-RateLimit-Reset"
)

// An XRateLimit is a dialect of the X-RateLimit fields.
type XRateLimit string

const (
	XRateLimitDelta XRateLimit = "delta" // resets are seconds from now
	XRateLimitEpoch XRateLimit = "epoch" // resets are seconds since 1970, as GitHub has them
	XRateLimitOff   XRateLimit = "off"   // no such fields
)

// XRateLimits returns every dialect.
func XRateLimits() []XRateLimit {
	return []XRateLimit{XRateLimitDelta, XRateLimitEpoch, XRateLimitOff}
}

// xRateLimit appends the trio of the tightest limit. One that never resets says no reset.
func (w *fieldWriter) xRateLimit(tight *quota.LimitResult, reset int64) {
	w.text = strconv.AppendInt(w.text, tight.Limit, 10)
	w.end(headerXLimit)
	w.text = strconv.AppendInt(w.text, tight.Remaining, 10)
	w.end(headerXRemaining)
	if !tight.NeverResets {
		w.text = strconv.AppendInt(w.text, reset, 10)
		w.end(headerXReset)
	}
}
