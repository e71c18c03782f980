package main

import (
	"fmt"
	"time"
)

// A subject is what is measured.
type subject struct {
	name      string
	mode      string // of the process that measures it
	needs     part
	callers   int
	perSecond int                      // 0: as fast as answers come
	timeMax   time.Duration            // 0: none
	servers   func(w *world) []*server // nil: no service stands between
	spec      func(w *world, t task) any
	book      func(w *world) *book // nil: it leaves no entries
	runs      []measurement        // one per round
}

func quotadBook(w *world) *book { return &w.quotad }
func engineBook(w *world) *book { return &w.engine }
func otherBook(w *world) *book  { return &w.other }

func (s *suite) add(one *subject) *subject {
	s.closed = append(s.closed, one)
	return one
}

// asked is what a subject asks quotad over HTTP.
type asked struct {
	names       []string
	connections int
	batch       int
	dryRun      bool
	reads       bool // nothing is allowed, or it is a dry run
	needs       part
	servers     func(w *world) []*server // nil: the one
	book        func(w *world) *book     // nil: of the one
}

// http is decisions over HTTP.
func (s *suite) http(who string, a asked) *subject {
	one := &subject{
		name: fmt.Sprintf("quotad over HTTP, %s, %s", who, connections(a.connections)),
		mode: "load", needs: a.needs, callers: a.connections, servers: a.servers, book: a.book,
	}
	if one.servers == nil {
		one.servers = func(w *world) []*server { return []*server{w.serve} }
	}
	if one.book == nil {
		one.book = quotadBook
	}
	if a.dryRun {
		one.book = nil
	}
	if a.reads {
		one.timeMax = readTimeMax
	}
	one.spec = func(w *world, t task) any {
		spec := loadSpec{task: t, Token: w.token, Names: a.names, Batch: a.batch, DryRun: a.dryRun}
		for _, server := range one.servers(w) {
			spec.URLs = append(spec.URLs, server.URL)
		}
		return spec
	}
	return s.add(one)
}

func connections(n int) string {
	if n == 1 {
		return "1 connection"
	}
	return fmt.Sprintf("%d connections", n)
}

// plain is the chi handler, sent the same requests by the same client.
func (s *suite) plain(callers int) *subject {
	one := s.http("", asked{
		names: tenantNames(s.command.Tenants), connections: callers, needs: needsPlain, reads: true,
		servers: func(w *world) []*server { return []*server{w.plain} },
	})
	one.name, one.book = fmt.Sprintf("chi, decode and encode only, %s", connections(callers)), nil
	return one
}

// transactions is SQL with a transaction for each request.
func (s *suite) transactions(who string, names []string, pipelined bool) *subject {
	callers, style := s.command.Connections[0], "a statement at a time"
	if pipelined {
		style = "pipelined"
	}
	return s.add(&subject{
		name: fmt.Sprintf("SQL transactions %s, %s, %d sessions", style, who, callers),
		mode: "sql", needs: needsOther, callers: callers, timeMax: asideTimeMax, book: otherBook,
		spec: func(w *world, t task) any {
			return sqlSpec{task: t, Database: w.other.URL, Names: names, Pipelined: pipelined}
		},
	})
}

// inProcess is the engine without HTTP, on a database of its own: a service takes what
// another writes of its tenants for a reason to read them anew.
func (s *suite) inProcess(who string, names []string, callers int) {
	s.add(&subject{
		name: fmt.Sprintf("quotad in process, %s, %d callers", who, callers),
		mode: "engine", needs: needsEngine, callers: callers, timeMax: asideTimeMax, book: engineBook,
		spec: func(w *world, t task) any {
			return sqlSpec{task: t, Database: w.engine.URL, Names: names}
		},
	})
}
