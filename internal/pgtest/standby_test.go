//go:build unix

package pgtest

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
)

// What a primary acknowledged is on its standby when the primary is lost; what waits for
// a stalled standby is not, and an address that follows the primary leads to the other.
func TestAStandbyHasWhatWasAcknowledgedAndNoMore(t *testing.T) {
	t.Parallel()
	primary := Server(t, devpg.Options{})
	db := On(t, primary)
	db.Exec(t, "create table public.row (n integer not null)")
	options := devpg.Options{Dir: Dir(t)}
	standby := Standby(t, primary, options)
	proxy := NewProxy(t, db.OwnerURL)
	if err := commitThrough(t, proxy.URL, 1); err != nil {
		t.Fatal(err)
	}
	StallStandby(t, standby)
	waiting := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		conn, err := pgx.Connect(ctx, proxy.URL)
		if err == nil {
			_, err = conn.Exec(ctx, "insert into public.row values (2)")
			_ = conn.Close(ctx)
		}
		waiting <- err
	}()
	awaitOn(t, primary.URL("postgres"), "a commit waits", "select exists (select from pg_stat_activity where wait_event = 'SyncRep')")
	Crash(t, primary)
	if err := <-waiting; err == nil {
		t.Error("a commit that waited for its standby was acknowledged when the primary was lost")
	}
	Crash(t, standby)
	standby = Server(t, options)
	Promote(t, standby)
	proxy.Redirect(t, db.At(t, standby).OwnerURL)
	if err := commitThrough(t, proxy.URL, 3); err != nil {
		t.Errorf("a commit on what was the standby: %v", err)
	}
	rows, err := db.At(t, standby).Owner(t).Query(t.Context(), "select n from public.row order by n")
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil || len(got) != 2 || got[0] != 1 || got[1] != 3 {
		t.Errorf("rows = %v, %v; want the first, which was acknowledged, and the third", got, err)
	}
}
