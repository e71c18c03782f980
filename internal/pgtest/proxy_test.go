package pgtest

import (
	"context"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/devpg"
)

// commitThrough connects, inserts a row in a transaction, and returns how its commit ended.
func commitThrough(t *testing.T, url string, n int) error {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for _, sql := range []string{"begin", "insert into public.row values ($1)"} {
		var args []any
		if sql != "begin" {
			args = []any{n}
		}
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	_, err = conn.Exec(t.Context(), "commit", pgx.QueryExecModeExec)
	return err
}

// A commit whose reply is lost is done, one that is lost on its way or in the middle is
// not, and the client cannot tell them apart.
func TestAProxyBreaksCommitsByTurns(t *testing.T) {
	t.Parallel()
	db := New(t)
	db.Exec(t, "create table public.row (n integer not null)")
	p := NewProxy(t, db.OwnerURL)
	if err := commitThrough(t, p.URL, 1); err != nil {
		t.Fatalf("a commit that is not to be lost: %v", err)
	}
	p.Break(Break{On: "commit", Every: 2})
	for n, lost := range []bool{false, true, false, true, false, true} {
		if err := commitThrough(t, p.URL, 10+n); (err != nil) != lost {
			t.Errorf("commit %d ends in %v, want it lost: %t", n, err, lost)
		}
	}
	p.Heal()
	if err := commitThrough(t, p.URL, 2); err != nil {
		t.Errorf("a commit after Heal: %v", err)
	}
	if replies, sends, halves := p.Struck(); replies != 1 || sends != 1 || halves != 1 {
		t.Errorf("broke %d replies, %d commits and %d halves, want one of each", replies, sends, halves)
	}
	rows, err := db.Owner(t).Query(t.Context(), "select n from public.row order by n")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || !slices.Equal(got, []int{1, 2, 10, 11, 12, 14}) {
		t.Errorf("rows = %v, %v; want all but 13 and 15, whose commits never arrived", got, err)
	}
}

// A connection that hangs tells neither side anything until it is healed: the client's
// patience ends, and its session stays open on the server.
func TestAProxyThatHangsTellsNobody(t *testing.T) {
	t.Parallel()
	db := New(t)
	db.Exec(t, "create table public.row (n integer not null)")
	p := NewProxy(t, db.OwnerURL)
	p.Break(Break{On: "insert", Every: 1, Hang: true})
	conn, err := pgx.Connect(t.Context(), p.URL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "begin"); err != nil {
		t.Fatal(err)
	}
	pid := conn.PgConn().PID()
	impatient, cancel := context.WithCancel(t.Context())
	var asking errgroup.Group
	asking.Go(func() error {
		_, err := conn.Exec(impatient, "insert into public.row values (1)")
		return err
	})
	for replies := 0; replies == 0 && t.Context().Err() == nil; {
		replies, _, _ = p.Struck()
	}
	cancel()
	if err := asking.Wait(); err == nil {
		t.Error("an answer came through")
	}
	open := func() (n int) {
		err := db.Owner(t).QueryRow(t.Context(), "select count(*) from pg_stat_activity where pid = $1", pid).Scan(&n)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if open() != 1 {
		t.Error("the server learned that its client is gone")
	}
	p.Heal()
	for open() != 0 {
		if t.Context().Err() != nil {
			t.Fatal("the session is still open")
		}
	}
}

// What was committed is there after a crash, on a server that is started on the same
// directory.
func TestACrashedServerRecovers(t *testing.T) {
	t.Parallel()
	options := devpg.Options{Dir: Dir(t), Fsync: true}
	server := Server(t, options)
	conn, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "create table kept (n integer); insert into kept values (1)"); err != nil {
		t.Fatal(err)
	}
	Crash(t, server)
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a connection outlives the crash")
	}
	again, err := pgx.Connect(t.Context(), Server(t, options).URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close(t.Context())
	var n int
	if err := again.QueryRow(t.Context(), "select n from kept").Scan(&n); err != nil || n != 1 {
		t.Errorf("the row = %d, %v; want 1", n, err)
	}
}
