package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
)

const (
	privateDatabase = "postgres"
	privateCloseMax = 15 * time.Second
)

// A private is an instance on a PostgreSQL of its own. close must be called.
type private struct {
	postgres *devpg.Server
	server   *server
}

// startPrivate starts both. The data stay in a directory, or nowhere if that is "".
// config needs no database.
func startPrivate(ctx context.Context, s *streams, data, login string, config serverConfig) (_ *private, err error) {
	fmt.Fprintln(s.Err, "starting a private PostgreSQL ...")
	p := new(private)
	if p.postgres, err = devpg.Start(ctx, devpg.Options{Dir: data, Fsync: true}); err != nil {
		return nil, err
	}
	if err := p.serve(ctx, login, config); err != nil {
		return nil, errors.Join(err, p.close(ctx))
	}
	return p, nil
}

func (p *private) serve(ctx context.Context, login string, config serverConfig) error {
	owner, err := pgx.ParseConfig(p.postgres.URL(privateDatabase))
	if err != nil {
		return err
	}
	if _, err := migrateDatabase(ctx, named(owner)); err != nil {
		return err
	}
	if _, err := ensureServiceLogin(ctx, owner, login, ""); err != nil {
		return err
	}
	config.Database = owner.Copy()
	config.Database.User = login
	p.server, err = startServer(ctx, config)
	return err
}

// close takes everything down, whether ctx has ended or not.
func (p *private) close(ctx context.Context) error {
	var errs []error
	if p.server != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), privateCloseMax)
		defer cancel()
		errs = append(errs, p.server.Close(closing))
	}
	return errors.Join(append(errs, p.postgres.Stop())...)
}
