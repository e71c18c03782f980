package main

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/pgtest"
)

// Each way of not getting at the database is one sentence that says what to check,
// and none of them shows the password.
func TestUnreachableDatabaseSaysWhatToCheck(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	blank := pgtest.Blank(t)
	const secret = "hunter2"
	elsewhere := func(from, to string) string { return strings.Replace(db.URL, from, to, 1) }
	file := writeFile(t, applyFile)
	for _, tt := range []struct{ name, url, want string }{
		{"none", "", "set --database-url or QUOTAD_DATABASE_URL"},
		{"no URL", "postgres://u:" + secret + "@h:notaport/x", "--database-url: "},
		{"nobody listens", "postgres://u:" + secret + "@127.0.0.1:1/x", "database 127.0.0.1:1/x as u cannot be reached"},
		{"no such database", elsewhere(db.Name, "nothing"), "run `quotad migrate`"},
		{"no schema", blank.OwnerURL, "run `quotad migrate`"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := command(t, "apply", "--database-url", tt.url, "-f", file)
			if code != 1 || !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 {
				t.Errorf("apply exits with %d and says %q, want one line with %q", code, stderr, tt.want)
			}
			if strings.Contains(stderr, secret) {
				t.Errorf("apply shows the password: %q", stderr)
			}
			if tt.name == "no schema" {
				return // migrate is for that
			}
			code, _, stderr = command(t, "migrate", "--database-url", tt.url)
			if code != 1 || !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, secret) {
				t.Errorf("migrate exits with %d and says %q, want one line with %q and no password", code, stderr, tt.want)
			}
		})
	}
}

// A standby, or a server that was made read-only, refuses changes in words that say so.
func TestChangesOfAReadOnlyDatabaseAreRefusedInPlainWords(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	url := db.URL + "&default_transaction_read_only=on"
	for _, arguments := range [][]string{
		{"apply", "-f", writeFile(t, applyFile)}, {"key", "create", "--scope", "admin"}, {"key", "revoke", "x"},
	} {
		code, stdout, stderr := command(t, append(arguments, "--database-url", url)...)
		const want = "quotad: the database is read-only, and nothing was changed; name the primary if this is a standby"
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v exits with %d and says %q, %q; want one line that begins with %q", arguments, code, stdout, stderr, want)
		}
	}
}

// Whoever looks at the server's processes sees whose they are, or what the URL says.
func TestConnectionsAreNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for url, want := range map[string]string{db.URL: "quotad", db.URL + "&application_name=billing": "billing"} {
		pool, err := databaseFlags{URL: url}.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		config, err := databaseFlags{URL: url}.connConfig()
		if err != nil {
			t.Fatal(err)
		}
		served, err := newPool(t.Context(), config, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer served.Close()
		for of, pool := range map[string]*pgxpool.Pool{"a command": pool, "an instance": served} {
			var got string
			err := pool.QueryRow(t.Context(), "select application_name from pg_stat_activity where pid = pg_backend_pid()").Scan(&got)
			if err != nil || got != want {
				t.Errorf("a connection of %s is named %q, %v; want %q", of, got, err, want)
			}
		}
	}
}
