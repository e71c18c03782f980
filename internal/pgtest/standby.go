//go:build unix

package pgtest

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
)

const (
	// standbyName is what a standby calls itself, and what its primary waits for.
	standbyName = "standby"
	// replicationMax is what a standby may take to connect, or to be promoted.
	replicationMax  = time.Minute
	replicationPoll = 10 * time.Millisecond
)

// Standby starts a standby of the primary that commits wait for from now on, with o and a
// directory of its own: what is acknowledged is on both. It returns once it follows.
func Standby(t testing.TB, primary *devpg.Server, o devpg.Options) *devpg.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), replicationMax)
	defer cancel()
	if err := primary.Backup(ctx, o.Dir, standbyName); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	standby := Server(t, o)
	url := primary.URL("postgres")
	execOn(t, url, "alter system set synchronous_standby_names = '"+standbyName+"'", "select pg_reload_conf()")
	awaitOn(t, url, "the standby is waited for by commits",
		"select coalesce(bool_or(sync_state = 'sync' and state = 'streaming'), false) from pg_stat_replication")
	return standby
}

// Promote makes a standby a primary, which waits for no standby itself.
func Promote(t testing.TB, standby *devpg.Server) {
	t.Helper()
	execOn(t, standby.URL("postgres"), "select pg_promote(wait => false)")
	awaitOn(t, standby.URL("postgres"), "the standby takes writes", "select not pg_is_in_recovery()")
}

// StallStandby stops the process of a standby that receives what its primary sends:
// commits wait for ever, and their connection is as open as before. What was sent
// meanwhile is lost if the standby is crashed before resume.
func StallStandby(t testing.TB, standby *devpg.Server) (resume func()) {
	t.Helper()
	var pid int
	conn, err := pgx.Connect(t.Context(), standby.URL("postgres"))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), "select pid from pg_stat_wal_receiver").Scan(&pid); err != nil {
		t.Fatalf("pgtest: the standby receives nothing: %v", err)
	}
	signal(t, pid, syscall.SIGSTOP)
	return func() { signal(t, pid, syscall.SIGCONT) }
}

// awaitOn waits until a query says true.
func awaitOn(t testing.TB, databaseURL, what, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), replicationMax)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tick := time.NewTicker(replicationPoll)
	defer tick.Stop()
	for done := false; !done; <-tick.C {
		if err := conn.QueryRow(ctx, sql).Scan(&done); err != nil {
			t.Fatalf("pgtest: not seen in %s: %s: %v", replicationMax, what, err)
		}
	}
}
