package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pgtest"
)

func TestKeyIsPrintedOnceAndListedWithoutItsSecret(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	code, stdout, stderr := command(t, "key", "create", "--database-url", db.URL, "--scope", "read,decide", "--name", "backend", "--env", "test")
	token, whole := catalog.ParseToken(strings.TrimSuffix(stdout, "\n"))
	if code != 0 || !whole || token.Env != "test" {
		t.Fatalf("key create exits with %d and says %q, %q; want a key alone on stdout", code, stdout, stderr)
	}
	want := "This key is not shown again. It may decide,read for every tenant; `quotad key revoke " + token.ID + "` ends it.\n"
	if stderr != want {
		t.Errorf("key create says %q on stderr, want %q", stderr, want)
	}

	code, stdout, _ = command(t, "key", "list", "--database-url", db.URL)
	row := regexp.MustCompile(`(?m)^` + token.ID + ` +test +decide,read +every tenant +backend +20\S+Z *$`)
	if code != 0 || !row.MatchString(stdout) || strings.Contains(stdout, token.Secret) {
		t.Errorf("key list exits with %d and says:\n%s", code, stdout)
	}

	if code, _, stderr := command(t, "key", "revoke", token.Reveal()); code != 1 || strings.Contains(stderr, token.Secret) {
		t.Errorf("key revoke of a whole key exits with %d and says %q", code, stderr)
	}
	for range 2 {
		code, stdout, stderr := command(t, "key", "revoke", "--database-url", db.URL, token.ID)
		if code != 0 || !strings.HasPrefix(stdout, token.ID+" was revoked at ") {
			t.Errorf("key revoke exits with %d and says %q, %q", code, stdout, stderr)
		}
	}
	if code, _, stderr := command(t, "key", "revoke", "--database-url", db.URL, "nosuchkey000"); code != 1 || !strings.Contains(stderr, "there is no key") {
		t.Errorf("key revoke of none exits with %d and says %q", code, stderr)
	}
	code, stdout, _ = command(t, "key", "list", "--json", "--database-url", db.URL)
	var key catalog.Key
	if err := json.Unmarshal([]byte(stdout), &key); err != nil || code != 0 || key.RevokedAt == nil || key.ID != token.ID {
		t.Errorf("key list --json exits with %d and says %q, %v; want it revoked", code, stdout, err)
	}
}

func TestKeyCreateJSONAndFaults(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	code, stdout, stderr := command(t, "key", "create", "--json", "--database-url", db.URL, "--scope", "admin")
	var created struct {
		Key    string
		ID     string
		Scopes []string
	}
	if err := json.Unmarshal([]byte(stdout), &created); err != nil || code != 0 || stderr != "" {
		t.Fatalf("key create --json exits with %d and says %q, %q: %v", code, stdout, stderr, err)
	}
	if token, whole := catalog.ParseToken(created.Key); !whole || token.ID != created.ID || token.Env != "live" {
		t.Errorf("key create --json = %+v, want a live key and its id", created)
	}
	code, stdout, stderr = command(t, "key", "create", "--database-url", db.URL, "--scope", "admin,all", "--tenant", "acme")
	want := `scopes[1]: must be one of decide, read, audit, admin
tenant: an admin key changes plans that all tenants share: it cannot be bound to one
quotad: nothing was changed
`
	if code != 1 || stdout != "" || stderr != want {
		t.Errorf("key create exits with %d and says %q, %q; want %q", code, stdout, stderr, want)
	}
}
