package catalog_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
)

// A change whose wait for its standby was cut short may be taken back by a failover, and
// so may what is there already when it is sent again: neither is told as done.
func TestAChangeThatNoStandbyHasIsNotDone(t *testing.T) {
	t.Parallel()
	db := pgtest.On(t, pgtest.Server(t, devpg.Options{Settings: map[string]string{
		"synchronous_standby_names": "nobody", "synchronous_commit": "local",
	}}))
	key := catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyRead}}
	made, _, err := catalog.NewStore(db.Service(t)).CreateKey(t.Context(), "test", key)
	if err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "on"
	pg.HearWarnings(config.ConnConfig)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	store := catalog.NewStore(pool)
	apply := func() error {
		parsed, err := catalog.ParseFile([]byte("meters:\n  api.calls: {unit: call}\n"), "test.yaml")
		if err != nil {
			return err
		}
		_, err = store.Apply(t.Context(), "test", parsed, catalog.ApplyOptions{})
		return err
	}
	revoke := func() error {
		_, err := store.RevokeKey(t.Context(), "test", made.ID)
		return err
	}
	for _, change := range []struct {
		name string
		make func() error
	}{
		{"apply", apply},
		{"apply again", apply},
		{"create a key", func() error {
			_, _, err := store.CreateKey(t.Context(), "test", key)
			return err
		}},
		{"revoke a key", revoke},
		{"revoke it again", revoke},
	} {
		ended := make(chan error, 1)
		go func() { ended <- change.make() }()
		if err := cancelWait(t, db, ended); !errors.Is(err, catalog.ErrUnconfirmed) {
			t.Errorf("%s: %v, want %v", change.name, err, catalog.ErrUnconfirmed)
		}
	}
	if store.Changes() != 2 {
		t.Errorf("Changes = %d, want 2: they are on this server", store.Changes())
	}
}

// cancelWait cancels the wait of a commit for its standby, and returns how the change ended.
func cancelWait(t *testing.T, db *pgtest.DB, ended <-chan error) error {
	t.Helper()
	for {
		_, err := db.Owner(t).Exec(t.Context(), `
select pg_cancel_backend(pid)
from pg_stat_activity
where datname = current_database() and wait_event = 'SyncRep'`)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			return err
		default:
		}
	}
}
