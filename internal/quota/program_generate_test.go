package quota_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// A program is what its seed says, less what was left out to make it short.
type program struct {
	seed    uint64
	steps   []uint64 // a seed each, so that leaving one out changes no other
	without map[string]bool
}

const stepsMax = 30 // of a program

func newProgram(seed uint64) program {
	random := rand.New(rand.NewPCG(seed, 0))
	p := program{seed: seed, without: map[string]bool{}}
	for range 8 + random.IntN(stepsMax-8) {
		p.steps = append(p.steps, random.Uint64())
	}
	return p
}

// firstClock is where programs begin: behind it, months end and clocks change in Europe
// and America.
var firstClock = time.Date(2026, 2, 20, 0, 0, 0, 0, time.UTC)

// setting is what a program begins with.
type setting struct {
	clock   int64
	zone    string
	anchor  int
	meters  []string
	limits  []*limit
	tenants int
}

var zones = []string{"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"}

func (p program) setting() setting {
	random := rand.New(rand.NewPCG(p.seed, 1))
	s := setting{
		clock:   firstClock.UnixMicro() + random.Int64N(int64(35*24*time.Hour/time.Microsecond)),
		zone:    pick(random, zones...),
		anchor:  pick(random, 1, 1, 15, 28, 31),
		meters:  []string{pick(random, "calls", "calls.charged"), pick(random, "tokens", "tokens.charged")},
		tenants: 1 + random.IntN(2),
	}
	if random.IntN(3) == 0 { // at whole seconds, edges meet
		s.clock -= s.clock % 1_000_000
	}
	for i := range 1 + random.IntN(4) {
		if l := newLimit(random, fmt.Sprintf("limit%d", i), s.meters); !p.without[l.name] {
			s.limits = append(s.limits, l)
		}
	}
	return s
}

// pick returns one of the choices; repeated ones are more likely.
func pick[T any](random *rand.Rand, choices ...T) T { return choices[random.IntN(len(choices))] }

func newLimit(random *rand.Rand, name string, meters []string) *limit {
	l := &limit{
		name: name, meter: pick(random, meters...), algorithm: pick(random, append(catalog.Algorithms(), catalog.SlidingLog, catalog.SlidingLog)...), // which has the most ways to wait
		size: pick[int64](random, 0, 1, 2, 3, 5, 5, 8, 8, 10, 10, 15, 20), bySubject: random.IntN(4) == 0,
		mode: pick(random, catalog.ModeEnforce, catalog.ModeEnforce, catalog.ModeEnforce, catalog.ModeEnforce,
			catalog.ModeEnforce, catalog.ModeEnforce, catalog.ModeShadow, catalog.ModeShadow, catalog.ModeOff),
	}
	l.setWindow(random)
	return l
}

// setWindow gives a limit the window or the rate that its algorithm needs.
func (l *limit) setWindow(random *rand.Rand) {
	l.unlimited, l.window, l.calendar, l.units, l.per = false, 0, "", 0, 0
	switch l.algorithm {
	case catalog.TokenBucket, catalog.GCRA, catalog.LeakyBucket:
		l.units = pick[int64](random, 1, 1, 2, 3, 7, 7, 11, 1000)
		l.per = pick(random, 3*micros(time.Microsecond), micros(time.Second), micros(7*time.Second), micros(time.Minute), micros(time.Hour))
		if random.IntN(25) == 0 {
			l.units = 0
		}
	case catalog.Concurrency:
		l.size = min(l.size, 3)
		l.unlimited = random.IntN(10) == 0
	default:
		l.unlimited = random.IntN(10) == 0
		l.window = pick(random, 7_001, micros(time.Second), micros(7*time.Second), micros(time.Minute), micros(time.Minute), micros(90*time.Minute), micros(24*time.Hour))
		if l.algorithm == catalog.FixedWindow && random.IntN(2) == 0 {
			l.window = 0
			l.calendar = pick(random, catalog.CalendarHour, catalog.CalendarDay, catalog.CalendarDay, catalog.CalendarWeek, catalog.CalendarMonth, catalog.CalendarYear)
		}
	}
	if l.unlimited {
		l.size = 0
	}
}

func micros(d time.Duration) int64 { return d.Microseconds() }

// nextPlan changes a plan a little.
func nextPlan(random *rand.Rand, plan []*limit, meters []string) []*limit {
	var next []*limit
	for _, l := range plan {
		changed := *l
		next = append(next, &changed)
	}
	if len(next) == 0 || random.IntN(6) == 0 {
		l := newLimit(random, fmt.Sprintf("limit%d", random.IntN(6)), meters) // a name may come back
		if !slices.ContainsFunc(next, func(have *limit) bool { return have.name == l.name }) {
			next = append(next, l)
		}
		return next
	}
	i := random.IntN(len(next))
	l := next[i]
	switch random.IntN(8) {
	case 0:
		return slices.Delete(next, i, i+1)
	case 1:
		l.algorithm = pick(random, catalog.Algorithms()...)
		l.setWindow(random)
	case 2:
		l.setWindow(random)
	case 3:
		l.mode = pick(random, catalog.ModeEnforce, catalog.ModeShadow, catalog.ModeOff)
	case 4:
		l.bySubject = !l.bySubject
	default:
		if !l.unlimited {
			l.size = pick[int64](random, 0, 1, 2, 3)
			if l.algorithm != catalog.Concurrency {
				l.size = pick(random, l.size, l.size+2, 6, 9, 12, 30)
			}
		}
	}
	return next
}
