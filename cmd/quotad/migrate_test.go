package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/migrations"
)

// command runs quotad and returns its exit code and what it wrote.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	dir := t.TempDir()
	open := func(name string) *os.File {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	out, err := open("stdout"), open("stderr")
	defer out.Close()
	defer err.Close()
	code = run(t.Context(), args, out, err)
	read := func(file *os.File) string {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return code, read(out), read(err)
}

func TestMigrateFromNothingAndAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	head, err := migrations.Head()
	if err != nil {
		t.Fatal(err)
	}
	for _, applied := range []bool{true, false} {
		code, stdout, stderr := command(t, "migrate", "--json", "--database-url", db.OwnerURL)
		var result migrateResult
		if err := json.Unmarshal([]byte(stdout), &result); err != nil || code != 0 {
			t.Fatalf("migrate exits with %d and says %q, %q: %v", code, stdout, stderr, err)
		}
		if result.Version != head || (len(result.Applied) > 0) != applied {
			t.Errorf("migrate = %+v, want version %d, something applied: %v", result, head, applied)
		}
	}
	_, stdout, _ := command(t, "migrate", "--database-url", db.OwnerURL)
	if !strings.HasPrefix(stdout, "schema is at version ") {
		t.Errorf("migrate says %q, want the version", stdout)
	}
}

// A login of any name can be made and made again, and its password shows nowhere.
func TestMigrateMakesTheServiceLogin(t *testing.T) {
	db := pgtest.Blank(t)
	login := `svc "x" ` + db.Name[len(db.Name)-12:] // what an identifier must quote
	const password = `p'a"ss\ word`
	dropLogin(t, db, login)
	for range 2 {
		t.Setenv("QUOTAD_SERVICE_PASSWORD", password)
		code, stdout, stderr := command(t, "migrate", "--database-url", db.OwnerURL, "--service-login", login)
		if code != 0 {
			t.Fatalf("migrate exits with %d: %s", code, stderr)
		}
		if strings.Contains(stdout+stderr, "ss\\ word") {
			t.Errorf("migrate prints the password: %q %q", stdout, stderr)
		}
	}
	var stored string
	var can, member, super bool
	err := db.Owner(t).QueryRow(t.Context(), `
select rolpassword, rolcanlogin, pg_has_role(rolname, 'quotad_service', 'usage'), rolsuper
from pg_authid
where rolname = $1`, login).Scan(&stored, &can, &member, &super)
	if err != nil {
		t.Fatal(err)
	}
	if !can || !member || super {
		t.Errorf("login = can log in %v, member of quotad_service %v, superuser %v", can, member, super)
	}
	if want := verifierWithSaltOf(t, password, stored); stored != want {
		t.Errorf("stored verifier = %s, want %s", stored, want)
	}
	// It may serve.
	config := connConfig(t, db.OwnerURL)
	config.User, config.Password = login, password
	pool, err := openServicePool(t.Context(), config, false)
	if err != nil {
		t.Fatalf("openServicePool: %v", err)
	}
	pool.Close()
}

// What we compute is what the server itself would have stored.
func TestScramVerifierIsTheServersOwn(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	login := db.Name + "_scram"
	dropLogin(t, db, login)
	db.Exec(t, "set password_encryption = 'scram-sha-256'; create role "+login+" password 'correct horse'")
	var stored string
	if err := db.Owner(t).QueryRow(t.Context(), "select rolpassword from pg_authid where rolname = $1", login).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	if got := verifierWithSaltOf(t, "correct horse", stored); got != stored {
		t.Errorf("scramVerifier = %s, want %s", got, stored)
	}
	if _, err := scramVerifier("naïve", nil); err == nil {
		t.Error("scramVerifier takes a password that is not ASCII")
	}
}

func verifierWithSaltOf(t *testing.T, password, stored string) string {
	t.Helper()
	_, rest, _ := strings.Cut(stored, ":")
	text, _, _ := strings.Cut(rest, "$")
	salt, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatalf("stored verifier %q: %v", stored, err)
	}
	verifier, err := scramVerifier(password, bytes.NewReader(salt))
	if err != nil {
		t.Fatal(err)
	}
	return verifier
}

func TestMigrateRefusesAPowerfulServiceLogin(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	super := db.Name + "_super"
	dropLogin(t, db, super)
	db.Exec(t, "create role "+super+" superuser")
	for login, want := range map[string]string{
		super:                           "superuser",
		"quotad_service":                "of its own",
		strings.Repeat("x", 64):         "at most 63 bytes",
		connConfig(t, db.OwnerURL).User: "of its own",
	} {
		code, _, stderr := command(t, "migrate", "--database-url", db.OwnerURL, "--service-login", login)
		if code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("migrate --service-login %s exits with %d: %s; want 1 and %q", login, code, stderr, want)
		}
	}
}

