package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/devpg"
)

const (
	serviceLogin = "quotad_test"
	// setUpMax bounds each statement here; a clone on a slow disk takes a second.
	setUpMax = time.Minute
	// ownerConns leaves the server's connections to the code under test.
	ownerConns = 4
	// serviceConns is enough for a few concurrent callers; a test of many opens its
	// own pool on DB.URL.
	serviceConns = 10
	// nameTextMax keeps a database's name below PostgreSQL's 63 bytes.
	nameTextMax = 40
)

// DB is one test's own database. It is gone when the test has ended.
type DB struct {
	Name string
	// URL is for the code under test: a login that is a member of quotad_service and
	// owns nothing.
	URL string
	// OwnerURL is for setting up and for looking inside: a superuser.
	OwnerURL string

	owner *pgxpool.Pool
}

// New returns a new database with the newest schema and no rows but those of the
// migrations.
func New(t testing.TB) *DB {
	t.Helper()
	c := shared.cluster(t)
	template, err := c.ensureTemplate(t.Context())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c.newDB(t, template)
}

// Blank returns a new database without a schema, for tests of the migrations.
func Blank(t testing.TB) *DB {
	t.Helper()
	return shared.cluster(t).newDB(t, "template1")
}

// On is New on a server of the test's own, which a test may stop and start again.
func On(t testing.TB, server *devpg.Server) *DB {
	t.Helper()
	c, err := newCluster(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	t.Cleanup(c.close)
	template, err := c.ensureTemplate(t.Context())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return c.newDB(t, template)
}

// Owner returns a small pool as the owner, closed when the test ends; every call
// returns the same one.
func (db *DB) Owner(testing.TB) *pgxpool.Pool { return db.owner }

// Service returns a new pool as the service login, closed when the test ends.
func (db *DB) Service(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool := openPool(t, db.URL, serviceConns)
	t.Cleanup(pool.Close)
	return pool
}

// Exec runs one statement as the owner.
func (db *DB) Exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := db.owner.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("pgtest: %s: %v", sql, err)
	}
}

// At is the same database on another server, such as a standby of its own.
func (db *DB) At(t testing.TB, server *devpg.Server) *DB {
	t.Helper()
	c := cluster{}
	var err error
	if c.base, err = url.Parse(server.URL(db.Name)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	other := c.addresses(db.Name)
	other.owner = openPool(t, other.OwnerURL, ownerConns)
	t.Cleanup(other.owner.Close)
	return other
}

// SetClock makes every decision in this database happen at the given instant, until
// the clock is set again, advanced, or made real. Decisions see it in their next
// statement.
func (db *DB) SetClock(t testing.TB, at time.Time) {
	t.Helper()
	db.Exec(t, "select pgtest.set_clock($1)", at)
}

// AdvanceClock moves a clock that SetClock has set; d may be negative.
func (db *DB) AdvanceClock(t testing.TB, d time.Duration) {
	t.Helper()
	tag, err := db.owner.Exec(t.Context(), "update pgtest.clock set at = at + $1", d)
	if err != nil {
		t.Fatalf("pgtest: advance the clock: %v", err)
	}
	if tag.RowsAffected() != 1 {
		t.Fatal("pgtest: AdvanceClock needs a SetClock before it")
	}
}

// RealClock undoes SetClock.
func (db *DB) RealClock(t testing.TB) {
	t.Helper()
	db.Exec(t, "select pgtest.real_clock()")
}

// newDB clones template. file_copy and wal_log took the same time here; wal_log is
// PostgreSQL's default and needs no checkpoint, so parallel tests do not wait on one.
func (c *cluster) newDB(t testing.TB, template string) *DB {
	t.Helper()
	name := databaseName(t.Name())
	ctx, cancel := context.WithTimeout(t.Context(), setUpMax)
	defer cancel()
	if _, err := c.admin.Exec(ctx, "create database "+name+" template "+template); err != nil {
		t.Fatalf("pgtest: create database %s: %v", name, err)
	}
	t.Cleanup(func() { c.drop(t, name) })
	db := c.addresses(name)
	db.owner = openPool(t, db.OwnerURL, ownerConns)
	t.Cleanup(db.owner.Close)
	return db
}

// addresses are where a database of the server is.
func (c *cluster) addresses(name string) *DB {
	return &DB{
		Name:     name,
		URL:      c.databaseURL(name, url.UserPassword(serviceLogin, serviceLogin)),
		OwnerURL: c.databaseURL(name, c.base.User),
	}
}

// execOn runs statements on a connection of its own, as a superuser must for some that
// concern the whole server.
func execOn(t testing.TB, databaseURL string, statements ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), setUpMax)
	defer cancel()
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer conn.Close(ctx)
	for _, sql := range statements {
		if _, err := conn.Exec(ctx, sql); err != nil {
			t.Fatalf("pgtest: %s: %v", sql, err)
		}
	}
}

// drop removes a test's database, connections that the test forgot included, or keeps
// it for whoever looks into the failure.
func (c *cluster) drop(t testing.TB, name string) {
	if t.Failed() && c.outlives {
		t.Logf("pgtest: database %s is kept", name)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), setUpMax) // the test's own has ended
	defer cancel()
	if _, err := c.admin.Exec(ctx, "drop database "+name+" with (force)"); err != nil && c.outlives {
		t.Errorf("pgtest: drop database %s: %v", name, err)
	}
}

func openPool(t testing.TB, databaseURL string, conns int32) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return pool
}

// databaseName is the test's name as an identifier that needs no quotes, and is new.
func databaseName(test string) string {
	text := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		default:
			return '_'
		}
	}, test)
	random := make([]byte, 6)
	rand.Read(random) // never fails
	return "t_" + text[:min(len(text), nameTextMax)] + "_" + hex.EncodeToString(random)
}

// Hold locks a tenant's account in a transaction of an outsider's, until it ends.
func (db *DB) Hold(t testing.TB, tenant string) (outsider pgx.Tx) {
	t.Helper()
	outsider, err := db.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = outsider.Rollback(context.Background()) })
	if _, err := outsider.Exec(t.Context(), "select from quotad.account where tenant = $1 for update", tenant); err != nil {
		t.Fatal(err)
	}
	return outsider
}

// AwaitWaiter waits until a session of the database waits for a lock, or done is closed or
// sent to, which fails the test: nothing waited.
func AwaitWaiter[T any](t testing.TB, db *DB, done <-chan T) {
	t.Helper()
	for waiting := false; !waiting; {
		err := db.owner.QueryRow(t.Context(), `select exists (
			select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-done:
			t.Fatalf("nothing waits for the lock: %v", got)
		default:
		}
	}
}
