package api

import (
	"encoding/json"
	"net/http"

	"github.com/quotad/quotad/internal/quota"
)

// degradedHeader marks an answer that was given while the database was away, with the
// on_error that gave it.
const degradedHeader = "Quotad-Degraded"

// markDegraded marks a degraded answer. It gets no RateLimit fields: nobody knows how the
// limits stand.
func markDegraded(header http.Header, d *quota.Decision) {
	header[degradedHeader] = []string{string(d.DegradedBy())}
}

// appendDegraded appends the members that only a degraded decision has.
func appendDegraded(b []byte, d *quota.Decision) []byte {
	if !d.Degraded {
		return b
	}
	b = append(b, `,"degraded":true`...)
	if len(d.DegradedLimits) == 0 {
		return b
	}
	text, err := json.Marshal(d.DegradedLimits)
	if err != nil { // a struct of strings and integers
		panic(err)
	}
	return append(append(b, `,"degraded_limits":`...), text...)
}
