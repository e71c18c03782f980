package catalog_test

import (
	"context"
	"crypto/rand"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
)

// callBound is what a caller waits at most for a database that is away, and a second
// for a slow machine.
const callBound = 6 * time.Second

// away returns an authenticator that has no copy of the token's key and, until Refuse
// is called with nil, cannot connect.
func away(t *testing.T) (a *catalog.Authenticator, token string, faults *pgtest.Faults, db database) {
	t.Helper()
	db = newDatabase(t)
	_, token = db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"decide"}})
	config, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	faults = new(pgtest.Faults)
	faults.Attach(&config.ConnConfig.Config)
	faults.Refuse(errors.New("nobody there"))
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return catalog.NewAuthenticator(catalog.NewStore(pool), nil), token, faults, db
}

// authenticating runs Authenticate until it has tried to connect a few times.
func authenticating(ctx context.Context, a *catalog.Authenticator, token string, faults *pgtest.Faults) <-chan error {
	done := make(chan error, 1)
	before := faults.Dials()
	go func() {
		_, err := a.Authenticate(ctx, token)
		done <- err
	}()
	for faults.Dials() < before+3 && len(done) == 0 {
		runtime.Gosched()
	}
	return done
}

// A restart of the database must not refuse callers by whether their key was used a
// moment before.
func TestALookUpOfAKeyOutlastsARestart(t *testing.T) {
	t.Parallel()
	a, token, faults, _ := away(t)
	done := authenticating(t.Context(), a, token, faults)
	faults.Refuse(nil)
	if err := <-done; err != nil {
		t.Errorf("Authenticate while the database came back = %v", err)
	}
}

func TestALookUpOfAKeyEnds(t *testing.T) {
	t.Parallel()
	a, token, faults, db := away(t)
	ctx, leave := context.WithCancel(t.Context())
	done := authenticating(ctx, a, token, faults)
	leave()
	start := time.Now()
	if err := <-done; err == nil || time.Since(start) > time.Second {
		t.Errorf("Authenticate of a caller who left = %v after %s, want an error at once", err, time.Since(start))
	}
	start = time.Now()
	if _, err := a.Authenticate(t.Context(), token); err == nil || !pg.Disconnected(err) || time.Since(start) > callBound {
		t.Errorf("Authenticate without a database = %v after %s, want its error within %s", err, time.Since(start), callBound)
	}
	faults.Refuse(nil)
	db.Exec(t, "revoke select on quotad.api_key from quotad_service")
	start = time.Now()
	if _, err := a.Authenticate(t.Context(), token); pg.Code(err) != "42501" || time.Since(start) > time.Second {
		t.Errorf("Authenticate that is not permitted = %v after %s, want 42501 at once", err, time.Since(start))
	}
}

// A gone is a database that is away from the beginning, or from when it is closed.
type gone chan struct{}

func (g gone) Gone() <-chan struct{} { return g }
func (g gone) Suspect() {
	select {
	case <-g:
	default:
		close(g)
	}
}

// A caller learns within the decision deadline that nobody can tell whose key it is: the
// look-up itself makes that known.
func TestALookUpEndsWhenTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	a, token, _, _ := away(t)
	a.GiveUp(make(gone), 0)
	start := time.Now()
	if _, err := a.Authenticate(t.Context(), token); !errors.Is(err, catalog.ErrNoAnswer) || time.Since(start) > 2*time.Second {
		t.Errorf("Authenticate = %v after %s, want %v soon", err, time.Since(start), catalog.ErrNoAnswer)
	}
}

// Revocation acts within its bound in an outage, too, unless the operator says otherwise;
// and never is a key taken up again that was seen to be revoked.
func TestCopiesOfKeysOutlastAnOutageOnlyForAsLongAsAllowed(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		staleMax, after time.Duration
		revoked, want   bool
	}{
		{0, catalog.RevocationMax, false, false},
		{time.Minute, catalog.RevocationMax, false, true},
		{time.Minute, time.Minute, false, false},
		{time.Minute, catalog.RevocationMax, true, false},
	} {
		db := newDatabase(t)
		key, token := db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"decide"}})
		c := new(clock)
		a := catalog.NewAuthenticator(db.Store, c.now)
		reach := make(gone)
		a.GiveUp(reach, test.staleMax)
		if _, err := a.Authenticate(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		if test.revoked {
			if _, err := db.RevokeKey(t.Context(), "test", key.ID); err != nil {
				t.Fatal(err)
			}
			c.advance(catalog.RevocationMax)
			if _, err := a.Authenticate(t.Context(), token); !errors.Is(err, catalog.ErrKeyUnknown) {
				t.Fatalf("Authenticate of a revoked key = %v", err)
			}
		}
		db.Exec(t, "alter table quotad.api_key rename to away")
		reach.Suspect()
		c.advance(test.after)
		if _, err := a.Authenticate(t.Context(), token); (err == nil) != test.want {
			t.Errorf("%+v: Authenticate = %v", test, err)
		}
	}
}