// dropLogin removes a login when the test ends: roles belong to the whole server.
func dropLogin(t *testing.T, db *pgtest.DB, login string) {
	t.Helper()
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, db.OwnerURL)
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close(ctx)
		if _, err := conn.Exec(ctx, "drop role if exists "+pgx.Identifier{login}.Sanitize()); err != nil {
			t.Error(err)
		}
	})
}

// Managed servers give nobody a superuser. An owner that may create roles does all of
// it; one that may not can still migrate where someone has made the role.
func TestMigrateNeedsNoSuperuser(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, devpg.Options{})
	super, err := pgx.Connect(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer super.Close(t.Context())
	for _, tt := range []struct{ owner, attributes, login, refusal string }{
		{"mighty", "createrole", "serves_mighty", ""},
		{"plain", "nocreaterole", "", ""},
		{"plain", "nocreaterole", "serves_plain", "service login serves_plain"},
	} {
		for _, sql := range []string{"create role " + tt.owner + " login " + tt.attributes, "create database " + tt.owner + " owner " + tt.owner} {
			if _, err := super.Exec(t.Context(), sql); err != nil && tt.refusal == "" {
				t.Fatalf("%s: %v", sql, err)
			}
		}
		url, err := loginURL(server.URL(tt.owner), tt.owner)
		if err != nil {
			t.Fatal(err)
		}
		code, stdout, stderr := command(t, "migrate", "--database-url", url, "--service-login", tt.login)
		if (code != 0) != (tt.refusal != "") || !strings.Contains(stderr, tt.refusal) {
			t.Fatalf("migrate as %s for login %q exits with %d: %s", tt.owner, tt.login, code, stderr)
		}
		if tt.login == "" || tt.refusal != "" {
			continue
		}
		if !strings.Contains(stdout, "it has no password") {
			t.Errorf("migrate says %q, want that the new login has no password", stdout)
		}
		if _, stdout, _ := command(t, "migrate", "--database-url", url, "--service-login", tt.login); !strings.Contains(stdout, "password is as it was") {
			t.Errorf("migrate again says %q, want that it left the password alone", stdout)
		}
		service := connConfig(t, url)
		service.User = tt.login
		// Behind a pooler: the settings are on the login.
		pool, err := openServicePool(t.Context(), service, true)
		if err != nil {
			t.Fatalf("openServicePool: %v", err)
		}
		pool.Close()
	}
}

// The page for whoever runs the database names every setting that migrate sets.
func TestThePostgreSQLPageListsTheLoginsSettings(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/postgresql.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range pg.LoginSettings() {
		if line := fmt.Sprintf("alter role quotad_app set %s = '%s';", s.Name, s.Value); !strings.Contains(string(text), line) {
			t.Errorf("docs/postgresql.md lacks %q", line)
		}
	}
}

// Every replica may migrate when it starts, on whichever database of the server: the
// login is made in turns.
func TestMigrationsAtOnceAgreeOnTheServiceLogin(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, devpg.Options{})
	databases := []*pgtest.DB{pgtest.On(t, server), pgtest.On(t, server)}
	var group errgroup.Group
	for i := range 10 {
		group.Go(func() error {
			code, _, stderr := command(t, "migrate", "--database-url", databases[i%2].OwnerURL, "--service-login", "shared")
			if code != 0 {
				return errors.New(stderr)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

// Whatever works on a database that another version has migrated would write what that
// one does not expect, or judge it by other rules.
func TestCommandsRefuseAnotherVersionsSchema(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	file := filepath.Join(t.TempDir(), "q.yaml")
	if err := os.WriteFile(file, []byte("meters: {calls: {unit: call}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	commands := [][]string{
		{"apply", "--file", file}, {"key", "create", "--scope", "admin"}, {"key", "list"}, {"key", "revoke", "x"}, {"verify"}, {"migrate"},
	}
	db.Exec(t, "insert into goose_db_version (version_id, is_applied) values (99999, true)")
	for _, arguments := range commands {
		code, _, stderr := command(t, append(arguments, "--database-url", db.OwnerURL)...)
		if code == 0 || !strings.Contains(stderr, "newer than") {
			t.Errorf("%v on a newer schema exits with %d: %s; want a refusal", arguments, code, stderr)
		}
	}
	db.Exec(t, "delete from goose_db_version where version_id >= (select max(version_id) from goose_db_version where version_id < 99999)")
	for _, arguments := range commands[:len(commands)-1] {
		code, _, stderr := command(t, append(arguments, "--database-url", db.OwnerURL)...)
		if code == 0 || !strings.Contains(stderr, "run `quotad migrate`") {
			t.Errorf("%v on an older schema exits with %d: %s; want a refusal", arguments, code, stderr)
		}
	}
}
