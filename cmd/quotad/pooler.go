package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/internal/pg"
)

// poolerFlags say what is between a command that decides and its database.
type poolerFlags struct {
	Pooler bool `name:"pooler" env:"QUOTAD_POOLER" help:"The URL leads to a pooler in transaction mode, such as PgBouncer: see docs/postgresql.md."`
}

// connectAsSession connects as the engine's sessions will, and refuses what is in
// between if decisions could not rely on it. Its own statements have no names until
// that is known.
func connectAsSession(ctx context.Context, config *pgx.ConnConfig, pooler bool) (*pgx.Conn, error) {
	with, settings := pg.WithSettings, pg.SessionSettings()
	if pooler {
		with, settings = pg.WithoutSettings, pg.LoginSettings()
	}
	conn, err := pgx.ConnectConfig(ctx, with(config))
	if err != nil {
		return nil, unreachable(config, err)
	}
	wanted, got, ok, err := pg.Differing(ctx, conn, settings)
	if err == nil && !ok {
		err = fmt.Errorf("%s is %q in a new session, and %q is needed: %s", wanted.Name, got, wanted.Value, settingAdvice(config.User, pooler))
	}
	if err == nil && pooler {
		err = unsuited(pg.CheckPooler(ctx, config))
	}
	if err != nil {
		conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // it is of no use any more
		return nil, err
	}
	return conn, nil
}

// settingAdvice is what to do about a session without its settings.
func settingAdvice(login string, pooler bool) string {
	if pooler {
		return fmt.Sprintf("run `quotad migrate --service-login %s` on PostgreSQL itself, then RECONNECT the pooler", login)
	}
	return "something in between drops startup parameters; if it is a pooler, use --pooler"
}

// unsuited says what to do about a pooler through which no decision would work.
func unsuited(err error) error {
	var refused *pgconn.PgError
	switch {
	case errors.Is(err, pg.ErrStatementsLost):
		return fmt.Errorf("%w: set max_prepared_statements = 200 on PgBouncer 1.21 or later, "+
			"or default_query_exec_mode=cache_describe in the URL, which is slower", err)
	case errors.As(err, &refused) && strings.Contains(refused.Message, "statement pooling mode"):
		return errors.New("the pooler is in statement mode, where there are no transactions: set pool_mode = transaction")
	case err != nil:
		return fmt.Errorf("try transactions through the pooler: %w", oneLine{err})
	}
	return nil
}

// warnOfUnnamedStatements says so where an instance is right but slow, which nobody
// would notice before the load is there.
func warnOfUnnamedStatements(log *slog.Logger, config *pgx.ConnConfig) {
	if config.DefaultQueryExecMode == pgx.QueryExecModeCacheDescribe {
		log.Warn("every statement is planned anew, which is slower: "+
			"only a pooler that does not follow prepared statements needs this mode in the URL",
			"default_query_exec_mode", config.DefaultQueryExecMode)
	}
}
