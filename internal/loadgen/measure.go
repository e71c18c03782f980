package loadgen

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histograms tell microseconds up to a minute, in three digits.
const (
	tookMax    = time.Minute
	tookDigits = 3
)

// kindsMax bounds the kinds of failures that are told apart.
const kindsMax = 32

// notSent is the kind of what was due in an open loop and could not be sent in time.
const notSent = "not sent"

// Counts are decisions, and requests that got none.
type Counts struct {
	Allowed int64 `json:"allowed"`
	Denied  int64 `json:"denied"`
	Failed  int64 `json:"failed"`
}

// Decisions are those that are allowed or denied.
func (c Counts) Decisions() int64 { return c.Allowed + c.Denied }

func (c *Counts) add(other Counts) {
	c.Allowed += other.Allowed
	c.Denied += other.Denied
	c.Failed += other.Failed
}

// An Outcome is what one call came to. A batch has several.
type Outcome struct {
	Counts
	Failures []Failure // as many as have failed
}

// A Failure is what went wrong so often.
type Failure struct {
	Kind    string `json:"kind"`
	Count   int64  `json:"count"`
	Example string `json:"example"`
}

func failed(kind string, count int64, example string) Outcome {
	return Outcome{Counts: Counts{Failed: count}, Failures: []Failure{{kind, count, example}}}
}

// A Measurement is what came of a run.
type Measurement struct {
	PerSecond float64       `json:"per_second"` // decisions
	P50       time.Duration `json:"p50_ns"`     // of calls in which something was decided
	P90       time.Duration `json:"p90_ns"`
	P99       time.Duration `json:"p99_ns"`
	P999      time.Duration `json:"p999_ns"`
	Max       time.Duration `json:"max_ns"`
	// LateP99 is how late a request was sent in an open loop, since the client was late or no
	// caller was free: the part of the times that is not the service's, unless it stalled.
	LateP99  time.Duration `json:"late_p99_ns"`
	Unended  Unended       `json:"unended"`
	Time     time.Duration `json:"time_ns"` // that was measured
	Counts   Counts        `json:"counts"`  // in that time
	Total    Counts        `json:"total"`   // in the whole run
	Failures []Failure     `json:"failures,omitempty"`
}

// Unended are calls without an answer when a run was stopped. They are in no other figure.
type Unended struct {
	Calls  int64         `json:"calls"`
	Oldest time.Duration `json:"oldest_ns"` // how long its answer was awaited
}

// A recorder keeps what all callers saw.
type recorder struct {
	mu         sync.Mutex
	took, late *hdrhistogram.Histogram
	all        Counts
	measured   Counts
	failures   map[string]*Failure
	unended    Unended
	last       time.Time // when the last measured call ended
}

func newRecorder() *recorder {
	histogram := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, tookMax.Microseconds(), tookDigits) }
	return &recorder{took: histogram(), late: histogram(), failures: make(map[string]*Failure)}
}

func (r *recorder) record(o Outcome, took time.Duration, ended time.Time, measured bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all.add(o.Counts)
	for _, f := range o.Failures {
		r.fail(f)
	}
	if !measured {
		return
	}
	r.measured.add(o.Counts)
	if ended.After(r.last) {
		r.last = ended
	}
	if o.Decisions() > 0 {
		keep(r.took, took)
	}
}

func (r *recorder) fail(f Failure) {
	have := r.failures[f.Kind]
	if have == nil && len(r.failures) == kindsMax {
		f.Kind = "other"
		have = r.failures[f.Kind]
	}
	if have == nil {
		have = &Failure{Kind: f.Kind, Example: f.Example}
		r.failures[f.Kind] = have
	}
	have.Count += f.Count
}

// stopped counts a call that the end of ctx interrupted, unless it had failed before.
func (r *recorder) stopped(ctx context.Context, o Outcome, waited time.Duration) {
	if ctx.Err() == nil || o.Failed > 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.unended.Calls++
	r.unended.Oldest = max(r.unended.Oldest, waited)
}

func (r *recorder) recordLate(late time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keep(r.late, late)
}

func (r *recorder) counted() Counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all
}

// measurement sums up a run that was measured from an instant until another, or until
// its last answer where that came later.
func (r *recorder) measurement(from, until time.Time) Measurement {
	if r.last.After(until) {
		until = r.last
	}
	m := Measurement{
		P50: quantile(r.took, 50), P90: quantile(r.took, 90), P99: quantile(r.took, 99), P999: quantile(r.took, 99.9),
		Max: time.Duration(r.took.Max()) * time.Microsecond, LateP99: quantile(r.late, 99),
		Time: max(0, until.Sub(from)), Unended: r.unended, Counts: r.measured, Total: r.all,
	}
	if m.Time > 0 {
		m.PerSecond = float64(m.Counts.Decisions()) / m.Time.Seconds()
	}
	for _, f := range slices.Collect(maps.Values(r.failures)) {
		m.Failures = append(m.Failures, *f)
	}
	slices.SortFunc(m.Failures, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Kind, b.Kind))
	})
	return m
}

// keep records a time; one beyond the histogram's end is at its end.
func keep(h *hdrhistogram.Histogram, took time.Duration) {
	_ = h.RecordValue(min(max(0, took), tookMax).Microseconds())
}

func quantile(h *hdrhistogram.Histogram, percent float64) time.Duration {
	return time.Duration(h.ValueAtPercentile(percent)) * time.Microsecond
}
