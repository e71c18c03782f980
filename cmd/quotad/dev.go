package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
)

const devLogin = "quotad_dev"

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
	p, err := startPrivate(ctx, s, cmd.Data, devLogin, serverConfig{
		Listen: cmd.Listen, Log: log, Headers: cmd.Headers.headers(), RememberDenials: true,
	})
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, p.close(ctx)) }()

	info, err := loadDemo(ctx, p.server.catalog, p.server.engine)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	info.URL = p.server.URL()
	if info.DatabaseURL, err = loginURL(p.postgres.URL(privateDatabase), devLogin); err != nil {
		return err
	}
	if err := info.print(s.Out, cmd.JSON); err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		fmt.Fprintln(s.Err, "\nstopping ...")
		return nil
	case <-p.server.Failed():
		return errors.New("dev: the server has failed")
	case <-p.postgres.Exited():
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
