package api

import (
	"strconv"

	"github.com/quotad/quotad/internal/quota"
)

// The structured fields of draft-ietf-httpapi-ratelimit-headers-11, one member per limit
// that can deny: in the policy q is the quota and w the window in seconds; in RateLimit r
// is what remains and t the seconds until it is whole again. All that this project knows
// of the draft is in this file: the next one is a change here.

// draft11 appends both fields.
func (w *fieldWriter) draft11(limits []*quota.LimitResult) {
	for i, l := range limits {
		w.text = appendPolicy(w.text, i, l)
	}
	w.end(headerRateLimitPolicy)
	for i, l := range limits {
		w.text = appendState(w.text, i, l)
	}
	w.end(headerRateLimit)
}

// appendPolicy appends `"hourly";q=1000;w=3600`. Limit names need no escape.
func appendPolicy(b []byte, i int, l *quota.LimitResult) []byte {
	b = appendMember(b, i, l.Name)
	b = append(b, ";q="...)
	b = strconv.AppendInt(b, l.Limit, 10)
	if l.WindowMicros > 0 {
		b = append(b, ";w="...)
		b = strconv.AppendInt(b, (l.WindowMicros-1)/1_000_000+1, 10)
	}
	return b
}

// appendState appends `"hourly";r=42;t=17`.
func appendState(b []byte, i int, l *quota.LimitResult) []byte {
	b = appendMember(b, i, l.Name)
	b = append(b, ";r="...)
	b = strconv.AppendInt(b, l.Remaining, 10)
	if l.NeverResets {
		return b
	}
	b = append(b, ";t="...)
	return strconv.AppendInt(b, seconds(l.ResetMS), 10)
}

func appendMember(b []byte, i int, name string) []byte {
	if i > 0 {
		b = append(b, ", "...)
	}
	b = append(b, '"')
	b = append(b, name...)
	return append(b, '"')
}
