package pgtest

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
)

func TestMain(m *testing.M) { Main(m) }

func now(t *testing.T, db *DB) time.Time {
	t.Helper()
	var at time.Time
	// As the service: the clock must work with no more rights than it has.
	if err := db.Service(t).QueryRow(t.Context(), "select quotad.decision_clock()").Scan(&at); err != nil {
		t.Fatalf("decision_clock: %v", err)
	}
	return at.UTC()
}

func TestDatabasesArePrivateAndMigrated(t *testing.T) {
	t.Parallel()
	one, two := New(t), New(t)
	insert := "insert into quotad.account (tenant, plan, head_hash) values ('acme', 'pro', sha256(''))"
	one.Exec(t, insert)
	two.Exec(t, insert)
	if one.Name == two.Name {
		t.Errorf("two databases are both named %s", one.Name)
	}
}

func TestServiceLoginOwnsNothingAndCannotChangeTheSchema(t *testing.T) {
	t.Parallel()
	db := New(t)
	pool := db.Service(t)
	var member bool
	err := pool.QueryRow(t.Context(), "select pg_has_role(current_user, 'quotad_service', 'usage')").Scan(&member)
	if err != nil || !member {
		t.Errorf("member of quotad_service = %t, %v, want true", member, err)
	}
	for _, sql := range []string{"create table quotad.mine ()", "create table public.mine ()", "create schema mine"} {
		if _, err := pool.Exec(t.Context(), sql); err == nil {
			t.Errorf("%s as the service login succeeded", sql)
		}
	}
}

func TestClockIsSetAdvancedAndMadeReal(t *testing.T) {
	t.Parallel()
	db := New(t)
	at := time.Date(2024, 2, 29, 23, 59, 59, 999_999_000, time.UTC)
	db.SetClock(t, at)
	if got := now(t, db); !got.Equal(at) {
		t.Errorf("after SetClock(%v) it is %v", at, got)
	}
	db.AdvanceClock(t, time.Microsecond)
	if got, want := now(t, db), at.Add(time.Microsecond); !got.Equal(want) {
		t.Errorf("after AdvanceClock it is %v, want %v", got, want)
	}
	db.SetClock(t, at.Add(-time.Hour))
	if got, want := now(t, db), at.Add(-time.Hour); !got.Equal(want) {
		t.Errorf("after a second SetClock it is %v, want %v", got, want)
	}
	db.RealClock(t)
	if got := time.Since(now(t, db)); got.Abs() > time.Minute {
		t.Errorf("after RealClock it is %v from now", got)
	}
	other := New(t)
	db.SetClock(t, at)
	if got := now(t, other); got.Equal(at) {
		t.Error("SetClock changed another database's clock")
	}
}

func TestDatabaseIsDroppedWithConnectionsOpen(t *testing.T) {
	t.Parallel()
	var name string
	var forgotten *pgx.Conn
	t.Run("user", func(t *testing.T) {
		db := New(t)
		name = db.Name
		conn, err := pgx.Connect(context.Background(), db.URL)
		if err != nil {
			t.Fatal(err)
		}
		forgotten = conn
	})
	defer forgotten.Close(t.Context())
	var exists bool
	err := Blank(t).Owner(t).QueryRow(t.Context(),
		"select exists (select from pg_database where datname = $1)", name).Scan(&exists)
	if err != nil || exists {
		t.Errorf("database %s exists = %t, %v, want false", name, exists, err)
	}
}

func TestDatabaseOnOwnServerSurvivesItsRestart(t *testing.T) {
	t.Parallel()
	o := devpg.Options{Dir: filepath.Join(Dir(t), "pg")}
	server := Server(t, o)
	db := On(t, server)
	db.SetClock(t, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC))
	if err := server.Stop(); err != nil {
		t.Fatalf("Stop: %v", err)
	}
	Server(t, o)
	if got := now(t, db); got.Year() != 2020 {
		t.Errorf("after a restart the set clock says %v", got)
	}
}

func TestNamesAreIdentifiers(t *testing.T) {
	t.Parallel()
	for _, test := range []string{"TestX/sub case=1", "Test" + strings.Repeat("Long", 40), "TestÜmlaut/\"; drop"} {
		name := databaseName(test)
		if len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789_") != "" {
			t.Errorf("databaseName(%q) = %q, not a plain identifier", test, name)
		}
	}
}

// Two processes that share a server must end up with one template; here two clusters
// stand for them.
func TestOneTemplateForSeveralProcesses(t *testing.T) {
	t.Parallel()
	server := Server(t, devpg.Options{})
	names := make(chan string)
	for range 2 {
		c, err := newCluster(t.Context(), server.URL("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.close)
		go func() {
			name, err := c.ensureTemplate(t.Context())
			if err != nil {
				name = err.Error()
			}
			names <- name
		}()
	}
	if one, two := <-names, <-names; one != two {
		t.Errorf("templates = %q and %q, want the same", one, two)
	}
}

func TestDirCanBeEnteredByOthers(t *testing.T) {
	t.Parallel()
	info, err := os.Stat(Dir(t))
	if err != nil || info.Mode().Perm() != 0o711 {
		t.Errorf("mode of Dir = %v, %v, want 0711", info.Mode(), err)
	}
}
