package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pgtest"
)

const (
	// sessionsMax is what one instance may have open, as docs/postgresql.md says.
	sessionsMax = 19
	// goroutinesMore is by how much those of all instances may differ when nothing is
	// asked of them: connections that are kept for later have some.
	goroutinesMore = 60
)

// leaksSQL counts, of the sessions of instances: those in a transaction, the locks that
// they hold or wait for, and all of them.
const leaksSQL = `
select count(*) filter (where a.xact_start is not null or a.state <> 'idle'),
       (select count(*)
        from pg_locks l
        join pg_stat_activity b using (pid)
        where b.datname = current_database() and b.usename <> current_user),
       count(*)
from pg_stat_activity a
where a.datname = current_database() and a.usename <> current_user`

// leaked says what instances, of which nobody asks anything any more, have not given back:
// a transaction, a lock, sessions, or goroutines beyond so many; "" for nothing.
func leaked(t *testing.T, db *pgtest.DB, urls []string, goroutines float64) string {
	t.Helper()
	var open, locks, sessions int
	if err := db.Owner(t).QueryRow(t.Context(), leaksSQL).Scan(&open, &locks, &sessions); err != nil {
		t.Fatal(err)
	}
	running := goroutinesOf(t, urls)
	if open == 0 && locks == 0 && sessions <= sessionsMax*len(urls) && running <= goroutines+goroutinesMore {
		return ""
	}
	return fmt.Sprintf("%d transactions, %d locks, %d sessions, %v goroutines (before: %v)", open, locks, sessions, running, goroutines)
}

func goroutinesOf(t *testing.T, urls []string) float64 {
	t.Helper()
	const name = "go_goroutines"
	return metricsOf(t, urls, name)[name]
}

// wantNothingLeaked wants instances to come to rest with as much as they had before.
func wantNothingLeaked(t *testing.T, db *pgtest.DB, urls []string, goroutines float64) {
	t.Helper()
	var last string
	defer func() {
		if t.Failed() {
			t.Log("leaked: ", last)
		}
	}()
	eventually(t, "nothing is left over", func() bool {
		last = leaked(t, db, urls, goroutines)
		return last == ""
	})
}

// Whatever an instance could leave behind is found, or looking for it is worth nothing.
func TestLeaksAreFound(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	configure(t, db, mixedConfig(0))
	instances, urls := startServes(t, db, 1)
	before := goroutinesOf(t, urls)
	wantNothingLeaked(t, db, urls, before)
	if leaked(t, db, urls, before-goroutinesMore-100) == "" {
		t.Error("goroutines are not found")
	}
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), db.URL)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close(context.WithoutCancel(t.Context())) })
		return conn
	}
	conn := connect()
	for _, sql := range []string{"begin", "select from quotad.account where tenant = 'hot' for update"} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
		if leaked(t, db, urls, before) == "" {
			t.Errorf("what %q leaves is not found", sql)
		}
	}
	conn.Close(t.Context())
	wantNothingLeaked(t, db, urls, before)
	for range sessionsMax {
		connect()
	}
	if leaked(t, db, urls, before) == "" {
		t.Error("sessions are not found")
	}
	instances[0].stop(t, sigterm)
}
