package pgtest

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

const (
	// struckMax is far beyond what a strike takes; it only ends a broken test.
	struckMax = 10 * time.Second
	// patience is how long a test lets a hanging call hang.
	patience = 50 * time.Millisecond
)

// faulty returns a connection through f, and a count of the rows in its table.
func faulty(t *testing.T, f *Faults) (*pgx.Conn, func() int) {
	t.Helper()
	db := New(t)
	db.Exec(t, "create table public.row (n int)")
	db.Exec(t, "grant all on public.row to quotad_service")
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	f.Attach(&config.Config)
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn, func() (rows int) {
		if err := db.Owner(t).QueryRow(t.Context(), "select count(*) from public.row").Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
}

// commitRow returns the error of the statement that failed, not of a rollback after it.
func commitRow(ctx context.Context, conn *pgx.Conn) error {
	for _, sql := range []string{"begin", "insert into public.row values (1)", "commit"} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return nil
}

func wantStruck(t *testing.T, struck <-chan struct{}) {
	t.Helper()
	select {
	case <-struck:
	case <-time.After(struckMax):
		t.Fatal("the fault did not strike")
	}
}

func TestNoFaultChangesNothing(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, rows := faulty(t, &f)
	if err := commitRow(t.Context(), conn); err != nil {
		t.Fatalf("commit: %v", err)
	}
	if got := rows(); got != 1 {
		t.Errorf("rows = %d, want 1", got)
	}
	if f.Dials() != 1 || f.Cancels() != 0 {
		t.Errorf("dials = %d, cancels = %d, want 1 and 0", f.Dials(), f.Cancels())
	}
}

func TestCutBeforeCommitAppliesNothing(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, rows := faulty(t, &f)
	struck := f.Arm(Fault{OnStatement: "commit"})
	if err := commitRow(t.Context(), conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("commit: %v, want %v", err, syscall.ECONNRESET)
	}
	wantStruck(t, struck)
	if got := rows(); got != 0 {
		t.Errorf("rows = %d, want 0", got)
	}
}

func TestLostReplyToCommitLeavesItApplied(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, rows := faulty(t, &f)
	struck := f.Arm(Fault{OnStatement: "commit", Deliver: true})
	if err := commitRow(t.Context(), conn); err == nil || !conn.IsClosed() {
		t.Errorf("commit: %v with closed = %t, want an error and closed", err, conn.IsClosed())
	}
	wantStruck(t, struck)
	if got := rows(); got != 1 {
		t.Errorf("rows = %d, want 1: the commit was delivered", got)
	}
}

func TestSilenceAfterCommitLastsUntilTheDeadline(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, rows := faulty(t, &f)
	struck := f.Arm(Fault{OnStatement: "commit", Deliver: true, Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error)
	go func() { result <- commitRow(ctx, conn) }()
	wantStruck(t, struck)
	if got := rows(); got != 1 {
		t.Errorf("rows = %d, want 1", got)
	}
	select {
	case err := <-result:
		t.Errorf("commit returned early: %v", err)
	case <-time.After(patience):
		cancel()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("commit: %v, want %v", err, context.Canceled)
		}
	}
	cancel()
}

func TestBlackHoleDeliversNothing(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, rows := faulty(t, &f)
	struck := f.Arm(Fault{OnStatement: "commit", Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := commitRow(ctx, conn); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("commit: %v, want %v", err, context.DeadlineExceeded)
	}
	wantStruck(t, struck)
	if got := rows(); got != 0 {
		t.Errorf("rows = %d, want 0", got)
	}
}

func TestCutByBytes(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]Fault{
		"sent": {AfterSentBytes: 300},
		"read": {AfterReadBytes: 800},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var f Faults
			conn, _ := faulty(t, &f)
			struck := f.Arm(fault)
			var text string
			err := conn.QueryRow(t.Context(), "select repeat($1::text, 1000)", "0123456789").Scan(&text)
			for err == nil {
				err = conn.QueryRow(t.Context(), "select repeat($1::text, 1000)", "0123456789").Scan(&text)
			}
			wantStruck(t, struck)
			if !conn.IsClosed() {
				t.Error("the connection is open after a cut")
			}
		})
	}
}

func TestRefusedAndCutConnections(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, _ := faulty(t, &f)
	f.Refuse(syscall.ECONNREFUSED)
	if _, err := pgx.ConnectConfig(t.Context(), conn.Config()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect: %v, want %v", err, syscall.ECONNREFUSED)
	}
	if got := f.Dials(); got != 2 {
		t.Errorf("dials = %d, want 2", got)
	}
	f.CutAll()
	if _, err := conn.Exec(t.Context(), "select 1"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("exec after CutAll: %v, want %v", err, syscall.ECONNRESET)
	}
	f.Refuse(nil)
	again, err := pgx.ConnectConfig(t.Context(), conn.Config())
	if err != nil {
		t.Fatalf("connect after Refuse(nil): %v", err)
	}
	again.Close(t.Context())
}

func TestCancelRequestsAreCounted(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, _ := faulty(t, &f)
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatalf("cancel: %v", err)
	}
	if got := f.Cancels(); got != 1 {
		t.Errorf("cancels = %d, want 1", got)
	}
}

// pg sessions prepare their statements once: the text passes when it is prepared, and
// only its name when it runs.
func TestPreparedStatementStrikesWhenItRuns(t *testing.T) {
	t.Parallel()
	var f Faults
	conn, rows := faulty(t, &f)
	struck := f.Arm(Fault{OnStatement: "insert into public.row", Deliver: true})
	description, err := conn.Prepare(t.Context(), "add", "insert into public.row values ($1)")
	if err != nil || len(description.ParamOIDs) != 1 {
		t.Fatalf("prepare: %v, %v", description, err)
	}
	select {
	case <-struck:
		t.Fatal("the fault struck when the statement was prepared")
	default:
	}
	var batch pgx.Batch
	batch.Queue("add", 1)
	batch.Queue("add", 2)
	if err := conn.SendBatch(t.Context(), &batch).Close(); err == nil {
		t.Error("the batch succeeded without its reply")
	}
	wantStruck(t, struck)
	if got := rows(); got != 2 {
		t.Errorf("rows = %d, want 2: the batch was delivered whole", got)
	}
}

func TestMessagesAreCutHoweverTheyArrive(t *testing.T) {
	t.Parallel()
	stream := []byte("\x00\x00\x00\x08\x00\x03\x00\x00" + // startup
		"P\x00\x00\x00\x10one\x00select\x00\x00" + // parse
		"B\x00\x00\x00\x09\x00one\x00" + // bind
		"S\x00\x00\x00\x04" + // sync
		"Q\x00\x00\x00\x0bcommit\x00")
	for size := 1; size <= len(stream); size++ {
		r := requests{messages: messages{untyped: true}, prepared: map[string]string{}}
		var got []string
		for part := range slices.Chunk(stream, size) {
			got = append(got, r.feed(part)...)
		}
		if diff := cmp.Diff([]string{"select", "commit"}, got); diff != "" || r.unready != 3 {
			t.Errorf("in parts of %d: unready = %d, want 3; statements (-want +got):\n%s", size, r.unready, diff)
		}
	}
}
