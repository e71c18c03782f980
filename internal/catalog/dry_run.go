package catalog

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// A Look sees a change that will be undone, twice: what tx sees is how things are, and
// then, with made true, how they would be. It is called only if something would change,
// and must not write.
type Look func(ctx context.Context, tx pgx.Tx, changes []Change, made bool) error

// DryRun returns a store whose changes are made, looked at and undone. What it returns of
// them is what s would. Whoever changes the configuration waits while look looks.
func (s *Store) DryRun(look Look) *Store {
	dry := *s
	dry.look = look
	return &dry
}
