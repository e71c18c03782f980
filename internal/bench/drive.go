package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// callersMax bounds the workers of a run. A slip must not become an attack on the
// machine.
const callersMax = 2_000

// A drive says how requests are made. The zero value is refused.
type drive struct {
	Callers int           `json:"callers"`
	Warm    time.Duration `json:"warm"` // not measured
	Time    time.Duration `json:"time"` // measured, after Warm
	// PerSecond sends requests when they are due, whether or not earlier ones are
	// answered, and counts a request's time from the instant it was due. 0: a caller
	// sends its next request when it has the answer to the last.
	PerSecond int   `json:"per_second"`
	Watch     watch `json:"watch"`
}

func (d drive) validate() error {
	if d.Callers < 1 || d.Callers > callersMax || d.Time <= 0 || d.Warm < 0 || d.PerSecond < 0 {
		return fmt.Errorf("a drive needs 1 to %d callers, a time, and nothing negative", callersMax)
	}
	return nil
}

// A measurement is what came of one run.
type measurement struct {
	PerSecond float64       `json:"per_second"` // answers in the measured time
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	Allowed   int64         `json:"allowed"`  // in the whole run
	Measured  int64         `json:"measured"` // answers in the measured time
	CPU       cpuTimes      `json:"cpu"`      // in the measured time
	// LateP99 is how late a request was sent though a caller was free: what the client
	// itself adds to the times of a run with PerSecond.
	LateP99 time.Duration `json:"late_p99_ns"`
}

// A caller makes one request and waits for its answer; allowed says what it was. Any
// answer that is neither allowed nor denied, or not what was asked, is an error.
type caller func(ctx context.Context) (allowed bool, err error)

// run makes the callers first, so that all begin at once, and ends when each has got
// its last answer.
func (d drive) run(ctx context.Context, prepare func(ctx context.Context, i int) (caller, error)) (measurement, error) {
	if err := d.validate(); err != nil {
		return measurement{}, err
	}
	callers := make([]caller, d.Callers)
	for i := range callers {
		var err error
		if callers[i], err = prepare(ctx, i); err != nil {
			return measurement{}, err
		}
	}
	start := time.Now()
	w := window{from: start.Add(d.Warm), until: start.Add(d.Warm + d.Time)}
	var due *schedule
	if d.PerSecond > 0 {
		due = newSchedule(d, start)
	}
	logs := make([]callLog, d.Callers)
	group, ctx := errgroup.WithContext(ctx)
	for i, call := range callers {
		group.Go(func() error {
			if due != nil {
				return logs[i].open(ctx, call, w, due)
			}
			return logs[i].closed(ctx, call, w)
		})
	}
	var used cpuTimes
	group.Go(func() (err error) {
		used, err = d.Watch.during(ctx, w)
		return err
	})
	if err := group.Wait(); err != nil {
		return measurement{}, err
	}
	m, err := sum(logs, w)
	m.CPU = used
	return m, err
}

// A window is the measured time.
type window struct{ from, until time.Time }

func (w window) holds(t time.Time) bool { return !t.Before(w.from) && t.Before(w.until) }

// A callLog is what one caller saw.
type callLog struct {
	took    []time.Duration // of the measured requests
	late    []time.Duration
	last    time.Time // when the last measured one was answered
	allowed int64
}

// closed sends a request after the other. A first answer that comes too late to be
// measured counts all the same: what stalls is slow, not absent.
func (l *callLog) closed(ctx context.Context, call caller, w window) error {
	for started := time.Now(); started.Before(w.until); {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := l.call(ctx, call); err != nil {
			return err
		}
		ended := time.Now()
		if w.holds(ended) || len(l.took) == 0 && !ended.Before(w.until) {
			l.took, l.last = append(l.took, ended.Sub(started)), ended
		}
		started = ended
	}
	return nil
}

// open sends requests when they are due.
func (l *callLog) open(ctx context.Context, call caller, w window, s *schedule) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, ok := s.next()
		if !ok {
			return nil
		}
		wait := time.Until(due)
		if wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
			l.late = append(l.late, time.Since(due))
		}
		if err := l.call(ctx, call); err != nil {
			return err
		}
		if w.holds(due) {
			l.took = append(l.took, time.Since(due))
		}
	}
}

func (l *callLog) call(ctx context.Context, call caller) error {
	allowed, err := call(ctx)
	if allowed {
		l.allowed++
	}
	return err
}

// A schedule hands out the instants of requests that arrive independently of each
// other, as those of many clients do.
type schedule struct {
	due   []time.Time
	taken atomic.Int64
}

func newSchedule(d drive, start time.Time) *schedule {
	s := new(schedule)
	random := rand.New(rand.NewPCG(1, uint64(d.PerSecond)))
	mean := float64(time.Second) / float64(d.PerSecond)
	for _, part := range []window{{start, start.Add(d.Warm)}, {start.Add(d.Warm), start.Add(d.Warm + d.Time)}} {
		for at := part.from; at.Before(part.until); at = at.Add(time.Duration(mean * random.ExpFloat64())) {
			s.due = append(s.due, at)
		}
	}
	return s
}

func (s *schedule) next() (due time.Time, ok bool) {
	i := s.taken.Add(1) - 1
	if i >= int64(len(s.due)) {
		return time.Time{}, false
	}
	return s.due[i], true
}

// sum makes a measurement of what all callers saw.
func sum(logs []callLog, w window) (measurement, error) {
	var m measurement
	var took, late []time.Duration
	until := w.until
	for i := range logs {
		if logs[i].last.After(until) {
			until = logs[i].last
		}
		took, late = append(took, logs[i].took...), append(late, logs[i].late...)
		m.Allowed += logs[i].allowed
	}
	if len(took) == 0 {
		return m, errors.New("no request was answered in the measured time")
	}
	m.Measured = int64(len(took))
	m.PerSecond = float64(len(took)) / until.Sub(w.from).Seconds()
	m.P50, m.P99, m.LateP99 = quantile(took, 500), quantile(took, 990), quantile(late, 990)
	return m, nil
}

// quantile returns what a share of the values is at most, in thousandths; 0 without any.
func quantile[T cmp.Ordered](values []T, permille int) T {
	var none T
	if len(values) == 0 {
		return none
	}
	slices.Sort(values)
	return values[min(len(values)-1, len(values)*permille/1000)]
}
