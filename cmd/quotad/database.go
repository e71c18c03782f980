package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/pg"
)

const (
	// connectMax bounds the first connection of a command.
	connectMax = 15 * time.Second
	// commandConnsMax is for commands that end; the driver's own default grows with the
	// machine.
	commandConnsMax = 4
)

// databaseFlags say which database a command works on.
type databaseFlags struct {
	URL string `name:"database-url" env:"QUOTAD_DATABASE_URL" placeholder:"URL" help:"The database, as postgres://login@host:5432/name; a password is better in PGPASSWORD or a pgpass file."`
}

// connConfig parses the URL.
func (f databaseFlags) connConfig() (*pgx.ConnConfig, error) {
	if f.URL == "" {
		return nil, errors.New("no database: set --database-url or QUOTAD_DATABASE_URL, " +
			"or run `quotad dev` for a private one")
	}
	// The pool's parser, since a URL may carry pool_max_conns and the like.
	config, err := pgxpool.ParseConfig(f.URL)
	if err != nil {
		return nil, fmt.Errorf("--database-url: %w", err)
	}
	return named(config.ConnConfig), nil
}

// named makes config's connections tell in pg_stat_activity whose they are, unless it
// names them otherwise.
func named(config *pgx.ConnConfig) *pgx.ConnConfig {
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "quotad"
	}
	return config
}

// open connects a pool and makes sure that the database answers and has this binary's
// schema. The error says what was tried; a password is never in it.
func (f databaseFlags) open(ctx context.Context) (*pgxpool.Pool, error) {
	conn, err := f.connConfig()
	if err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(f.URL)
	if err != nil {
		return nil, fmt.Errorf("--database-url: %w", err)
	}
	config.ConnConfig = conn.Copy()
	pg.HearWarnings(config.ConnConfig)
	if !strings.Contains(f.URL, "pool_max_conns") {
		config.MaxConns = commandConnsMax
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	err = pool.Ping(ctx)
	if err != nil {
		err = unreachable(conn, err)
	} else {
		err = checkSchemaVersion(ctx, pool)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// unreachable says in one sentence what could not be reached and what to check. The
// driver's own text goes over several lines, one for each address that it tried.
func unreachable(conn *pgx.ConnConfig, err error) error {
	where := fmt.Sprintf("%s:%d/%s as %s", conn.Host, conn.Port, conn.Database, conn.User)
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		check := refusals[refused.Code]
		if check == "" {
			check = "see the server's log"
		}
		if strings.HasPrefix(refused.Message, "unsupported startup parameter") {
			check = "this is a pooler: use --pooler"
		}
		return fmt.Errorf("database %s refused: %s (%s); %s", where, refused.Message, refused.Code, check)
	}
	return fmt.Errorf("database %s cannot be reached; is it running, and is the URL right? %w", where, oneLine{err})
}

// refusals is what to check for each SQLSTATE that a server refuses a login with.
var refusals = map[string]string{
	"28P01": "check the login and its password",
	"28000": "check the login, and pg_hba.conf on the server",
	"3D000": "create the database, then run `quotad migrate`",
	"53300": "it has no connection left: raise max_connections or run fewer instances",
	"57P03": "wait for it to start",
}

// oneLine is an error whose text is on one line.
type oneLine struct{ error }

func (e oneLine) Error() string { return strings.Join(strings.Fields(e.error.Error()), " ") }
func (e oneLine) Unwrap() error { return e.error }

// forbidden says what to do if err is that the login, or a database that is read-only,
// may not do what it was told to; another error is returned as it is.
func forbidden(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case "42501":
		return fmt.Errorf("the login may not do this; make it a member of quotad_service: %w", err)
	case "25006":
		return fmt.Errorf("the database is read-only, and nothing was changed; name the primary if this is a standby, "+
			"else look at default_transaction_read_only: %w", err)
	}
	return err
}
