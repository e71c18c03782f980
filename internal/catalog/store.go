package catalog

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/pg"
)

// ErrNotFound says that there is no object of that name, or that it was removed.
var ErrNotFound = errors.New("not found")

// A Querier runs one statement: a connection, a transaction, a pool or a session.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// A Store reads and changes the configuration in the database. It is safe for
// concurrent use; changes are serial over all instances.
type Store struct {
	// Random is where ids and secrets of keys come from. Set it before first use.
	Random io.Reader

	pool    *pgxpool.Pool
	look    Look          // of a dry run; nil for changes that stay
	changes *atomic.Int64 // shared with copies that only look
}

// NewStore returns a store on pool, which it does not close.
func NewStore(pool *pgxpool.Pool) *Store {
	return &Store{Random: rand.Reader, pool: pool, changes: new(atomic.Int64)}
}

// GenesisHash is the head of a tenant's chain before its first entry. It holds the
// tenant's name, so that no two chains begin alike.
func GenesisHash(tenant string) [32]byte {
	return sha256.Sum256([]byte("quotad/ledger/v1\x00" + tenant))
}

// Locks the one row of catalog_version, so that changes of the configuration are
// serial. Decisions read the row without a lock and never wait for it. It is the
// first lock of a change; accounts come after it, in order of their names.
const lockVersionSQL = `
select version
from quotad.catalog_version
for update`

// Holds the lock of lockVersionSQL; the one row, no index.
const raiseVersionSQL = `
update quotad.catalog_version
set version = $1`

// A change must not wait long for a tenant while it keeps other changes waiting.
const changeTimeoutSQL = `set local lock_timeout = '10s'`

// Changes counts the changes of the configuration that this store has committed. It has
// gone up when a change returns, so that whoever remembers an answer can tell that it may
// be another now.
func (s *Store) Changes() int64 { return s.changes.Load() }

// ErrUnconfirmed says that a change was made, and that no standby is known to have it: a
// failover may take it back. The same change, sent again, ends in a commit that waits.
var ErrUnconfirmed = errors.New("no standby has confirmed the change")

// commit commits a change, unless its wait for a standby is cut short.
func commit(ctx context.Context, tx pgx.Tx) error {
	err := pg.CommitTx(ctx, tx)
	if errors.Is(err, pg.ErrCommitUnknown) {
		return fmt.Errorf("%w: %w", ErrUnconfirmed, err)
	}
	return err
}

// inChange runs one change of the configuration as one transaction, after all
// earlier ones. work gets the version that the change makes, and says whether to
// keep it; if not, it has written nothing, or this is a dry run and nothing has happened.
func (s *Store) inChange(ctx context.Context, work func(tx pgx.Tx, version int64) (keep bool, err error)) error {
	err := s.inTurn(ctx, func(tx pgx.Tx, version int64) (keep bool, err error) {
		version++
		if keep, err = work(tx, version); err != nil || !keep {
			return false, err
		}
		if _, err := tx.Exec(ctx, raiseVersionSQL, version); err != nil {
			return false, fmt.Errorf("raise the configuration's version: %w", err)
		}
		return true, nil
	})
	if err == nil || errors.Is(err, ErrUnconfirmed) {
		s.changes.Add(1)
	}
	return err
}

// inTurn runs work as one transaction, in turn with everything else that changes the
// configuration. work gets the version there is.
func (s *Store) inTurn(ctx context.Context, work func(tx pgx.Tx, version int64) (keep bool, err error)) error {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return fmt.Errorf("begin a change of the configuration: %w", err)
	}
	defer tx.Rollback(ctx) // does nothing after a commit
	if _, err := tx.Exec(ctx, changeTimeoutSQL); err != nil {
		return fmt.Errorf("bound the waits of a change: %w", err)
	}
	var version int64
	if err := tx.QueryRow(ctx, lockVersionSQL).Scan(&version); err != nil {
		return fmt.Errorf("lock the configuration's version: %w", err)
	}
	keep, err := work(tx, version)
	if err != nil || !keep && s.look != nil {
		return err
	}
	// Without a change, too: what is there already may be what nobody confirmed.
	if err := commit(ctx, tx); err != nil {
		return fmt.Errorf("commit the change of the configuration: %w", err)
	}
	return nil
}
