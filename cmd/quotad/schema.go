package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/migrations"
)

const schemaVersionSQL = `select coalesce(max(version_id) filter (where is_applied), 0) from goose_db_version`

// A querier runs a query for one row.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// checkSchemaVersion requires the very schema that this binary was built with: another
// one would be written to without what it needs, or judged by other rules.
func checkSchemaVersion(ctx context.Context, db querier) error {
	version, head, err := schemaVersion(ctx, db)
	switch {
	case err != nil:
		return err
	case version == 0:
		return errors.New("the database has no schema that this login may use: run `quotad migrate`, and serve as its --service-login")
	case version < head:
		return fmt.Errorf("the schema is at version %d and this quotad needs %d: run `quotad migrate`", version, head)
	}
	return refuseNewerSchema(version, head)
}

// refuseNewerSchema refuses what a newer quotad has migrated.
func refuseNewerSchema(version, head int64) error {
	if version > head {
		return fmt.Errorf("the schema is at version %d, newer than the %d of this quotad: run a newer quotad", version, head)
	}
	return nil
}

// schemaVersion returns the version of the database's schema, 0 if there is none that the
// login may see, and that of this binary's.
func schemaVersion(ctx context.Context, db querier) (version, head int64, err error) {
	if head, err = migrations.Head(); err != nil {
		return 0, 0, err
	}
	err = db.QueryRow(ctx, schemaVersionSQL).Scan(&version)
	const undefinedTable, insufficientPrivilege = "42P01", "42501"
	var refused *pgconn.PgError
	if errors.As(err, &refused) && (refused.Code == undefinedTable || refused.Code == insufficientPrivilege) {
		return 0, head, nil
	}
	return version, head, err
}
