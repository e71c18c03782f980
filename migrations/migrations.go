// Package migrations holds the database schema as goose SQL, embedded in the
// binary, and applies it. Migrations only go forward. They are the one place that
// writes through database/sql; everything else uses pgx.
package migrations

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
)

//go:embed [0-9]*.sql
var files embed.FS

// FS returns the migrations, for hashing and listing.
func FS() fs.FS { return files }

// Applied is one migration that Up has run.
type Applied struct {
	Version int64
	Name    string
}

// Up brings the database at config to the newest schema and returns what it ran,
// oldest first; none when the database was already there. The login must be able
// to create a schema and a role. Instances may call it at once: they take turns on
// a session-level advisory lock, so it needs a direct connection, not a pooler.
func Up(ctx context.Context, config *pgx.ConnConfig) ([]Applied, error) {
	db := stdlib.OpenDB(*config)
	defer db.Close()
	provider, err := newProvider(db)
	if err != nil {
		return nil, err
	}
	results, err := provider.Up(ctx)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	applied := make([]Applied, 0, len(results))
	for _, r := range results {
		applied = append(applied, Applied{Version: r.Source.Version, Name: r.Source.Path})
	}
	return applied, nil
}

// Head returns the version of the newest migration in this binary.
func Head() (int64, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return 0, err
	}
	var head int64
	for _, name := range names {
		version, err := goose.NumericComponent(name)
		if err != nil {
			return 0, err
		}
		head = max(head, version)
	}
	return head, nil
}

func newProvider(db *sql.DB) (*goose.Provider, error) {
	locker, err := lock.NewPostgresSessionLocker()
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	return provider, nil
}
