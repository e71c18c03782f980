package pg

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// asking is a configuration that asks for other settings than a session's, as a URL and
// PGTZ can: in any case, in several at once, and by way of the options.
func asking(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(url + "&application_name=asking&options=-c%20TimeZone%3DAsia/Tokyo%20-c%20jit%3Don%20-c%20lock_timeout%3D7s")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"timezone": "Asia/Tokyo", "TIMEZONE": "Asia/Jakarta",
		"Default_Transaction_Isolation": "serializable", "LOCK_TIMEOUT": "7s", "Idle_in_Transaction_Session_Timeout": "1min",
		"Plan_Cache_Mode": "force_custom_plan", "ENABLE_SEQSCAN": "on", "Enable_HashJoin": "on", "Enable_MergeJoin": "on", "JIT": "on",
	} {
		config.RuntimeParams[name] = value
	}
	return config
}

// spellings returns the names under which config sets a setting.
func spellings(config *pgx.ConnConfig, setting Setting) (names []string) {
	for name := range config.RuntimeParams {
		if strings.EqualFold(name, setting.Name) {
			names = append(names, name)
		}
	}
	return names
}

// PostgreSQL takes the names of settings in any case and the last one wins: a calendar
// day that begins in the caller's time zone would be another day.
func TestNoURLChangesTheSettingsOfASession(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := asking(t, db.URL)
	for _, s := range SessionSettings() {
		if names := spellings(WithSettings(config), s); !slices.Equal(names, []string{s.Name}) {
			t.Errorf("a session sets %s as %q, want it once, by its own name", s.Name, names)
		}
	}
	s, err := Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if diff := cmp.Diff(SessionSettings(), settingsIn(t, s, true, SessionSettings())); diff != "" {
		t.Errorf("settings of a session (-want +got):\n%s", diff)
	}
	if got := s.conn.Config().RuntimeParams["application_name"]; got != "asking" {
		t.Errorf("application_name = %q, want what the URL asks for", got)
	}
}

// Behind a pooler the login has the settings, and a client that asks for others must
// not get them.
func TestNoURLChangesTheSettingsOfAPooledLogin(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := asking(t, db.URL)
	delete(config.RuntimeParams, "options") // a pooler refuses them, or serve what they do
	s, err := ConnectPooled(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := map[string]string{"application_name": "asking"}
	if diff := cmp.Diff(want, s.conn.Config().RuntimeParams); diff != "" {
		t.Errorf("parameters of a pooled session (-want +got):\n%s", diff)
	}
	if names := spellings(config, Setting{Name: "TimeZone"}); len(names) != 2 {
		t.Errorf("the caller's configuration has the time zone as %q, want it left alone", names)
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
	planned := config.Copy()
	for _, s := range loginSettings() {
		planned.RuntimeParams[s.Name] = s.Value
	}
	for _, tt := range []struct {
		name     string
		config   *pgx.ConnConfig
		settings []Setting
		wanted   Setting // zero for none
		got      string
	}{
		{"a session", WithSettings(config), SessionSettings(), Setting{}, ""},
		{"a login without settings", config, LoginSettings(), Setting{"lock_timeout", "1s"}, "0"},
		{"a login with settings", planned, LoginSettings(), Setting{}, ""},
		{"a login with settings whose plans were dropped", planned, SessionSettings(), Setting{"plan_cache_mode", "force_generic_plan"}, "auto"},
	} {
		conn, err := pgx.ConnectConfig(t.Context(), tt.config)
		if err != nil {
			t.Fatal(err)
		}
		wanted, got, ok, err := Differing(t.Context(), conn, tt.settings)
		if err != nil || wanted != tt.wanted || !ok && got != tt.got || ok != (tt.wanted == Setting{}) {
			t.Errorf("Differing of %s = %+v, %q, %t, %v; want %+v, %q", tt.name, wanted, got, ok, err, tt.wanted, tt.got)
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
