package main

import (
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
)

const (
	// diskBytes holds a database and its log, and what a long run adds.
	diskBytes = 512 << 20
	clockStep = time.Hour
)

func tablesOnDisk(t *testing.T, s *stage) {
	t.Helper()
	s.disk = pgtest.NewDisk(t, s.postgres, diskBytes)
	s.disk.Take(t, s.db, s.postgres)
}

func logOnDisk(t *testing.T, s *stage) {
	t.Helper()
	if err := s.postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	s.disk = pgtest.NewDisk(t, s.postgres, diskBytes)
	s.disk.TakeLog(t, s.postgres)
	s.postgres = pgtest.Server(t, *s.server)
}

func ownClock(t *testing.T, s *stage) {
	t.Helper()
	if err := s.postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	s.clock = pgtest.NewClock(t, s.server)
	s.postgres = pgtest.Server(t, *s.server)
}

// fillTables leaves no space for a row: PostgreSQL refuses what needs some.
func fillTables(t *testing.T, s *stage) func() {
	s.disk.Fill(t)
	s.awaitRefused(t)
	s.awaitFault(t, "(SQLSTATE 53100)")
	return func() { s.disk.Free(t) }
}

// fillLog leaves no space for the log: PostgreSQL ends, and does not start again.
func fillLog(t *testing.T, s *stage) func() {
	s.disk.Fill(t)
	s.endOfLog(t)
	s.awaitRefused(t)
	s.awaitFault(t, "the database has not answered since")
	return func() {
		s.disk.Free(t)
		s.postgres = pgtest.Server(t, *s.server)
		acceptingSince(t, s.db)
	}
}

func clockAhead(t *testing.T, s *stage) func() {
	s.clockOff = time.Duration(s.runs+1) * clockStep
	s.clock.Step(t, s.clockOff)
	s.awaitWarning(t, "the database's clock was set by")
	return over
}

// clockBack finds that a tenant's time stands still until the clock has caught up.
func clockBack(t *testing.T, s *stage) func() {
	s.clockOff = clockStep
	s.clock.Step(t, -clockStep)
	s.awaitWarning(t, "the database's clock was set by -")
	stands := s.newest(t)
	s.awaitAllowed(t, crashCalls)
	if newest := s.newest(t); !newest.Equal(stands) {
		t.Errorf("the hot tenant's newest entry is of %s, and time should stand still at %s", newest, stands)
	}
	return func() { s.clock.Step(t, 0) }
}

func makeReadOnly(t *testing.T, s *stage) func() {
	s.set(t, "alter system set default_transaction_read_only = on")
	s.awaitRefused(t)
	s.awaitFault(t, "(SQLSTATE 25006)")
	return func() { s.set(t, "alter system reset default_transaction_read_only") }
}

// migrate runs what an operator runs, and then a migration of the kind that a new version
// brings, which keeps decisions waiting.
func migrate(t *testing.T, s *stage) func() {
	if code, out := output(t, "migrate", "--database-url", s.db.OwnerURL); code != 0 || !strings.Contains(out, "schema is at version") {
		t.Errorf("migrate ends with %d: %s", code, out)
	}
	s.db.Exec(t, rewriteSQL)
	return over
}

// takeColumn is a migration that these instances cannot work with.
func takeColumn(t *testing.T, s *stage) func() {
	s.db.Exec(t, "alter table quotad.entry rename column batch_id to taken")
	s.awaitRefused(t)
	s.awaitFault(t, "(SQLSTATE 42703)")
	return func() { s.db.Exec(t, "alter table quotad.entry rename column taken to batch_id") }
}

// rewriteSQL takes the locks that migrations take, and rewrites tables that decisions use.
const rewriteSQL = `
alter table quotad.meter_total add column note text;
update quotad.meter_total set note = '';
alter table quotad.meter_total alter column note set not null;
alter table quotad.meter_total drop column note;
alter table quotad.meter_total set (fillfactor = 60);
`

// newest is the instant of the hot tenant's last entry, of those under way also.
func (s *stage) newest(t *testing.T) (at time.Time) {
	t.Helper()
	err := s.db.Owner(t).QueryRow(t.Context(), "select last_at from quotad.account where tenant = 'hot' for share").Scan(&at)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// set changes a setting of the server for every session.
func (s *stage) set(t *testing.T, sql string) {
	t.Helper()
	s.db.Exec(t, sql)
	s.db.Exec(t, "select pg_reload_conf()")
}

// endOfLog lets the server go on until it has ended for want of space for its log, and
// makes sure that it does not start.
func (s *stage) endOfLog(t *testing.T) {
	t.Helper()
	eventually(t, "PostgreSQL ends without space for its log", func() bool {
		select {
		case <-s.postgres.Exited():
			return true
		default:
			// What is left of the file under way need not be filled by the load alone.
			_, _ = s.db.Owner(t).Exec(t.Context(), "select pg_switch_wal()")
			return false
		}
	})
	if err := s.postgres.Stop(); err != nil {
		t.Fatal(err)
	}
	if server, err := devpg.Start(t.Context(), *s.server); err == nil {
		_ = server.Stop()
		t.Error("PostgreSQL starts without space for its log")
	}
}

// awaitFault returns once every instance says what is wrong.
func (s *stage) awaitFault(t *testing.T, text string) { s.awaitReadyz(t, `"ready":false`, text) }

// awaitWarning returns once every instance is ready and warns of something.
func (s *stage) awaitWarning(t *testing.T, text string) { s.awaitReadyz(t, `"ready":true`, text) }

func (s *stage) awaitReadyz(t *testing.T, texts ...string) {
	t.Helper()
	for _, url := range s.urlList() {
		said := ""
		eventually(t, url+"/readyz says "+strings.Join(texts, " and "), func() bool {
			said = fetch(t, url+"/readyz")
			for _, text := range texts {
				if !strings.Contains(said, text) {
					return false
				}
			}
			return true
		})
	}
}
