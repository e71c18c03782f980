package api

import (
	"strconv"

	"github.com/quotad/quotad/internal/quota"
)

// The fields of draft-ietf-httpapi-ratelimit-headers-07, which many clients still read
// and which the later drafts gave another form: one limit alone, the tightest, and the
// policies without names.

// draft7 appends both fields. The reset is required in RateLimit, so where none ever comes
// the field is left out: a reset of 0 would have callers come back at once, for ever.
func (w *fieldWriter) draft7(limits []*quota.LimitResult, tight *quota.LimitResult) {
	for i, l := range limits {
		if i > 0 {
			w.text = append(w.text, ", "...)
		}
		w.text = strconv.AppendInt(w.text, l.Limit, 10)
		if l.WindowMicros > 0 {
			w.text = append(w.text, ";w="...)
			w.text = strconv.AppendInt(w.text, (l.WindowMicros-1)/1_000_000+1, 10)
		}
	}
	w.end(headerRateLimitPolicy)
	if tight.NeverResets {
		return
	}
	w.text = strconv.AppendInt(append(w.text, "limit="...), tight.Limit, 10)
	w.text = strconv.AppendInt(append(w.text, ", remaining="...), tight.Remaining, 10)
	w.text = strconv.AppendInt(append(w.text, ", reset="...), seconds(tight.ResetMS), 10)
	w.end(headerRateLimit)
}
