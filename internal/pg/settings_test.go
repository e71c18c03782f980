package pg

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pgtest"
)

// settingsIn returns what the settings are in the next round trip of s.
func settingsIn(t *testing.T, s *Session, begin bool, settings []Setting) (got []Setting) {
	t.Helper()
	var batch pgx.Batch
	if begin {
		Begin(&batch)
	}
	for _, want := range settings {
		batch.Queue("select current_setting($1)", want.Name).QueryRow(func(row pgx.Row) error {
			var value string
			err := row.Scan(&value)
			got = append(got, Setting{want.Name, value})
			return err
		})
	}
	if begin {
		batch.Queue("commit")
	}
	if err := s.Send(t.Context(), &batch, bound); err != nil {
		t.Fatal(err)
	}
	return got
}

// Behind a pooler the next client of a server's session must not inherit plans made for
// decisions, and a decision must not depend on whose session it gets.
func TestAPooledTransactionSetsItsPlansAndLeavesNone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ConnectPooled(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if n := len(s.conn.Config().RuntimeParams); n != 0 {
		t.Errorf("the session starts with %d parameters, which a pooler refuses", n)
	}
	for range 2 {
		for i, got := range settingsIn(t, s, true, planSettings()) {
			if want := planSettings()[i]; got != want {
				t.Errorf("in a transaction %+v, want %+v", got, want)
			}
		}
		for i, got := range settingsIn(t, s, false, planSettings()) {
			if unwanted := planSettings()[i]; got == unwanted {
				t.Errorf("after the transaction %+v is still set", got)
			}
		}
	}
}

// What a login lacks is named; what startup parameters gave is not missing.
func TestDifferingNamesTheFirstSettingThatIsMissing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		config *pgx.ConnConfig
		ok     bool
	}{{WithSettings(config), true}, {config, false}} {
		conn, err := pgx.ConnectConfig(t.Context(), tt.config)
		if err != nil {
			t.Fatal(err)
		}
		wanted, got, ok, err := Differing(t.Context(), conn)
		if err != nil || ok != tt.ok || !ok && (wanted != Setting{"lock_timeout", "1s"} || got != "0") {
			t.Errorf("Differing = %+v, %q, %t, %v; want ok: %t, or lock_timeout", wanted, got, ok, err, tt.ok)
		}
		conn.Close(t.Context())
	}
}

// A URL for a pooler without prepared statements is respected; any other way of running
// statements would not be one round trip.
func TestASessionKeepsToCachedStatementsOrDescriptions(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for mode, want := range map[string]pgx.QueryExecMode{
		"cache_statement": pgx.QueryExecModeCacheStatement, "cache_describe": pgx.QueryExecModeCacheDescribe,
		"simple_protocol": pgx.QueryExecModeCacheStatement,
	} {
		config, err := pgx.ParseConfig(db.URL + "&default_query_exec_mode=" + mode)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Connect(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got := s.conn.Config().DefaultQueryExecMode; got != want {
			t.Errorf("with %s a session runs %s, want %s", mode, got, want)
		}
	}
}
