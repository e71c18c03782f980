package api

import (
	"slices"
	"strconv"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// The fields that OpenAI's API and its clients use: one trio for requests and one for
// tokens, resets as durations. A limit is one of tokens if its meter's unit is "token",
// and one of requests otherwise, as one of concurrency is, which counts holds; each trio is
// that of the tightest limit of its kind.
// Their clients read Retry-After-Ms before Retry-After.
const (
	headerRetryAfterMS = "Retry-After-Ms"
	unitToken          = "token"
)

var (
	openAIRequests = [3]string{"x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"}
	openAITokens   = [3]string{"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"}
)

// openAI appends both trios, as far as there are limits of the kind, and the wait of a
// denial.
func (w *fieldWriter) openAI(limits []*quota.LimitResult, d *quota.Decision) {
	var requests, tokens []*quota.LimitResult
	for _, l := range limits {
		if l.Unit == unitToken && l.Algorithm != catalog.Concurrency {
			tokens = append(tokens, l)
		} else {
			requests = append(requests, l)
		}
	}
	w.openAITrio(openAIRequests, requests)
	w.openAITrio(openAITokens, tokens)
	if d.RetryMS != nil {
		w.text = strconv.AppendInt(w.text, *d.RetryMS, 10)
		w.end(headerRetryAfterMS)
	}
}

func (w *fieldWriter) openAITrio(names [3]string, limits []*quota.LimitResult) {
	if len(limits) == 0 {
		return
	}
	tight := slices.MinFunc(limits, tighter)
	w.text = strconv.AppendInt(w.text, tight.Limit, 10)
	w.end(names[0])
	w.text = strconv.AppendInt(w.text, tight.Remaining, 10)
	w.end(names[1])
	if !tight.NeverResets {
		w.text = appendDuration(w.text, tight.ResetMS)
		w.end(names[2])
	}
}

// appendDuration appends milliseconds as [time.Duration] writes them. Resets go up to
// the year 9999 and its own range ends after 292 years, so the hours are counted apart.
func appendDuration(b []byte, ms int64) []byte {
	const hourMS = int64(time.Hour / time.Millisecond)
	hours, rest := ms/hourMS, ms%hourMS
	if hours == 0 {
		return append(b, (time.Duration(rest) * time.Millisecond).String()...)
	}
	withOne := (time.Duration(hourMS+rest) * time.Millisecond).String() // "1h..."
	return append(strconv.AppendInt(b, hours, 10), withOne[1:]...)
}
