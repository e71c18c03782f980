package pg

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
)

const (
	// bound is far beyond what a healthy round trip takes; it only ends a broken test.
	bound = 30 * time.Second
	// shortBound is for round trips that must not end by themselves.
	shortBound = 100 * time.Millisecond
)

// bench is a session through faults, and a table for it to write to.
type bench struct {
	db      *pgtest.DB
	faults  *pgtest.Faults
	session *Session
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return benchOn(t, pgtest.New(t), nil)
}

// benchOn opens a session on db whose connection starts with the parameters.
func benchOn(t *testing.T, db *pgtest.DB, parameters map[string]string) *bench {
	t.Helper()
	db.Exec(t, `create table public.row (n integer not null,
		constraint row_small check (n < 100), constraint row_once unique (n) deferrable initially deferred)`)
	db.Exec(t, "grant all on public.row to quotad_service")
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{db: db, faults: new(pgtest.Faults)}
	b.faults.Attach(&config.Config)
	for name, value := range parameters {
		config.RuntimeParams[name] = value
	}
	before := len(config.RuntimeParams)
	if b.session, err = Connect(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	if len(config.RuntimeParams) != before {
		t.Error("Connect changed the caller's configuration")
	}
	t.Cleanup(func() { b.end() })
	return b
}

// end closes the session and waits until nothing of it is left.
func (b *bench) end() {
	b.session.Close()
	_ = b.session.conn.Close(context.Background())
	<-b.session.conn.PgConn().CleanupDone()
}

// insert begins a transaction that inserts rows and commits it.
func (b *bench) insert(t *testing.T, timeout time.Duration, rows ...int) error {
	t.Helper()
	var batch pgx.Batch
	Begin(&batch)
	for _, n := range rows {
		batch.Queue("insert into public.row values ($1)", n)
	}
	return b.session.Commit(t.Context(), &batch, timeout)
}

func (b *bench) rows(t *testing.T) (rows int) {
	t.Helper()
	if err := b.db.Owner(t).QueryRow(t.Context(), "select count(*) from public.row").Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// wantNoCancel waits for the end of a closed session's connection and checks that
// nothing was dialled but the session itself: a cancel would be a second connection.
func (b *bench) wantNoCancel(t *testing.T) {
	t.Helper()
	if !b.session.Closed() {
		t.Error("the session is open after its connection failed")
	}
	b.end()
	if b.faults.Cancels() != 0 || b.faults.Dials() != 1 {
		t.Errorf("got %d cancels and %d dials, want 0 and 1", b.faults.Cancels(), b.faults.Dials())
	}
}

func TestCommitReturnsNilWhenItWasAcknowledged(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for n := range 3 {
		if err := b.insert(t, bound, n); err != nil {
			t.Fatalf("commit %d: %v", n, err)
		}
	}
	if got := b.rows(t); got != 3 {
		t.Errorf("rows = %d, want 3", got)
	}
}

// PostgreSQL answers the commit of a failed transaction with success and the tag
// ROLLBACK: taken for a commit, it would be an allow that is in no ledger.
func TestCommitOfAFailedTransactionIsAnError(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var batch pgx.Batch
	Begin(&batch)
	batch.Queue("insert into public.row values (1)")
	batch.Queue("insert into public.row values (100)")
	if err := b.session.Send(t.Context(), &batch, bound); !Refused(err) {
		t.Fatalf("Send: %v, want a refusal", err)
	}
	err := b.session.Commit(t.Context(), new(pgx.Batch), bound)
	if err == nil || errors.Is(err, ErrCommitUnknown) {
		t.Errorf("Commit: %v, want an error that says nothing was committed", err)
	}
	if got := b.rows(t); got != 0 {
		t.Errorf("rows = %d, want 0", got)
	}
	if err := b.insert(t, bound, 1); err != nil {
		t.Errorf("the next transaction: %v", err)
	}
}

// A refusal is the server's word that nothing was committed, so the batch may run
// again, in parts, on the same session.
func TestARefusedStatementLeavesTheSessionUsable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		rows []int
		code string
	}{
		{"a statement", []int{1, 100, 2}, CodeCheckViolation},
		{"the commit itself", []int{0}, CodeUniqueViolation},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.db.Exec(t, "insert into public.row values (0)")
			err := b.insert(t, bound, c.rows...)
			if !Refused(err) || errors.Is(err, ErrCommitUnknown) || Code(err) != c.code {
				t.Fatalf("Commit: %v, want a refusal with code %s", err, c.code)
			}
			if b.session.Closed() {
				t.Fatal("the session is closed")
			}
			b.session.Rollback(t.Context(), bound)
			if err := b.insert(t, bound, 3); err != nil {
				t.Errorf("after Rollback: %v", err)
			}
			if got := b.rows(t); got != 2 {
				t.Errorf("rows = %d, want 2", got)
			}
		})
	}
}

