package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A subject is what is measured.
type subject struct {
	name  string
	mode  string // of the process that measures it
	needs part
	serve func(w *world) *server // nil: no service stands between
	drive drive
	task  func(w *world, d drive) any
	book  func(w *world) *book // nil: it leaves no entries
	runs  []measurement        // one per round
}

// A comparison is a ratio to print.
type comparison struct {
	of, with *subject
	ratio    func(of, with measurement) float64
	target   float64 // 0: none
	atMost   bool    // the target is an upper bound
}

func rates(of, with measurement) float64 { return of.PerSecond / with.PerSecond }

// tails compares the time that one answer in a hundred exceeds with a usual commit.
func tails(of, with measurement) float64 { return float64(of.P99) / float64(with.P50) }

// A suite is all subjects and what is said about them.
type suite struct {
	command     *runCmd
	closed      []*subject // measured first: as fast as answers come
	open        []*subject // measured last: at half of the peak
	comparisons []comparison
	peak        []*subject // the greatest of these is the peak
	paced       *subject
}

// keep leaves out what a user did not ask for, and what is said about it.
func (s *suite) keep(only *regexp.Regexp) error {
	unwanted := func(one *subject) bool { return !only.MatchString(one.name) }
	if s.paced != nil && !unwanted(s.paced) { // its pace comes of these
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

// newSuite lists what is measured, in the order of a round, with the targets.
func newSuite(c *runCmd) *suite {
	s := &suite{command: c}
	few, many := c.Connections[0], c.Connections[1]
	spread, one := fmt.Sprintf("%s tenants", grouped(float64(c.Tenants))), "one hot tenant"

	spreadFew := s.http(spread, c.Tenants, few)
	plainFew := s.plain(few)
	rowsSpread := s.transactions(spread, c.Tenants, true)
	stepsSpread := s.transactions(spread, c.Tenants, false)
	hotFew := s.http(one, 0, few)
	rowsHot := s.transactions(one, 0, true)
	stepsHot := s.transactions(one, 0, false)
	spreadMany := s.http(spread, c.Tenants, many)
	plainMany := s.plain(many)
	hotMany := s.http(one, 0, many)
	for _, callers := range c.Callers {
		s.inProcess(spread, c.Tenants, callers)
		s.inProcess(one, 0, callers)
	}
	commits := &subject{
		name: "a bare commit of one row, one caller", mode: "commits", needs: needsOther,
		task: func(w *world, d drive) any { return sqlSpec{Drive: d, Database: w.other.URL} }, drive: s.drive(1),
	}
	s.paced = &subject{
		name: fmt.Sprintf("quotad over HTTP, %s, half of its peak", spread),
		mode: "load", drive: s.drive(many), serve: theServer, book: quotadBook,
		task: func(w *world, d drive) any {
			return loadSpec{Drive: d, Address: w.serve.Address, Token: w.token, Names: tenantNames(c.Tenants)}
		},
	}
	s.peak = []*subject{spreadFew, spreadMany}
	s.open = []*subject{s.paced, commits}
	s.comparisons = []comparison{
		{spreadFew, plainFew, rates, 0.33, false},
		{spreadFew, rowsSpread, rates, 1.9, false},
		{spreadFew, stepsSpread, rates, 0, false},
		{spreadMany, plainMany, rates, 0.40, false},
		{hotFew, plainFew, rates, 0, false},
		{hotFew, rowsHot, rates, 18, false},
		{hotFew, stepsHot, rates, 0, false},
		{hotMany, plainMany, rates, 0, false},
		{s.paced, commits, tails, 8, true},
	}
	return s
}

func theServer(w *world) *server { return w.serve }
func theLarge(w *world) *server  { return w.serveLarge }

func quotadBook(w *world) *book { return &w.quotad }
func otherBook(w *world) *book  { return &w.other }

func (s *suite) drive(callers int) drive {
	return drive{Callers: callers, Warm: s.command.Warm, Time: s.command.Time}
}

func (s *suite) add(one *subject) *subject {
	s.closed = append(s.closed, one)
	return one
}

// http is decisions over HTTP; tenants 0 is the hot one.
func (s *suite) http(who string, tenants, connections int) *subject {
	return s.add(&subject{
		name: fmt.Sprintf("quotad over HTTP, %s, %d connections", who, connections),
		mode: "load", drive: s.drive(connections), serve: theServer, book: quotadBook,
		task: func(w *world, d drive) any {
			return loadSpec{Drive: d, Address: w.serve.Address, Token: w.token, Names: tenantNames(tenants)}
		},
	})
}

// plain is the chi handler, sent the same requests by the same client.
func (s *suite) plain(connections int) *subject {
	return s.add(&subject{
		name: fmt.Sprintf("chi, decode and encode only, %d connections", connections),
		mode: "load", needs: needsPlain, drive: s.drive(connections), serve: func(w *world) *server { return w.plain },
		task: func(w *world, d drive) any {
			return loadSpec{Drive: d, Address: w.plain.Address, Token: w.token, Names: tenantNames(s.command.Tenants)}
		},
	})
}

// transactions is SQL with a transaction for each request.
func (s *suite) transactions(who string, tenants int, pipelined bool) *subject {
	callers, style := s.command.Connections[0], "a statement at a time"
	if pipelined {
		style = "pipelined"
	}
	return s.add(&subject{
		name: fmt.Sprintf("SQL transactions %s, %s, %d sessions", style, who, callers),
		mode: "sql", needs: needsOther, drive: s.drive(callers), book: otherBook,
		task: func(w *world, d drive) any {
			return sqlSpec{Drive: d, Database: w.other.URL, Names: tenantNames(tenants), Pipelined: pipelined}
		},
	})
}

// inProcess is the engine without HTTP.
func (s *suite) inProcess(who string, tenants, callers int) {
	s.add(&subject{
		name: fmt.Sprintf("quotad in process, %s, %d callers", who, callers),
		mode: "engine", drive: s.drive(callers), book: quotadBook,
		task: func(w *world, d drive) any {
			return sqlSpec{Drive: d, Database: w.quotad.URL, Names: tenantNames(tenants)}
		},
	})
}

// setPace decides what half of the peak is.
func (s *suite) setPace() {
	peak := 0.0
	for _, subject := range s.peak {
		peak = max(peak, median(subject.runs, func(m measurement) float64 { return m.PerSecond }))
	}
	s.paced.drive.PerSecond = max(1, int(peak/2))
	s.paced.name += fmt.Sprintf(" (%s requests a second)", grouped(float64(s.paced.drive.PerSecond)))
}

// newLongSuite lists what needs a ledger of many entries: what the number of entries
// costs, and what a tenant costs whose window was full and has passed.
func newLongSuite(c *runCmd) *suite {
	s := &suite{command: c}
	few := c.Connections[0]
	empty := s.http(fmt.Sprintf("%s tenants, a ledger that began empty", grouped(float64(c.Tenants))), c.Tenants, few)
	large := s.http(fmt.Sprintf("%s tenants, %s entries", grouped(float64(c.Tenants)), grouped(float64(c.Entries))), c.Tenants, few)
	large.needs, large.serve = needsLarge, theLarge
	large.book = func(w *world) *book { return &w.large }
	large.task = func(w *world, d drive) any {
		return loadSpec{Drive: d, Address: w.serveLarge.Address, Token: w.token, Names: tenantNames(c.Tenants)}
	}
	ordinary := s.check("of an ordinary tenant", tenantNames(1))
	idle := s.check(fmt.Sprintf("of a tenant with %s entries, all older than the window", grouped(float64(c.Idle))), []string{idleTenant})
	s.comparisons = []comparison{
		{large, empty, rates, 0.85, false},
		{idle, ordinary, medians, 3, true},
	}
	return s
}

// medians compares usual times.
func medians(of, with measurement) float64 { return float64(of.P50) / float64(with.P50) }

// check is one caller that asks without spending, so that an idle tenant stays idle.
func (s *suite) check(who string, names []string) *subject {
	return s.add(&subject{
		name: "a check " + who, mode: "load", needs: needsLarge, drive: s.drive(1), serve: theLarge,
		task: func(w *world, d drive) any {
			return loadSpec{Drive: d, Address: w.serveLarge.Address, Token: w.token, Names: names, DryRun: true}
		},
	})
}