// there is a server that is never away.
type there struct{}

func (there) Gone() <-chan struct{} { return nil }
func (there) Suspect()              {}

// A server that refuses, until someone mends it, tells as little as one that is away: old
// copies hold where they may, and nobody waits for long.
func TestCopiesOfKeysHoldWhereTheServerRefuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		staleMax     time.Duration
		refuse, mend string
	}{
		"no right":              {time.Minute, "revoke select on quotad.api_key from quotad_service", "grant select on quotad.api_key to quotad_service"},
		"no right, no copies":   {0, "revoke select on quotad.api_key from quotad_service", "grant select on quotad.api_key to quotad_service"},
		"another schema":        {time.Minute, "alter table quotad.api_key rename scopes to gone", "alter table quotad.api_key rename gone to scopes"},
		"no connections":        {time.Minute, noConnections, ""},
		"no connections or any": {0, noConnections, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			_, token := db.createKey(t, catalog.KeySpec{Scopes: []catalog.KeyScope{"decide"}})
			older := time.Duration(0)
			a := catalog.NewAuthenticator(db.Store, func() time.Time { return time.Now().Add(older) })
			a.GiveUp(there{}, test.staleMax)
			if _, err := a.Authenticate(t.Context(), token); err != nil {
				t.Fatal(err)
			}
			db.Exec(t, test.refuse)
			older = catalog.RevocationMax
			start := time.Now()
			for range 2 {
				_, err := a.Authenticate(t.Context(), token)
				if known := test.staleMax > 0; known != (err == nil) || !known && !errors.Is(err, catalog.ErrNoAnswer) {
					t.Errorf("Authenticate where the server refuses = %v", err)
				}
			}
			if _, err := a.Authenticate(t.Context(), unknownToken(t)); !errors.Is(err, catalog.ErrNoAnswer) {
				t.Errorf("Authenticate of a key without a copy = %v, want %v", err, catalog.ErrNoAnswer)
			}
			if took := time.Since(start); took > callBound/2 {
				t.Errorf("three look-ups took %s, want them to give up after a second", took)
			}
			if test.mend == "" {
				return
			}
			db.Exec(t, test.mend)
			for until := time.Now().Add(callBound); ; runtime.Gosched() {
				if _, err := a.Authenticate(t.Context(), unknownToken(t)); errors.Is(err, catalog.ErrKeyUnknown) {
					break
				} else if time.Now().After(until) {
					t.Fatalf("Authenticate once the server tells again = %v", err)
				}
			}
		})
	}
}

func unknownToken(t *testing.T) string {
	t.Helper()
	token, err := catalog.NewToken(rand.Reader, "live")
	if err != nil {
		t.Fatal(err)
	}
	return token.Reveal()
}

// noConnections ends all connections but its own, and lets nobody in. From within a
// database, only its row says so.
const noConnections = `
with closed as (update pg_database set datallowconn = false where datname = current_database() returning datname)
select pg_terminate_backend(a.pid) from pg_stat_activity a join closed using (datname) where a.pid <> pg_backend_pid()`

// Who comes when the outage is known to last does not wait for what the others waited for
// in vain; once there was an answer, it is over.
func TestALongOutageIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	a, token, faults, _ := away(t)
	if _, err := a.Authenticate(t.Context(), token); !pg.Disconnected(err) {
		t.Fatalf("Authenticate without a database = %v", err)
	}
	dials := faults.Dials()
	if _, err := a.Authenticate(t.Context(), token); !pg.Disconnected(err) || faults.Dials() != dials+1 {
		t.Errorf("the second Authenticate = %v after %d attempts, want its error after one", err, faults.Dials()-dials)
	}
	faults.Refuse(nil)
	if _, err := a.Authenticate(t.Context(), token); err != nil {
		t.Errorf("Authenticate with the database back = %v", err)
	}
}
