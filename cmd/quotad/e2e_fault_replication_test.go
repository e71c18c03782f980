package main

import (
	"net/url"
	"os"
	"testing"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
)

// The faults of a primary and its standby. Commits wait for the standby, so a failover may
// lose nothing that was acknowledged.

func losePrimary(t *testing.T, s *stage) func() {
	s.follow(t)
	pgtest.Crash(t, s.postgres)
	s.awaitRefused(t)
	return func() { s.failOver(t) }
}

func stallStandby(t *testing.T, s *stage) func() {
	s.follow(t)
	return s.stall(t)
}

// loseStalled loses the primary when callers were told that nobody knows: what they asked
// for is on the primary alone.
func loseStalled(t *testing.T, s *stage) func() {
	s.follow(t)
	s.stall(t)
	unknown := s.unknown.Load()
	eventually(t, "an instance says that an outcome is unknown", func() bool { return s.unknown.Load() > unknown })
	return func() { s.failOverWithoutTheRest(t) }
}

// loseCancelled loses the primary when its administrator has cancelled waits: everyone sees
// there what no standby has.
func loseCancelled(t *testing.T, s *stage) func() {
	s.follow(t)
	s.stall(t)
	s.cancelWaits(t)
	exposed := s.entries(t)
	return func() {
		s.failOverWithoutTheRest(t)
		if kept := s.entries(t); kept >= exposed {
			t.Errorf("the primary showed %d entries before it was lost and the standby has %d, want fewer", exposed, kept)
		}
	}
}

func leadToStandby(t *testing.T, s *stage) func() {
	s.follow(t)
	s.pair.lead(t, s.db.At(t, s.pair.standby).URL)
	s.awaitRefused(t)
	s.awaitFault(t, "(SQLSTATE 25006)")
	return func() { s.pair.lead(t, s.db.URL) }
}

// cancelledWaits is how many waits of commits for their standby are cut short.
const cancelledWaits = 20

// A pair is two homes for a primary and its standby, which change places at each failover,
// and the ways to them.
type pair struct {
	homes   [2]string
	proxies [2]*pgtest.Proxy // both lead to the primary, or each to its home
	byURL   bool
	primary int            // its home
	standby *devpg.Server  // nil until it follows
	options *devpg.Options // of the standby
}

// paired makes instances reach the primary by one address, which follows it.
func paired(t *testing.T, s *stage) {
	t.Helper()
	s.pair = &pair{homes: [2]string{s.server.Dir, pgtest.Dir(t)}}
	for i := range s.pair.proxies {
		s.pair.proxies[i] = pgtest.NewProxy(t, s.db.URL)
	}
	behind := *s.db
	behind.URL = s.pair.proxies[0].URL
	s.behind = &behind
}

// pairedByURL makes instances reach whichever of two addresses takes writes.
func pairedByURL(t *testing.T, s *stage) {
	t.Helper()
	paired(t, s)
	s.pair.byURL = true
	one, two := urlOf(t, s.pair.proxies[0].URL), urlOf(t, s.pair.proxies[1].URL)
	one.Host += "," + two.Host
	query := one.Query()
	query.Set("target_session_attrs", "read-write")
	one.RawQuery = query.Encode()
	s.behind.URL = one.String()
}

func urlOf(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// lead makes the one address lead elsewhere, for open connections, too.
func (p *pair) lead(t *testing.T, databaseURL string) {
	t.Helper()
	p.proxies[0].Redirect(t, databaseURL)
	p.proxies[0].CutAll()
}

// follow makes sure that the primary has a standby, which commits wait for.
func (s *stage) follow(t *testing.T) {
	t.Helper()
	p := s.pair
	if p.standby != nil {
		return
	}
	options := *s.server
	options.Dir = p.homes[1-p.primary]
	if err := os.RemoveAll(options.Dir); err != nil {
		t.Fatal(err)
	}
	p.options, p.standby = &options, pgtest.Standby(t, s.postgres, options)
	if p.byURL {
		p.proxies[1-p.primary].Redirect(t, s.db.At(t, p.standby).URL)
	}
	s.awaitAllowed(t, crashCalls)
}

// stall has the standby confirm nothing any more, and waits until callers notice.
func (s *stage) stall(t *testing.T) (resume func()) {
	t.Helper()
	resume = pgtest.StallStandby(t, s.pair.standby)
	s.awaitRefused(t)
	s.awaitFault(t, "commits wait for a standby")
	return resume
}

// cancelWaits ends waits of commits for their standby, as an administrator may: they are
// done on the primary then, and nowhere else.
func (s *stage) cancelWaits(t *testing.T) {
	t.Helper()
	cancelled := 0
	eventually(t, "waits for the standby are cancelled", func() bool {
		var n int
		err := s.db.Owner(t).QueryRow(t.Context(), `
select count(*) filter (where pg_cancel_backend(pid))
from pg_stat_activity
where wait_event = 'SyncRep' and usename <> current_user`).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		cancelled += n
		return cancelled >= cancelledWaits
	})
}

// failOver makes the standby the primary. The old one has ended.
func (s *stage) failOver(t *testing.T) {
	t.Helper()
	p := s.pair
	pgtest.Promote(t, p.standby)
	s.server, s.postgres, s.db = p.options, p.standby, s.db.At(t, p.standby)
	p.standby, p.primary = nil, 1-p.primary
	if !p.byURL {
		p.lead(t, s.db.URL)
	}
}

// failOverWithoutTheRest loses the primary, and what the standby was sent and has not
// confirmed.
func (s *stage) failOverWithoutTheRest(t *testing.T) {
	t.Helper()
	pgtest.Crash(t, s.postgres)
	pgtest.Crash(t, s.pair.standby)
	s.pair.standby = pgtest.Server(t, *s.pair.options)
	s.failOver(t)
}

// entries is how many entries the ledger shows.
func (s *stage) entries(t *testing.T) (n int) {
	t.Helper()
	if err := s.db.Owner(t).QueryRow(t.Context(), "select count(*) from quotad.entry").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
