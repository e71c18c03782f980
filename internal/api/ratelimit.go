package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// Headers says which dialects of rate limit fields answers carry. The zero value is the
// fields of the newest draft, and X-RateLimit with resets in seconds from now.
type Headers struct {
	RateLimit  RateLimit
	XRateLimit XRateLimit
	OpenAI     bool // x-ratelimit-*-requests and -tokens, and Retry-After-Ms
}

// Validate reports a dialect that does not exist.
func (h Headers) Validate() error {
	if h.RateLimit != "" && !slices.Contains(RateLimits(), h.RateLimit) {
		return errors.New("headers: RateLimit must be draft-11, draft-7 or off")
	}
	if h.XRateLimit != "" && !slices.Contains(XRateLimits(), h.XRateLimit) {
		return errors.New("headers: XRateLimit must be delta, epoch or off")
	}
	return nil
}

// A RateLimit is a dialect of the fields RateLimit and RateLimit-Policy.
type RateLimit string

const (
	RateLimitDraft11 RateLimit = "draft-11"
	RateLimitDraft7  RateLimit = "draft-7" // what clients of before 2024 read
	RateLimitOff     RateLimit = "off"
)

// RateLimits returns every dialect.
func RateLimits() []RateLimit { return []RateLimit{RateLimitDraft11, RateLimitDraft7, RateLimitOff} }

const (
	headerRateLimitPolicy = "RateLimit-Policy"
	headerRateLimit       = "RateLimit"
)

// rateLimitMembersMax bounds the fields: proxies refuse long header blocks.
const rateLimitMembersMax = 16

// setRateLimit sets the fields of a decision; none if no limit of it can deny. Every
// value comes from the one decision that the body shows too. Each dialect appends its
// values to one text, which is cut once at the end: this is on the path of every
// decision, and one allocation is enough for all of them.
func (h Headers) setRateLimit(header http.Header, scratch []byte, d *quota.Decision) []byte {
	var buffer [rateLimitMembersMax]*quota.LimitResult
	limits := quoted(buffer[:0], d.Limits)
	if len(limits) == 0 {
		return scratch
	}
	w := fieldWriter{text: scratch[:0]}
	tight := slices.MinFunc(limits, tighter)
	switch h.RateLimit {
	case RateLimitDraft11, "":
		w.draft11(limits)
	case RateLimitDraft7:
		w.draft7(limits, tight)
	}
	switch h.XRateLimit {
	case XRateLimitDelta, "":
		w.xRateLimit(tight, seconds(tight.ResetMS))
	case XRateLimitEpoch:
		w.xRateLimit(tight, epochSeconds(d, tight.ResetMS))
	}
	if h.OpenAI {
		w.openAI(limits, d)
	}
	w.flush(header)
	return w.text
}

// fieldsMax is how many fields all dialects together can have.
const fieldsMax = 12

// A fieldWriter gathers header fields: their values in one text, and where each ends.
type fieldWriter struct {
	text  []byte
	names [fieldsMax]string
	ends  [fieldsMax]int
	size  int
}

// end ends the value of a field, which was appended to text.
func (w *fieldWriter) end(name string) {
	w.names[w.size], w.ends[w.size] = name, len(w.text)
	w.size++
}

// flush sets the fields. Names are spelled as every client's documentation spells them,
// not in the canonical form that Header.Set would make.
func (w *fieldWriter) flush(header http.Header) {
	text := string(w.text)
	values := make([]string, w.size)
	start := 0
	for i := range w.size {
		values[i] = text[start:w.ends[i]]
		header[w.names[i]] = values[i : i+1 : i+1]
		start = w.ends[i]
	}
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
// what has least left, then what takes longest to come back. One of concurrency counts
// holds: with one left any cost fits, for all it says, so it comes behind the others.
func tighter(a, b *quota.LimitResult) int {
	switch {
	case a.Violated != b.Violated:
		if a.Violated {
			return -1
		}
		return 1
	case placesLeft(a) != placesLeft(b):
		if placesLeft(b) {
			return -1
		}
		return 1
	case a.Remaining != b.Remaining:
		if a.Remaining < b.Remaining {
			return -1
		}
		return 1
	case a.NeverResets != b.NeverResets:
		if a.NeverResets {
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

// placesLeft reports whether l counts holds and admits another one.
func placesLeft(l *quota.LimitResult) bool {
	return l.Algorithm == catalog.Concurrency && l.Remaining > 0
}

// seconds rounds milliseconds up to whole seconds.
func seconds(ms int64) int64 {
	if ms <= 0 {
		return 0
	}
	return (ms-1)/1000 + 1
}

// epochSeconds is a wait as the second since 1970 at which it is over, rounded up, by
// the clock that waits are told from.
func epochSeconds(d *quota.Decision, ms int64) int64 {
	const microsPerSecond = 1_000_000
	return (d.ClockAt.UnixMicro() + ms*1000 + microsPerSecond - 1) / microsPerSecond
}

// retryAfterSeconds is what Retry-After says of a wait: whole seconds, rounded up so
// that nobody comes back early, and never 0.
func retryAfterSeconds(ms int64) int64 { return max(1, seconds(ms)) }

// appendSeconds appends a wait as Retry-After has it.
func appendSeconds(b []byte, wait time.Duration) []byte {
	ms := (wait-1)/time.Millisecond + 1
	return strconv.AppendInt(b, retryAfterSeconds(int64(ms)), 10)
}
