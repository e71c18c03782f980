package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
)

const (
	devDatabase = "postgres"
	devLogin    = "quotad_dev"
	devCloseMax = 15 * time.Second
)

// devCmd runs the whole product with demo data on a private PostgreSQL. When it ends
// nothing is left running, and nothing on disk unless Data was given.
type devCmd struct {
	Logging logFlags    `embed:""`
	Headers headerFlags `embed:""`
	Listen  string      `name:"listen" default:"127.0.0.1:8080" env:"QUOTAD_LISTEN" help:"Host and port to listen on; port 0 picks a free one."`
	Data    string      `name:"data" placeholder:"DIR" help:"Keep the data in this directory, and go on with it next time."`
	JSON    bool        `name:"json" help:"Print one JSON object with url, admin_key and tenant instead of the text."`
}

// Run serves until a signal, then takes everything down.
func (cmd devCmd) Run(ctx context.Context, s *streams) (err error) {
	log := cmd.Logging.logger(s.Err)
	fmt.Fprintln(s.Err, "starting a private PostgreSQL ...")
	postgres, err := devpg.Start(ctx, devpg.Options{Dir: cmd.Data, Fsync: true})
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, postgres.Stop()) }()

	owner, err := pgx.ParseConfig(postgres.URL(devDatabase))
	if err != nil {
		return fmt.Errorf("dev: %w", err)
	}
	if _, err := migrateDatabase(ctx, named(owner)); err != nil {
		return unlessStopped(ctx, err)
	}
	if _, err := ensureServiceLogin(ctx, owner, devLogin, ""); err != nil {
		return unlessStopped(ctx, err)
	}
	service := owner.Copy()
	service.User = devLogin
	server, err := startServer(ctx, serverConfig{Listen: cmd.Listen, Database: service, Log: log, Headers: cmd.Headers.headers(), RememberDenials: true})
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), devCloseMax)
		defer cancel()
		err = errors.Join(err, server.Close(closing))
	}()

	info, err := loadDemo(ctx, server.catalog, server.engine)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	info.URL = server.URL()
	if info.DatabaseURL, err = loginURL(postgres.URL(devDatabase), devLogin); err != nil {
		return err
	}
	if err := info.print(s.Out, cmd.JSON); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.Err, "\nstopping ...")
		return nil
	case <-server.Failed():
		return errors.New("dev: the server has failed")
	case <-postgres.Exited():
		return errors.New("dev: PostgreSQL has ended")
	}
}

// unlessStopped is err, or nil if a signal has ended the start: that was asked for.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// loginURL is database with another user.
func loginURL(database, login string) (string, error) {
	u, err := url.Parse(database)
	if err != nil {
		return "", fmt.Errorf("dev: %w", err)
	}
	u.User = url.User(login)
	return u.String(), nil
}