// Whatever happens to the connection of a commit, nobody is told that it happened or
// that it did not; and no cancel is sent after it.
func TestALostReplyToCommitIsUnknown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		fault   pgtest.Fault
		timeout time.Duration
		rows    int
	}{
		{"reset after it was done", pgtest.Fault{OnStatement: "commit", Deliver: true}, bound, 1},
		{"reset before it arrived", pgtest.Fault{OnStatement: "commit"}, bound, 0},
		{"silence after it was done", pgtest.Fault{OnStatement: "commit", Deliver: true, Hang: true}, shortBound, 1},
		{"silence before it arrived", pgtest.Fault{OnStatement: "commit", Hang: true}, shortBound, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			struck := b.faults.Arm(c.fault)
			err := b.insert(t, c.timeout, 1)
			if !errors.Is(err, ErrCommitUnknown) || Refused(err) {
				t.Errorf("Commit: %v, want %v", err, ErrCommitUnknown)
			}
			select {
			case <-struck:
			default:
				t.Error("the fault did not strike")
			}
			b.wantNoCancel(t)
			if got := b.rows(t); got != c.rows {
				t.Errorf("rows = %d, want %d", got, c.rows)
			}
			b.session.Rollback(t.Context(), bound) // of a closed session: nothing, and no panic
		})
	}
}

// A server that ends the connection itself says so with severity FATAL: the statement
// before it may be a commit that was carried out.
func TestATerminatedBackendIsNotARefusal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var batch pgx.Batch
	Begin(&batch)
	batch.Queue("select pg_terminate_backend(pg_backend_pid())")
	err := b.session.Commit(t.Context(), &batch, bound)
	if !errors.Is(err, ErrCommitUnknown) || Refused(err) {
		t.Errorf("Commit: %v, want %v", err, ErrCommitUnknown)
	}
	b.wantNoCancel(t)
}

func TestABoundThatEndsClosesTheSocketAndSendsNoCancel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var batch pgx.Batch
	Begin(&batch)
	batch.Queue("select pg_sleep(3600)")
	err := b.session.Send(t.Context(), &batch, shortBound)
	if err == nil || Refused(err) {
		t.Errorf("Send: %v, want an error that is no refusal", err)
	}
	b.wantNoCancel(t)
	var running bool
	err = b.db.Owner(t).QueryRow(t.Context(),
		"select exists (select from pg_stat_activity where pid = $1 and state = 'active')", b.session.conn.PgConn().PID()).Scan(&running)
	if err != nil || !running {
		t.Errorf("the statement still runs = %t, %v, want true: nobody cancelled it", running, err)
	}
}

func TestACallersEndDoesNotEndARoundTrip(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var batch pgx.Batch
	Begin(&batch)
	batch.Queue("insert into public.row values (1)")
	if err := b.session.Commit(ctx, &batch, bound); err != nil {
		t.Errorf("Commit with a context that has ended: %v", err)
	}
	b.session.Rollback(ctx, bound)
	if got := b.rows(t); got != 1 || b.session.Closed() {
		t.Errorf("rows = %d, closed = %t, want 1 and open", got, b.session.Closed())
	}
}

