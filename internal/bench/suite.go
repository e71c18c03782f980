package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/quotad/quotad/internal/loadgen"
)

// A suite is all subjects and what is said about them.
type suite struct {
	command     *runCmd
	closed      []*subject // measured first: as fast as answers come
	open        []*subject // measured last: at half of the peak
	comparisons []comparison
	peak        []*subject // the greatest of these is the peak
	paced       *subject
}

// A comparison is a ratio to print.
type comparison struct {
	of, with *subject
	ratio    func(of, with measurement) float64
	target   float64 // 0: none
	atMost   bool    // the target is an upper bound
}

func rates(of, with measurement) float64 { return of.PerSecond / with.PerSecond }

// medians compares usual times.
func medians(of, with measurement) float64 { return float64(of.P50) / float64(with.P50) }

// tails compares the time that one answer in a hundred exceeds with a usual commit.
func tails(of, with measurement) float64 { return float64(of.P99) / float64(with.P50) }

const (
	batchItems = 100
	// batchCallers have as many requests under way as an instance lets wait.
	batchCallers = 16
)

// newSuite lists what is measured, in the order of a round, with the targets.
func newSuite(c *runCmd) *suite {
	s := &suite{command: c}
	few, many := c.Connections[0], c.Connections[1]
	spread, one := fmt.Sprintf("%s tenants", grouped(float64(c.Tenants))), "one hot tenant"
	names, hot := tenantNames(c.Tenants), tenantNames(0)

	spreadFew := s.http(spread, asked{names: names, connections: few})
	plainFew := s.plain(few)
	rowsSpread := s.transactions(spread, names, true)
	stepsSpread := s.transactions(spread, names, false)
	hotFew := s.http(one, asked{names: hot, connections: few})
	rowsHot := s.transactions(one, hot, true)
	stepsHot := s.transactions(one, hot, false)
	spreadMany := s.http(spread, asked{names: names, connections: many})
	plainMany := s.plain(many)
	hotMany := s.http(one, asked{names: hot, connections: many})
	batches := s.http(fmt.Sprintf("%s, batches of %d", spread, batchItems), asked{names: names, connections: min(few, batchCallers), batch: batchItems})
	denials := s.http("an exhausted tenant", asked{names: []string{exhaustedTenant}, connections: few, needs: needsExhausted, reads: true})
	s.comparisons = []comparison{
		{spreadFew, plainFew, rates, 0.33, false},
		{spreadMany, plainMany, rates, 0.40, false},
		{hotFew, plainFew, rates, 0.50, false},
		{hotMany, plainMany, rates, 0, false},
		{batches, spreadFew, rates, 6, false},
		{denials, plainFew, rates, 0.70, false},
		{spreadFew, rowsSpread, rates, 1.9, false},
		{spreadFew, stepsSpread, rates, 0, false},
		{hotFew, rowsHot, rates, 18, false},
		{hotFew, stepsHot, rates, 0, false},
	}
	if c.Full {
		s.instances(spreadFew, hotFew)
		s.entries()
	}
	for _, callers := range c.Callers {
		s.inProcess(spread, names, callers)
		s.inProcess(one, hot, callers)
	}
	s.paceAt(many, spreadFew, spreadMany)
	return s
}

// instances are several on one database, beside one.
func (s *suite) instances(spread, hot *subject) {
	for _, c := range []struct {
		one    *subject
		who    string
		names  []string
		target float64
	}{
		{spread, fmt.Sprintf("%s tenants", grouped(float64(s.command.Tenants))), tenantNames(s.command.Tenants), 0.9},
		{hot, "one hot tenant", tenantNames(0), 0.6},
	} {
		several := s.http(c.who+", three instances", asked{
			names: c.names, connections: s.command.Connections[0], needs: needsMore,
			servers: func(w *world) []*server { return w.serveMore },
			book:    func(w *world) *book { return &w.more },
		})
		s.comparisons = append(s.comparisons, comparison{several, c.one, rates, c.target, false})
	}
}

