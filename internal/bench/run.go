package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// runCmd measures everything. The defaults are what the targets speak of; smaller ones
// are for trying out.
type runCmd struct {
	Only        string        `placeholder:"REGEXP" help:"Measure only the subjects whose names match, upper or lower case, and see to nothing else."`
	Rounds      int           `placeholder:"N" help:"How often each subject is measured, in turns: 3, or 1 with --only."`
	Time        time.Duration `default:"1500ms" help:"How long each measurement takes."`
	Warm        time.Duration `default:"500ms" help:"How long a subject runs before it is measured."`
	Tenants     int           `default:"10000" help:"How many tenants requests are spread over."`
	Connections []int         `default:"64,256" help:"Two numbers of HTTP connections; the first is also how many run transactions."`
	Callers     []int         `default:"64,512" help:"Numbers of callers in process."`
	Dir         string        `placeholder:"DIR" help:"Where to make the database's directory; it must be on a disk."`
	Binary      string        `placeholder:"FILE" help:"Measure this quotad instead of building one."`
	Long        bool          `help:"Measure instead what needs a ledger of many entries, which takes minutes to make and a few GB of disk."`
	Entries     int           `default:"10000000" help:"How many entries that ledger has."`
	Idle        int           `default:"1000000" help:"How many entries a tenant has that was idle since for a window."`
	Verify      bool          `help:"Prove all ledgers with quotad verify at the end."`
	JSON        bool          `name:"json" help:"Print one JSON object instead of the table."`
}

// Validate is called by the parser.
func (c *runCmd) Validate() error {
	switch {
	case c.Rounds == 0 && c.Only == "":
		c.Rounds = 3
	case c.Rounds == 0:
		c.Rounds = 1
	}
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
		if n < 1 || n > callersMax {
			return fmt.Errorf("--connections and --callers must be 1 to %d", callersMax)
		}
	}
	return nil
}

// Run measures and prints.
func (c *runCmd) Run(ctx context.Context, s streams) (err error) {
	suite := newSuite(c)
	if c.Long {
		suite = newLongSuite(c)
	}
	if c.Only != "" {
		only, err := regexp.Compile("(?i)" + c.Only)
		if err != nil {
			return fmt.Errorf("--only: %w", err)
		}
		if err := suite.keep(only); err != nil {
			return err
		}
	}
	p := newProgress(s.Err, c.Rounds*len(suite.subjects()))
	defer p.finish()
	load := loadAverage()
	w, err := newWorld(ctx, c, suite.needs(), p.note)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
	head, err := w.settings(ctx, c, load)
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
	p.finish()
	r := report{Settings: head, Subjects: suite.lines()}
	if c.JSON {
		return json.NewEncoder(s.Out).Encode(r)
	}
	return r.print(s.Out)
}

// run measures all subjects in turns, a round after the other.
func (s *suite) run(ctx context.Context, w *world, p *progress) error {
	p.note("asking once for each tenant")
	if err := s.touch(ctx, w); err != nil {
		return err
	}
	for range s.command.Rounds {
		for _, subject := range s.closed {
			if err := s.measure(ctx, w, p, subject); err != nil {
				return err
			}
		}
	}
	if len(s.open) > 0 {
		s.setPace()
	}
	for range s.command.Rounds {
		for _, subject := range s.open {
			if err := s.measure(ctx, w, p, subject); err != nil {
				return err
			}
		}
	}
	return nil
}

// touch sends one request for each tenant, so that no subject is measured while it
// meets them.
func (s *suite) touch(ctx context.Context, w *world) error {
	for server, book := range map[*server]*book{w.serve: &w.quotad, w.serveLarge: &w.large} {
		if server == nil {
			continue
		}
		spec := loadSpec{Address: server.Address, Token: w.token, Names: tenantNames(s.command.Tenants), Each: true}
		m, err := measure(ctx, "load", spec)
		if err != nil {
			return err
		}
		if err := book.check(ctx, m.Allowed); err != nil {
			return err
		}
	}
	return nil
}

// measure measures a subject once and checks the ledger that it wrote.
func (s *suite) measure(ctx context.Context, w *world, p *progress, subject *subject) error {
	if err := w.checkpoint(ctx); err != nil {
		return err
	}
	d := subject.drive
	d.Watch.Postmaster = w.postgres.PID()
	if subject.serve != nil {
		d.Watch.Service = []int{subject.serve(w).command.Process.Pid}
	}
	m, err := measure(ctx, subject.mode, subject.task(w, d))
	if err != nil {
		return fmt.Errorf("%s: %w", subject.name, err)
	}
	if subject.book != nil {
		if err := subject.book(w).check(ctx, m.Allowed); err != nil {
			return fmt.Errorf("%s: %w", subject.name, err)
		}
	}
	subject.runs = append(subject.runs, m)
	p.measured(subject.name, m)
	return nil
}
