package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/quotad/quotad/internal/loadgen"
)

// runCmd measures. The defaults are what the targets speak of; smaller ones are for
// trying out.
type runCmd struct {
	Full        bool          `help:"Measure also several instances and a ledger of many entries, each subject long enough for a checkpoint to begin in it; it takes up to half an hour and a few GB of disk."`
	Only        string        `placeholder:"REGEXP" help:"Measure only the subjects whose names match, upper or lower case, in one short round."`
	Rounds      int           `placeholder:"N" help:"How often each subject is measured, in turns: 3; 2 with --full, 1 with --only."`
	Time        time.Duration `placeholder:"DURATION" help:"How long each measurement takes, or less where nothing is written: 1.5s; 40s with --full and without --only."`
	Warm        time.Duration `default:"500ms" help:"How long a subject runs before it is measured."`
	Tenants     int           `default:"10000" help:"How many tenants requests are spread over."`
	Connections []int         `default:"64,256" help:"Two numbers of HTTP connections; the first is also how many run transactions."`
	Callers     []int         `default:"64,512" help:"Numbers of callers in process."`
	Dir         string        `placeholder:"DIR" help:"Where to make the database's directory; it must be on a disk."`
	Binary      string        `placeholder:"FILE" help:"Measure this quotad instead of building one."`
	Entries     int           `default:"10000000" help:"How many entries the large ledger has."`
	Idle        int           `default:"1000000" help:"How many entries a tenant has that was idle since for a window."`
	Verify      bool          `help:"Prove all ledgers with quotad verify at the end."`
	JSON        bool          `name:"json" help:"Print one JSON object instead of the table."`

	only *regexp.Regexp
}

// AfterApply sets what depends on other flags. It is called by the parser.
func (c *runCmd) AfterApply() (err error) {
	rounds, each := 3, 1500*time.Millisecond
	switch {
	case c.Only != "":
		rounds = 1
	case c.Full:
		rounds, each = 2, 40*time.Second
	}
	if c.Rounds == 0 {
		c.Rounds = rounds
	}
	if c.Time == 0 {
		c.Time = each
	}
	if c.only, err = regexp.Compile("(?i)" + c.Only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	return c.bounds()
}

func (c *runCmd) bounds() error {
	switch {
	case c.Rounds < 1 || c.Rounds > 100 || c.Time <= 0 || c.Time > time.Minute || c.Warm < 0 || c.Warm > time.Minute:
		return errors.New("--rounds must be 1 to 100, --time and --warm at most a minute")
	case c.Tenants < 1 || c.Tenants > tenantsMax:
		return fmt.Errorf("--tenants must be 1 to %d", tenantsMax)
	case c.Entries < 1 || c.Entries > entriesMax || c.Idle < 1 || c.Idle > entriesMax:
		return fmt.Errorf("--entries and --idle must be 1 to %d", entriesMax)
	case len(c.Connections) != 2 || len(c.Callers) == 0:
		return errors.New("--connections must be two numbers, --callers at least one")
	}
	for _, n := range slices.Concat(c.Connections, c.Callers) {
		if n < 1 || n > loadgen.CallersMax {
			return fmt.Errorf("--connections and --callers must be 1 to %d", loadgen.CallersMax)
		}
	}
	return nil
}

// Run measures and prints.
func (c *runCmd) Run(ctx context.Context, s streams) (err error) {
	suite := newSuite(c)
	if err := suite.keep(c.only); err != nil {
		return err
	}
	p := &progress{to: s.Err, total: c.Rounds * len(suite.subjects())}
	before := loadAverage()
	w, err := newWorld(ctx, c, suite.needs(), p.note)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	head, err := w.settings(ctx, c, before)
	if err != nil {
		return err
	}
	if err := suite.run(ctx, w, p); err != nil {
		return err
	}
	if c.Verify {
		if err := w.verify(ctx); err != nil {
			return err
		}
	}
	r := report{Settings: head, Subjects: suite.lines()}
	if c.JSON {
		return json.NewEncoder(s.Out).Encode(r)
	}
	return r.print(s.Out)
}

// run measures all subjects in turns, a round after the other.
func (s *suite) run(ctx context.Context, w *world, p *progress) error {
	p.begun = time.Now()
	for range s.command.Rounds {
		if err := s.round(ctx, w, p, s.closed); err != nil {
			return err
		}
	}
	if len(s.open) > 0 && len(s.peak[0].runs) > 0 {
		s.setPace()
	}
	for range s.command.Rounds {
		if err := s.round(ctx, w, p, s.open); err != nil {
			return err
		}
	}
	return nil
}

// round measures each of the subjects once.
func (s *suite) round(ctx context.Context, w *world, p *progress, subjects []*subject) error {
	if len(subjects) == 0 {
		return nil
	}
	p.note("asking once for each tenant")
	if err := w.checkpoint(ctx); err != nil {
		return err
	}
	if err := s.touch(ctx, w, subjects); err != nil {
		return err
	}
	for _, subject := range subjects {
		if err := s.measure(ctx, w, p, subject); err != nil {
			return err
		}
	}
	return nil
}

// touch has each tenant decided once by every instance of the subjects, and in each of
// their databases that has none; an engine in process does so by itself. So no subject is measured while it meets them, nor the one
// that is first after a checkpoint while the log takes whole pages, which all others find
// there.
func (s *suite) touch(ctx context.Context, w *world, subjects []*subject) error {
	names := tenantNames(s.command.Tenants)
	touched := make(map[*book]bool)
	for _, subject := range subjects {
		if subject.book == nil || subject.mode == "engine" || touched[subject.book(w)] {
			continue
		}
		book := subject.book(w)
		touched[book] = true
		mode, specs := "engine", []any{sqlSpec{Database: book.URL, Names: names, Each: true}}
		if subject.servers != nil {
			mode, specs = "load", nil
			for _, server := range subject.servers(w) {
				specs = append(specs, loadSpec{URLs: []string{server.URL}, Token: w.token, Names: names, Batch: batchItems, Each: true})
			}
		}
		for _, spec := range specs {
			m, err := measure(ctx, mode, spec)
			if err != nil {
				return err
			}
			if err := book.check(ctx, m.Total.Allowed); err != nil {
				return err
			}
		}
	}
	return nil
}

// measure measures a subject once and checks the ledger that it wrote.
func (s *suite) measure(ctx context.Context, w *world, p *progress, subject *subject) error {
	t := task{Drive: s.drive(subject), Watch: watch{Postmaster: w.postgres.PID()}}
	if subject.servers != nil {
		for _, server := range subject.servers(w) {
			t.Watch.Service = append(t.Watch.Service, server.command.Process.Pid)
		}
	}
	var book *book
	if subject.book != nil {
		book = subject.book(w)
	}
	before, err := book.extent(ctx)
	if err != nil {
		return err
	}
	m, err := measure(ctx, subject.mode, subject.spec(w, t))
	if err != nil {
		return fmt.Errorf("%s: %w", subject.name, err)
	}
	if m.Written, err = book.writtenSince(ctx, before); err != nil {
		return err
	}
	if err := book.check(ctx, m.Total.Allowed); err != nil {
		return fmt.Errorf("%s: %w", subject.name, err)
	}
	subject.runs = append(subject.runs, m)
	p.measured(subject.name, m)
	return nil
}
