package catalog

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// New row; api_key_pkey is never hit by 62 random bits.
const insertKeySQL = `
insert into quotad.api_key (key_id, env, secret_hash, scopes, tenant, name, created_by)
values ($1, $2, $3, $4, nullif($5, ''), $6, $7)
returning created_at`

// account_tenant_unique finds the row; no lock, accounts are never removed.
const tenantExistsSQL = `
select exists (
  select
  from quotad.account
  where tenant = $1)`

// CreateKey makes a key and returns it with its token's text, which cannot be had
// again. Paths of faults are relative to spec.
func (s *Store) CreateKey(ctx context.Context, actor string, spec KeySpec) (key Key, secret string, err error) {
	if err := spec.Validate(); err != nil {
		return Key{}, "", err
	}
	key = Key{Env: spec.Env, Name: spec.Name, Tenant: spec.Tenant, CreatedBy: actor}
	if key.Env == "" {
		key.Env = envDefault
	}
	for _, scope := range KeyScopes() { // in one order and each once
		if slices.Contains(spec.Scopes, scope) {
			key.Scopes = append(key.Scopes, scope)
		}
	}
	token, err := NewToken(s.Random, key.Env)
	if err != nil {
		return Key{}, "", err
	}
	key.ID = token.ID
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		return insertKey(ctx, tx, &key, token.Hash())
	})
	if len(Faults(err)) > 0 {
		return Key{}, "", err
	}
	if err != nil {
		return Key{}, "", fmt.Errorf("create a key: %w", err)
	}
	return key, token.Reveal(), nil
}

func insertKey(ctx context.Context, tx pgx.Tx, key *Key, secretHash [sha256.Size]byte) error {
	if key.Tenant != "" {
		var exists bool
		if err := tx.QueryRow(ctx, tenantExistsSQL, key.Tenant).Scan(&exists); err != nil {
			return err
		}
		if !exists {
			return Fault{Path: "tenant", Rule: fmt.Sprintf("must name a tenant: there is no %q", key.Tenant)}
		}
	}
	err := tx.QueryRow(ctx, insertKeySQL, key.ID, key.Env, secretHash[:], key.Scopes, key.Tenant, key.Name, key.CreatedBy).
		Scan(&key.CreatedAt)
	if err != nil {
		return err
	}
	key.CreatedAt = key.CreatedAt.UTC()
	return recordKey(ctx, tx, key.CreatedBy, key.ID, nil, key)
}

// api_key_pkey finds the row and locks it: of two revocations one is the first.
const revokeKeySQL = `
update quotad.api_key
set revoked_at = clock_timestamp(), revoked_by = $2
where key_id = $1 and revoked_at is null
returning key_id, env, secret_hash, scopes, coalesce(tenant, ''), name,
  created_at, created_by, revoked_at, coalesce(revoked_by, '')`

// api_key_pkey finds the row; no lock.
const keySQL = `
select key_id, env, secret_hash, scopes, coalesce(tenant, ''), name,
  created_at, created_by, revoked_at, coalesce(revoked_by, '')
from quotad.api_key
where key_id = $1`

// Locks a key that was revoked before, so that saying so again ends in a commit that
// waits for the standby, as the first one may not have.
const lockKeySQL = ` for update`

// RevokeKey ends a key for good, within [RevocationMax] on every instance. Revoking
// it again changes nothing and returns it as it is. It returns [ErrNotFound] if there
// is no such key.
func (s *Store) RevokeKey(ctx context.Context, actor, id string) (Key, error) {
	var revoked storedKey
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		changed, err := collect(ctx, tx, scanKey, revokeKeySQL, id, actor)
		if err != nil {
			return err
		}
		if len(changed) == 0 {
			revoked, err = one(ctx, tx, scanKey, keySQL+lockKeySQL, id)
			return err
		}
		revoked = changed[0]
		before := revoked.Key
		before.RevokedAt, before.RevokedBy = nil, ""
		return recordKey(ctx, tx, actor, id, &before, &revoked.Key)
	})
	if err != nil {
		return Key{}, fmt.Errorf("revoke key %q: %w", id, err)
	}
	return revoked.Key, nil
}

// inTx runs work as one transaction.
func (s *Store) inTx(ctx context.Context, work func(tx pgx.Tx) error) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx) // does nothing after a commit
	if err := work(tx); err != nil {
		return err
	}
	return commit(ctx, tx)
}

// A storedKey is a key and what is kept of its secret.
type storedKey struct {
	Key
	secretHash []byte
}

func scanKey(row pgx.CollectableRow) (storedKey, error) {
	var k storedKey
	var revokedAt *time.Time
	err := row.Scan(&k.ID, &k.Env, &k.secretHash, &k.Scopes, &k.Tenant, &k.Name,
		&k.CreatedAt, &k.CreatedBy, &revokedAt, &k.RevokedBy)
	k.CreatedAt = k.CreatedAt.UTC()
	if revokedAt != nil {
		utc := revokedAt.UTC()
		k.RevokedAt = &utc
	}
	return k, err
}

// recordKey writes the history of a key, which never holds its secret or its hash.
// New row; no lock.
func recordKey(ctx context.Context, tx pgx.Tx, actor, id string, before, after *Key) error {
	var was any
	if before != nil {
		was = *before
	}
	change := Change{Object: ObjectKey, Name: id, Outcome: Changed, Before: encodeSpec(was), After: encodeSpec(*after)}
	at, err := stampOf(ctx, tx)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	queueChanges(batch, at, actor, []Change{change})
	return tx.SendBatch(ctx, batch).Close()
}
