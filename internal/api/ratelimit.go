package api

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// The header dialect is here and nowhere else: the structured fields RateLimit-Policy
// and RateLimit of draft-ietf-httpapi-ratelimit-headers, one member per limit that
// can deny, and the older X-RateLimit trio for the tightest of them. Every value
// comes from the one decision that the body shows too.

// rateLimitMembersMax bounds the fields: proxies refuse long header blocks.
const rateLimitMembersMax = 16

// Spelled as the draft and every client's documentation spell them, not in the
// canonical form that Header.Set would make.
const (
	headerRateLimitPolicy = "RateLimit-Policy"
	headerRateLimit       = "RateLimit"
	headerXLimit          = "X-RateLimit-Limit"
	headerXRemaining      = "X-RateLimit-Remaining"
	headerXReset          = "X-RateLimit-Reset"
)

// setRateLimit sets the fields of a decision; none if no limit of it can deny.
func setRateLimit(header http.Header, scratch []byte, d *quota.Decision, withX bool) []byte {
	var buffer [rateLimitMembersMax]*quota.LimitResult
	limits := quoted(buffer[:0], d.Limits)
	if len(limits) == 0 {
		return scratch
	}
	// One string and one slice hold all values: this is on the path of every decision.
	b := scratch[:0]
	for i, l := range limits {
		b = appendPolicy(b, i, l)
	}
	policyEnd := len(b)
	for i, l := range limits {
		b = appendState(b, i, l)
	}
	stateEnd := len(b)
	tight := slices.MinFunc(limits, tighter)
	b = strconv.AppendInt(b, tight.Limit, 10)
	limitEnd := len(b)
	b = strconv.AppendInt(b, tight.Remaining, 10)
	remainingEnd := len(b)
	b = strconv.AppendInt(b, seconds(tight.ResetMS), 10)

	text := string(b)
	values := []string{
		text[:policyEnd], text[policyEnd:stateEnd],
		text[stateEnd:limitEnd], text[limitEnd:remainingEnd], text[remainingEnd:],
	}
	header[headerRateLimitPolicy] = values[0:1:1]
	header[headerRateLimit] = values[1:2:2]
	if withX {
		header[headerXLimit] = values[2:3:3]
		header[headerXRemaining] = values[3:4:4]
		if !tight.NeverResets {
			header[headerXReset] = values[4:5:5]
		}
	}
	return b
}

// quoted appends the limits that can deny, in the plan's order: the tightest ones,
// if there are more than the fields may hold.
func quoted(to []*quota.LimitResult, limits []quota.LimitResult) []*quota.LimitResult {
	for i := range limits {
		if l := &limits[i]; l.Mode == catalog.ModeEnforce && !l.Unlimited {
			to = append(to, l)
		}
	}
	if len(to) <= rateLimitMembersMax {
		return to
	}
	kept := slices.Clone(to)
	slices.SortStableFunc(kept, tighter)
	kept = kept[:rateLimitMembersMax]
	return slices.DeleteFunc(to, func(l *quota.LimitResult) bool { return !slices.Contains(kept, l) })
}

// tighter orders limits by what a caller should heed first: what denied it, then
// what has least left, then what takes longest to come back.
func tighter(a, b *quota.LimitResult) int {
	switch {
	case a.Violated != b.Violated:
		if a.Violated {
			return -1
		}
		return 1
	case a.Remaining != b.Remaining:
		if a.Remaining < b.Remaining {
			return -1
		}
		return 1
	case a.ResetMS != b.ResetMS:
		if a.ResetMS > b.ResetMS {
			return -1
		}
		return 1
	}
	return 0
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

// seconds rounds milliseconds up to whole seconds.
func seconds(ms int64) int64 {
	if ms <= 0 {
		return 0
	}
	return (ms-1)/1000 + 1
}

// retryAfterSeconds is what Retry-After says of a wait: whole seconds, rounded up so
// that nobody comes back early, and never 0.
func retryAfterSeconds(ms int64) int64 { return max(1, seconds(ms)) }

// appendSeconds appends a wait as Retry-After has it.
func appendSeconds(b []byte, wait time.Duration) []byte {
	ms := (wait-1)/time.Millisecond + 1
	return strconv.AppendInt(b, retryAfterSeconds(int64(ms)), 10)
}
