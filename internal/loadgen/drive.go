package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds of a run. A slip must not become an attack on the machine.
const (
	CallersMax   = 2_000
	PerSecondMax = 1_000_000
	TimeMax      = time.Hour
	// graceMax is how long after its time a run goes on sending what was due in it.
	graceMax = 5 * time.Second
	tellEach = 200 * time.Millisecond
)

// ErrNothing is returned by a run in whose measured time nothing was answered.
var ErrNothing = errors.New("no request was answered in the measured time")

// A Drive says how requests are made. The zero value is refused.
type Drive struct {
	Callers int           `json:"callers"`
	Warm    time.Duration `json:"warm"` // not measured
	Time    time.Duration `json:"time"` // measured, after Warm
	// PerSecond is the rate of an open loop, at random intervals, as the requests of many
	// independent clients come. 0 is a closed loop.
	PerSecond int `json:"per_second"`
	// Edge is called when the measured time begins and when it has ended; nil for none.
	Edge func() error `json:"-"`
	// Tell is called a few times a second with what was counted so far; nil for none.
	Tell func(elapsed time.Duration, c Counts) `json:"-"`
}

// Validate reports what is out of bounds.
func (d Drive) Validate() error {
	if d.Callers < 1 || d.Callers > CallersMax || d.Time <= 0 || d.Time > TimeMax || d.Warm < 0 || d.Warm > TimeMax ||
		d.PerSecond < 0 || d.PerSecond > PerSecondMax {
		return fmt.Errorf("a load needs 1 to %d callers, up to %d calls a second, a time of at most %s, and nothing negative",
			CallersMax, PerSecondMax, TimeMax)
	}
	return nil
}

// A Caller makes one call and waits for its answer. An error ends the run.
type Caller func(ctx context.Context) (Outcome, error)

// Run makes the callers first, so that all begin at once, and ends when each has got its
// last answer. When ctx ends first, or a call with an error, it returns that with what
// was measured until then.
func (d Drive) Run(ctx context.Context, prepare func(ctx context.Context, i int) (Caller, error)) (Measurement, error) {
	if err := d.Validate(); err != nil {
		return Measurement{}, err
	}
	group, ctx := errgroup.WithContext(ctx)
	callers := make([]Caller, d.Callers)
	for i := range callers {
		var err error
		if callers[i], err = prepare(ctx, i); err != nil {
			group.Go(func() error { return err })
			return Measurement{}, group.Wait()
		}
	}
	start := time.Now()
	r := &run{window: window{start.Add(d.Warm), start.Add(d.Warm + d.Time)}, recorder: newRecorder()}
	if d.PerSecond > 0 {
		r.schedule = newSchedule(d.PerSecond, start, r.until)
	}
	for _, call := range callers {
		group.Go(func() error {
			if r.schedule != nil {
				return r.open(ctx, call)
			}
			return r.closed(ctx, call)
		})
	}
	if d.Edge != nil {
		group.Go(func() error { return r.edges(ctx, d.Edge) })
	}
	done := make(chan struct{})
	var telling sync.WaitGroup
	if d.Tell != nil {
		telling.Go(func() { r.tell(start, done, d.Tell) })
	}
	err := group.Wait()
	until := r.until
	if now := time.Now(); err != nil && now.Before(until) {
		until = now
	}
	close(done)
	telling.Wait()
	m := r.measurement(r.from, until)
	if err == nil && m.Counts == (Counts{}) {
		err = ErrNothing
	}
	return m, err
}

// A window is the measured time.
type window struct{ from, until time.Time }

func (w window) holds(t time.Time) bool { return !t.Before(w.from) && t.Before(w.until) }

// A run is what its callers share.
type run struct {
	window
	*recorder
	schedule *schedule // nil in a closed loop
}

// closed sends a request after the other. A first answer that comes too late to be
// measured counts all the same: what stalls is slow, not absent.
func (r *run) closed(ctx context.Context, call Caller) error {
	measured := false
	for started := time.Now(); started.Before(r.until); {
		if err := ctx.Err(); err != nil {
			return err
		}
		outcome, err := call(ctx)
		if err != nil {
			r.stopped(ctx, outcome, time.Since(started))
			return err
		}
		ended := time.Now()
		counts := r.holds(ended) || !measured && !ended.Before(r.until)
		measured = measured || counts
		r.record(outcome, ended.Sub(started), ended, counts)
		started = ended
	}
	return nil
}

// open sends requests when they are due, and late where no caller was free.
func (r *run) open(ctx context.Context, call Caller) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sendUntil := r.until.Add(min(graceMax, r.until.Sub(r.from)))
	for {
		due, ok := r.schedule.next()
		if !ok {
			return nil
		}
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var outcome Outcome
		if err := ctx.Err(); err != nil {
			return err
		}
		sent := time.Now()
		if sent.After(sendUntil) {
			outcome = failed(notSent, 1, "the service is slower than the rate, or there are too few connections")
		} else {
			var err error
			if outcome, err = call(ctx); err != nil {
				r.stopped(ctx, outcome, time.Since(due))
				return err
			}
		}
		ended := time.Now()
		// One that was due before and is answered in the measured time counts, too: where
		// the rate is too high, nothing that is due in it may be answered at all.
		measured := r.holds(due) || r.holds(ended)
		r.record(outcome, ended.Sub(due), ended, measured)
		if measured && !sent.After(sendUntil) {
			r.recordLate(sent.Sub(due))
		}
	}
}

// edges calls for the begin and the end of the measured time.
func (r *run) edges(ctx context.Context, edge func() error) error {
	for _, at := range []time.Time{r.from, r.until} {
		timer := time.NewTimer(time.Until(at))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		if err := edge(); err != nil {
			return err
		}
	}
	return nil
}

// tell says now and then how far the run is.
func (r *run) tell(start time.Time, done <-chan struct{}, tell func(time.Duration, Counts)) {
	tick := time.NewTicker(tellEach)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case now := <-tick.C:
			tell(now.Sub(start), r.counted())
		}
	}
}

// A schedule hands out the instants of requests that arrive independently of each
// other, as those of many clients do.
type schedule struct {
	mu     sync.Mutex
	at     time.Time
	until  time.Time
	mean   time.Duration
	random *rand.Rand
}

func newSchedule(perSecond int, start, until time.Time) *schedule {
	return &schedule{
		at: start, until: until, mean: time.Second / time.Duration(perSecond),
		random: rand.New(rand.NewPCG(1, uint64(perSecond))),
	}
}

func (s *schedule) next() (due time.Time, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = s.at
	s.at = due.Add(time.Duration(float64(s.mean) * s.random.ExpFloat64()))
	return due, due.Before(s.until)
}