// entries need a ledger of many: what the number of them costs, and what a tenant costs
// whose window was full and has passed.
func (s *suite) entries() {
	c := s.command
	onLarge := asked{
		connections: c.Connections[0], needs: needsLarge, book: func(w *world) *book { return &w.large },
		servers: func(w *world) []*server { return []*server{w.serveLarge} },
	}
	onLarge.names = tenantNames(c.Tenants)
	large := s.http(fmt.Sprintf("%s tenants, a ledger of %s entries", grouped(float64(c.Tenants)), grouped(float64(c.Entries))), onLarge)
	onEmpty := onLarge
	onEmpty.book = func(w *world) *book { return &w.empty }
	onEmpty.servers = func(w *world) []*server { return []*server{w.serveEmpty} }
	empty := s.http(fmt.Sprintf("%s tenants, a ledger that began empty", grouped(float64(c.Tenants))), onEmpty)

	onLarge.connections, onLarge.dryRun, onLarge.reads = 1, true, true
	onLarge.names = tenantNames(1)
	ordinary := s.http("a check of an ordinary tenant", onLarge)
	// A dry run leaves each check a first one.
	onLarge.names = []string{idleTenant}
	idle := s.http(fmt.Sprintf("a first check of a tenant with %s entries, all older than the window", grouped(float64(c.Idle))), onLarge)
	s.comparisons = append(s.comparisons,
		comparison{large, empty, rates, 0.85, false},
		comparison{idle, ordinary, medians, 3, true},
	)
}

// paceAt measures at half of the peak, which is the greatest rate of these.
func (s *suite) paceAt(connections int, peak ...*subject) {
	commits := &subject{
		name: "a bare commit of one row, one caller", mode: "commits", needs: needsOther, timeMax: readTimeMax, callers: 1,
		spec: func(w *world, t task) any { return sqlSpec{task: t, Database: w.other.URL} },
	}
	s.paced = s.http(fmt.Sprintf("%s tenants, half of its peak", grouped(float64(s.command.Tenants))), asked{
		names: tenantNames(s.command.Tenants), connections: connections,
	})
	s.closed = slices.DeleteFunc(s.closed, func(one *subject) bool { return one == s.paced })
	s.peak, s.open = peak, []*subject{s.paced, commits}
	s.comparisons = append(s.comparisons, comparison{s.paced, commits, tails, 8, true})
}

// setPace decides what half of the peak is.
func (s *suite) setPace() {
	peak := 0.0
	for _, subject := range s.peak {
		peak = max(peak, median(subject.runs, func(m measurement) float64 { return m.PerSecond }))
	}
	s.paced.perSecond = max(1, int(peak/2))
	s.paced.name += fmt.Sprintf(" (%s requests a second)", grouped(float64(s.paced.perSecond)))
}

// keep leaves out what a user did not ask for, and what is said about it.
func (s *suite) keep(only *regexp.Regexp) error {
	unwanted := func(one *subject) bool { return !only.MatchString(one.name) }
	if !unwanted(s.paced) { // its pace comes of these
		unwanted = func(one *subject) bool { return !only.MatchString(one.name) && !slices.Contains(s.peak, one) }
	}
	var names []string
	for _, one := range s.subjects() {
		names = append(names, one.name)
	}
	s.closed, s.open = slices.DeleteFunc(s.closed, unwanted), slices.DeleteFunc(s.open, unwanted)
	s.comparisons = slices.DeleteFunc(s.comparisons, func(c comparison) bool { return unwanted(c.of) || unwanted(c.with) })
	if len(s.subjects()) == 0 {
		return fmt.Errorf("--only matches none of these:\n  %s", strings.Join(names, "\n  "))
	}
	return nil
}

// subjects are all of them, in the order of a round.
func (s *suite) subjects() []*subject { return slices.Concat(s.closed, s.open) }

// needs is what has to be there for them.
func (s *suite) needs() (all part) {
	for _, one := range s.subjects() {
		all |= one.needs
	}
	return all
}

// drive is how a subject is measured.
func (s *suite) drive(one *subject) loadgen.Drive {
	d := loadgen.Drive{Callers: one.callers, Warm: s.command.Warm, Time: s.command.Time, PerSecond: one.perSecond}
	if one.timeMax > 0 {
		d.Time = min(d.Time, one.timeMax)
	}
	return d
}

// Subjects that need no checkpoint in their time are measured for less of it.
const (
	readTimeMax  = 5 * time.Second  // nothing is written that a checkpoint would write
	asideTimeMax = 10 * time.Second // measured only to be compared with
)
