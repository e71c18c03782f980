package main

import (
	"context"
	"net/http"
	"testing"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
)

// durable is a server whose files outlive it.
func durable() *devpg.Options {
	return &devpg.Options{Fsync: true, Settings: map[string]string{"max_connections": "100"}}
}

// faults is every fault there is a test of.
var faults = []fault{
	{name: "an instance is killed", inject: func(t *testing.T, s *stage) func() {
		gone := s.victim()
		s.kill(t, gone)
		s.awaitAllowed(t, crashCalls)
		return func() { s.replace(t, gone) }
	}},
	{name: "an instance is stopped", inject: func(t *testing.T, s *stage) func() {
		gone := s.victim()
		gone.stop(t, sigterm)
		s.awaitAllowed(t, crashCalls)
		return func() { s.replace(t, gone) }
	}},
	{name: "PostgreSQL is killed", server: durable(), inject: func(t *testing.T, s *stage) func() {
		pgtest.Crash(t, s.postgres)
		if s.runs == 0 { // the first outage outlasts every deadline and cache
			s.awaitRefused(t)
		}
		return func() {
			s.postgres = pgtest.Server(t, *s.server)
			acceptingSince(t, s.db)
		}
	}},
	{name: "PostgreSQL hangs", server: durable(), inject: func(t *testing.T, s *stage) func() {
		thaw := pgtest.Freeze(t, s.postgres)
		s.awaitRefused(t)
		return thaw
	}},
	{name: "a backend is killed", server: &devpg.Options{}, inject: func(t *testing.T, s *stage) func() {
		endWorking(t, s.db, "copy (select $1) to program 'xargs kill -9'")
		return func() { acceptingSince(t, s.db) }
	}},
	{name: "a working backend is terminated", silent: true, inject: func(t *testing.T, s *stage) func() {
		endWorking(t, s.db, "select pg_terminate_backend($1)")
		return func() {}
	}},
	{name: "a waiting backend is terminated", silent: true, inject: func(t *testing.T, s *stage) func() {
		endWaiting(t, s.db)
		return func() {}
	}},
	{name: "an outsider locks an account", silent: true, inject: func(t *testing.T, s *stage) func() {
		outsider := s.db.Hold(t, "hot")
		pgtest.AwaitWaiter(t, s.db, make(chan struct{}))
		return func() {
			if err := outsider.Rollback(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		}
	}},
	{name: "commits are lost on the wire", proxied: true, silent: true, inject: func(t *testing.T, s *stage) func() {
		repliesBefore, sendsBefore := s.proxy.Lost()
		s.proxy.LoseCommits(7)
		eventually(t, "commits are lost both ways", func() bool {
			replies, sends := s.proxy.Lost()
			return replies >= repliesBefore+5 && sends >= sendsBefore+5
		})
		return func() { s.proxy.LoseCommits(0) }
	}},
}

// kill ends an instance with no chance to say goodbye.
func (s *stage) kill(t *testing.T, i *instance) {
	t.Helper()
	if err := i.signal(sigkill); err != nil {
		t.Error(err)
	}
	i.wait(t)
}

// awaitRefused returns once every instance says that it is not ready and calls are
// answered that there is no decision for now.
func (s *stage) awaitRefused(t *testing.T) {
	t.Helper()
	refused := s.refused.Load()
	eventually(t, "calls are refused", func() bool { return s.refused.Load() >= refused+mixedWorkers })
	for _, url := range s.urlList() {
		eventually(t, "an instance is not ready without its database", func() bool { return readiness(url) == http.StatusServiceUnavailable })
	}
}
