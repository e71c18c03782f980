package pgtest

import (
	"testing"

	"github.com/jackc/pgx/v5"

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

// A commit whose reply is lost is done, one that is lost on its way is not, and the
// client cannot tell them apart.
func TestAProxyLosesCommitsByTurns(t *testing.T) {
	t.Parallel()
	db := New(t)
	db.Exec(t, "create table public.row (n integer not null)")
	p := NewProxy(t, db.OwnerURL)
	if err := commitThrough(t, p.URL, 1); err != nil {
		t.Fatalf("a commit that is not to be lost: %v", err)
	}
	p.LoseCommits(2)
	for n, lost := range []bool{false, true, false, true, false, true} {
		if err := commitThrough(t, p.URL, 10+n); (err != nil) != lost {
			t.Errorf("commit %d ends in %v, want it lost: %t", n, err, lost)
		}
	}
	p.LoseCommits(0)
	if err := commitThrough(t, p.URL, 2); err != nil {
		t.Errorf("a commit after LoseCommits(0): %v", err)
	}
	if replies, sends := p.Lost(); replies != 2 || sends != 1 {
		t.Errorf("lost %d replies and %d commits, want 2 and 1", replies, sends)
	}
	rows, err := db.Owner(t).Query(t.Context(), "select n from public.row order by n")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(got) != 7 || got[5] != 14 || got[6] != 15 {
		t.Errorf("rows = %v, %v; want all but 13, whose commit never arrived", got, err)
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
