package catalog_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
)

// A clock is a process's clock that a test moves.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_800_000_000, c.offset.Load()) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

func (d database) createKey(t *testing.T, spec catalog.KeySpec) (catalog.Key, string) {
	t.Helper()
	key, token, err := d.CreateKey(t.Context(), "tester", spec)
	if err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	return key, token
}

func TestKeyOpensWhatItSaysAndNothingOfItsSecretIsKept(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	spec := catalog.KeySpec{Env: "test", Name: "backend", Tenant: "acme", Scopes: []catalog.KeyScope{"read", "decide", "read"}}
	key, token := db.createKey(t, spec)
	got, err := catalog.NewAuthenticator(db.Store, nil).Authenticate(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	want := catalog.Key{
		ID: key.ID, Env: "test", Name: "backend", Tenant: "acme", Scopes: []catalog.KeyScope{"decide", "read"},
		CreatedAt: key.CreatedAt, CreatedBy: "tester",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Authenticate (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, key); diff != "" {
		t.Errorf("CreateKey (-authenticated +created):\n%s", diff)
	}
	parsed, _ := catalog.ParseToken(token)
	leaks := db.count(t, `
select (select count(*) from quotad.api_key k where k::text like '%' || $1 || '%')
  + (select count(*) from quotad.config_change c where c::text like '%' || $1 || '%')`, parsed.Secret)
	if leaks != 0 {
		t.Errorf("%d rows hold the secret", leaks)
	}
	records, _, err := db.Records(t.Context(), catalog.RecordQuery{Limit: 1})
	if err != nil || records[0].Object != catalog.ObjectKey || records[0].Name != key.ID || records[0].Before != nil {
		t.Errorf("Records = %+v, %v; want the key's creation", records, err)
	}
}

func TestWhatOpensNothingIsNotToldApart(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	key, token := db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"decide"}})
	revoked, revokedToken := db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"decide"}})
	if _, err := db.RevokeKey(t.Context(), "tester", revoked.ID); err != nil {
		t.Fatal(err)
	}
	parsed, _ := catalog.ParseToken(token)
	otherSecret, otherEnv, otherID := parsed, parsed, parsed
	otherSecret.Secret = strings.Repeat("x", len(parsed.Secret))
	otherEnv.Env = "test"
	otherID.ID = "000000000000"
	a := catalog.NewAuthenticator(db.Store, nil)
	for name, text := range map[string]string{
		"another secret": otherSecret.Reveal(), "another environment": otherEnv.Reveal(), "no such key": otherID.Reveal(),
		"revoked": revokedToken, "malformed": token + "x", "empty": "",
	} {
		for range 2 { // looked up, then from the copy
			if got, err := a.Authenticate(t.Context(), text); err != catalog.ErrKeyUnknown {
				t.Errorf("%s: Authenticate = %+v, %v; want ErrKeyUnknown itself", name, got, err)
			}
		}
	}
	if got, err := a.Authenticate(t.Context(), token); err != nil || got.ID != key.ID {
		t.Errorf("Authenticate of the right token = %+v, %v", got, err)
	}
}

func TestRevocationActsWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	key, token := db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"admin"}})
	var c clock
	a := catalog.NewAuthenticator(db.Store, c.now)
	if _, err := a.Authenticate(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	first, err := db.RevokeKey(t.Context(), "boss", key.ID)
	if err != nil || first.RevokedAt == nil || first.RevokedBy != "boss" {
		t.Fatalf("RevokeKey = %+v, %v; want it revoked by boss", first, err)
	}
	c.advance(catalog.RevocationMax)
	if _, err := a.Authenticate(t.Context(), token); !errors.Is(err, catalog.ErrKeyUnknown) {
		t.Errorf("Authenticate after %v = %v, want ErrKeyUnknown", catalog.RevocationMax, err)
	}
	before := db.count(t, "select count(*) from quotad.config_change")
	again, err := db.RevokeKey(t.Context(), "other", key.ID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("RevokeKey again (-first +again):\n%s", diff)
	}
	if after := db.count(t, "select count(*) from quotad.config_change"); after != before {
		t.Errorf("revoking again wrote %d records", after-before)
	}
	if _, err := db.RevokeKey(t.Context(), "boss", "nosuchkey000"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("RevokeKey of none = %v, want ErrNotFound", err)
	}
	keys, next, err := db.Keys(t.Context(), catalog.KeyQuery{})
	if err != nil || next != "" || len(keys) != 1 {
		t.Fatalf("Keys = %v, %q, %v; want the one", keys, next, err)
	}
	if diff := cmp.Diff(first, keys[0]); diff != "" {
		t.Errorf("Keys (-want +got):\n%s", diff)
	}
}

