//go:build unix

package pgtest

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/internal/devpg"
)

// growSQL needs a good deal more space than is left on a full disk.
const growSQL = "insert into public.grown select repeat('x', 1000) from generate_series(1, 10000)"

// A database on a full disk refuses what needs space, goes on serving what does not, and
// works once there is space again.
func TestADatabaseOnAFullDiskRefusesToGrow(t *testing.T) {
	t.Parallel()
	server := Server(t, devpg.Options{})
	disk := NewDisk(t, server, 96<<20)
	db := On(t, server)
	disk.Take(t, db, server)
	db.Exec(t, "create table public.grown (text text not null)")
	db.Exec(t, growSQL)
	disk.Fill(t)
	_, err := db.Owner(t).Exec(t.Context(), growSQL)
	var refused *pgconn.PgError
	if !errors.As(err, &refused) || refused.Code != "53100" {
		t.Fatalf("a row on a full disk: %v, want SQLSTATE 53100", err)
	}
	db.Exec(t, "select count(*) from public.grown")
	disk.Free(t)
	db.Exec(t, growSQL)
}

// A server whose log has no space ends, whatever it does, and loses nothing.
func TestAServerWithoutSpaceForItsLogEndsAndRecovers(t *testing.T) {
	t.Parallel()
	options := devpg.Options{Dir: Dir(t)}
	server := Server(t, options)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	disk := NewDisk(t, server, 48<<20)
	disk.TakeLog(t, server)
	server = Server(t, options)
	url := server.URL("postgres")
	execOn(t, url, "create table public.grown (text text not null)", "insert into public.grown values ('kept')")
	disk.Fill(t)
	for ended := false; !ended; { // it may come back once or twice before the last page is used
		if conn, err := pgx.Connect(t.Context(), url); err == nil {
			for err == nil {
				_, err = conn.Exec(t.Context(), growSQL)
			}
			_ = conn.Close(t.Context())
		}
		select {
		case <-server.Exited():
			ended = true
		default:
		}
	}
	if err := server.Stop(); err != nil { // gives the directory's lock back
		t.Fatal(err)
	}
	if _, err := devpg.Start(t.Context(), options); err == nil {
		t.Fatal("it starts on a full disk")
	}
	disk.Free(t)
	Server(t, options)
	awaitOn(t, url, "the row is there", "select exists (select from public.grown where text = 'kept')")
}