func TestQueryEndsWithItsContextAndSendsNoCancel(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ctx, cancel := context.WithTimeout(t.Context(), shortBound)
	defer cancel()
	rows, err := b.session.Query(ctx, "select pg_sleep(3600)")
	if err == nil {
		rows.Next()
		err = rows.Err()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Query: %v, want %v", err, context.DeadlineExceeded)
	}
	b.wantNoCancel(t)
}

// A commit whose wait for its standby was cut short is on this server and nowhere
// else: a failover would take it back.
func TestACommitThatDidNotWaitForItsStandbyIsUnknown(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, devpg.Options{Settings: map[string]string{
		"synchronous_standby_names": "nobody", "synchronous_commit": "local",
	}})
	db := pgtest.On(t, server)
	b := benchOn(t, db, map[string]string{"synchronous_commit": "on"})
	committed := make(chan error, 1)
	go func() { committed <- b.insert(t, bound, 1) }()
	owner, pid := db.Owner(t), b.session.conn.PgConn().PID()
	for waiting := false; !waiting; {
		err := owner.QueryRow(t.Context(),
			"select exists (select from pg_stat_activity where pid = $1 and wait_event = 'SyncRep')", pid).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-committed:
			t.Fatalf("Commit did not wait for its standby: %v", err)
		default:
		}
	}
	if _, err := owner.Exec(t.Context(), "select pg_cancel_backend($1)", pid); err != nil {
		t.Fatal(err)
	}
	if err := <-committed; !errors.Is(err, ErrCommitUnknown) {
		t.Errorf("Commit: %v, want %v", err, ErrCommitUnknown)
	}
	if got := b.rows(t); got != 1 {
		t.Errorf("rows = %d, want 1: the commit is on this server", got)
	}
	b.wantNoCancel(t)
}

// A warning of an earlier round trip says nothing about a later commit.
func TestAnOldWarningDoesNotSpoilACommit(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var batch pgx.Batch
	batch.Queue("do $$ begin raise warning 'something else'; end $$")
	if err := b.session.Send(t.Context(), &batch, bound); err != nil {
		t.Fatal(err)
	}
	if err := b.insert(t, bound, 1); err != nil {
		t.Errorf("Commit: %v", err)
	}
}

func TestSessionsStartWithTheirSettings(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	got := make(map[string]string)
	var batch pgx.Batch
	Begin(&batch)
	want := map[string]string{
		"TimeZone":                            "UTC",
		"transaction_isolation":               "read committed",
		"default_transaction_isolation":       "read committed",
		"lock_timeout":                        "1s",
		"idle_in_transaction_session_timeout": "10s",
		"plan_cache_mode":                     "force_generic_plan",
		"enable_seqscan":                      "off",
		"enable_hashjoin":                     "off",
		"enable_mergejoin":                    "off",
		"jit":                                 "off",
	}
	for name := range want {
		batch.Queue("select current_setting($1)", name).QueryRow(func(row pgx.Row) error {
			var value string
			err := row.Scan(&value)
			got[name] = value
			return err
		})
	}
	if err := b.session.Commit(t.Context(), &batch, bound); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

// An instance that vanished in a transaction must not hold a tenant's lock for ever.
func TestALockHeldElsewhereIsWaitedForOneSecond(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.db.Exec(t, "insert into public.row values (1)")
	outsider, err := b.db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer outsider.Rollback(context.WithoutCancel(t.Context()))
	if _, err := outsider.Exec(t.Context(), "select from public.row for update"); err != nil {
		t.Fatal(err)
	}
	var batch pgx.Batch
	Begin(&batch)
	batch.Queue("select n from public.row for update")
	err = b.session.Send(t.Context(), &batch, bound)
	if Code(err) != CodeLockNotAvailable || !Refused(err) || b.session.Closed() {
		t.Errorf("Send: %v with closed = %t, want code %s on an open session", err, b.session.Closed(), CodeLockNotAvailable)
	}
}

func TestConnectSaysThatThereIsNoDatabase(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.Database = "nowhere"
	_, err = Connect(t.Context(), config)
	if Code(err) != "3D000" || Refused(err) {
		t.Errorf("Connect: %v, want code 3D000, and no refusal: there is no connection that goes on", err)
	}
}