func TestFloodOfUnknownKeysEvictsNoGoodOne(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	_, token := db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"read"}})
	var c clock
	a := catalog.NewAuthenticator(db.Store, c.now)
	if _, err := a.Authenticate(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	var group errgroup.Group
	group.SetLimit(8)
	for range 12_000 {
		bad, err := catalog.NewToken(rand.Reader, "live")
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() error {
			if _, err := a.Authenticate(t.Context(), bad.Reveal()); !errors.Is(err, catalog.ErrKeyUnknown) {
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	db.Exec(t, "alter table quotad.api_key rename to api_key_away") // a look-up would fail now
	if _, err := a.Authenticate(t.Context(), token); err != nil {
		t.Errorf("Authenticate after the flood = %v, want the copy", err)
	}
}

func TestDatabaseFaultIsNotAnUnknownKey(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	_, token := db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"read"}})
	a := catalog.NewAuthenticator(db.Store, nil)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Authenticate(canceled, token); err == nil || errors.Is(err, catalog.ErrKeyUnknown) {
		t.Errorf("Authenticate without a database = %v, want another error", err)
	}
	if _, err := a.Authenticate(t.Context(), token); err != nil {
		t.Errorf("Authenticate afterwards = %v: the fault was kept", err)
	}
}

func TestKeySpecFaults(t *testing.T) {
	t.Parallel()
	err := catalog.KeySpec{
		Env: "Live", Name: "a\nb", Tenant: "..", Scopes: []catalog.KeyScope{"admin", "all"},
	}.Validate()
	want := `env: must match [a-z0-9]{1,16}
name: must not contain control characters
scopes[1]: must be one of decide, read, audit, admin
tenant: must not be . or ..
tenant: an admin key changes plans that all tenants share: it cannot be bound to one`
	if err == nil || err.Error() != want {
		t.Errorf("Validate = %v\nwant %s", err, want)
	}
	if err := (catalog.KeySpec{}).Validate(); len(catalog.Faults(err)) != 1 {
		t.Errorf("Validate of no scopes = %v, want one fault", err)
	}
	db := newDatabase(t)
	_, _, err = db.CreateKey(t.Context(), "tester", catalog.KeySpec{Tenant: "nobody", Scopes: []catalog.KeyScope{"read"}})
	wantFault(t, err, `tenant: must name a tenant: there is no "nobody"`)
}

func TestOnlyAdminImpliesOtherScopes(t *testing.T) {
	t.Parallel()
	for _, has := range catalog.KeyScopes() {
		for _, needs := range catalog.KeyScopes() {
			key := catalog.Key{Scopes: []catalog.KeyScope{has}}
			if got, want := key.Allows(needs), has == needs || has == catalog.KeyAdmin; got != want {
				t.Errorf("a key with %s: Allows(%s) = %v, want %v", has, needs, got, want)
			}
		}
	}
	if bound := (catalog.Key{Tenant: "a"}); !bound.MayActFor("a") || bound.MayActFor("A") || bound.MayActFor("") {
		t.Error("a key bound to a may act for another tenant, or not for a")
	}
	if !(catalog.Key{}).MayActFor("anyone") {
		t.Error("an unbound key may not act for anyone")
	}
}

func TestTokenTextIsFairAndHidesItsSecret(t *testing.T) {
	t.Parallel()
	// Bytes 252 to 255 would make some characters likelier: they are drawn again.
	random := append(bytes.Repeat([]byte{255, 35}, 12), bytes.Repeat([]byte{250, 61}, 33)...)
	token, err := catalog.NewToken(bytes.NewReader(random), "dev")
	if err != nil {
		t.Fatal(err)
	}
	want := "qk_dev_zzzzzzzzzzzz_" + strings.Repeat("Z", 33)
	if token.Reveal() != want {
		t.Errorf("token %s, want %s", token.Reveal(), want)
	}
	if text := token.String(); strings.Contains(text, "Z") {
		t.Errorf("String = %s shows the secret", text)
	}
	if _, err := catalog.NewToken(bytes.NewReader(random[:40]), "dev"); err == nil {
		t.Error("NewToken made a token from too little randomness")
	}
	stuck := bytes.NewReader(bytes.Repeat([]byte{255}, 10_000))
	if _, err := catalog.NewToken(stuck, "dev"); err == nil {
		t.Error("NewToken took a source that is stuck")
	}
}
