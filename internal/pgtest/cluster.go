package pgtest

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/migrations"
)

//go:embed bootstrap.sql
var bootstrap string

const (
	// adminConns is how many databases are made or dropped at once.
	adminConns     = 4
	templatePrefix = "quotad_template_"
	// templateLock keeps processes that share a server from making the same template.
	templateLock = "select pg_advisory_lock(hashtextextended('quotad.pgtest', 0))"
)

// cluster is a server that databases are made on.
type cluster struct {
	base     *url.URL // superuser, any database
	admin    *pgxpool.Pool
	outlives bool // the server stays when this process ends

	template     sync.Once
	templateName string
	templateErr  error
}

func newCluster(ctx context.Context, superuserURL string) (*cluster, error) {
	base, err := url.Parse(superuserURL)
	if err != nil || (base.Scheme != "postgres" && base.Scheme != "postgresql") {
		return nil, fmt.Errorf("the server's address must be a URL, postgres://user@host/database")
	}
	config, err := pgxpool.ParseConfig(superuserURL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = adminConns
	admin, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config) // it serves later tests too
	if err != nil {
		return nil, err
	}
	return &cluster{base: base, admin: admin}, nil
}

func (c *cluster) close() { c.admin.Close() }

// databaseURL is the server's address with another database and user.
func (c *cluster) databaseURL(name string, user *url.Userinfo) string {
	u := *c.base
	u.Path, u.RawPath, u.User = "/"+name, "", user
	return u.String()
}

// ensureTemplate returns the name of the template database, made by whichever
// process comes first.
func (c *cluster) ensureTemplate(ctx context.Context) (string, error) {
	c.template.Do(func() {
		c.templateName, c.templateErr = c.makeTemplate(context.WithoutCancel(ctx))
	})
	return c.templateName, c.templateErr
}

func (c *cluster) makeTemplate(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, setUpMax)
	defer cancel()
	hash, err := schemaHash()
	if err != nil {
		return "", err
	}
	name := templatePrefix + hash
	conn, err := pgx.ConnectConfig(ctx, c.admin.Config().ConnConfig)
	if err != nil {
		return "", fmt.Errorf("connect to the test server: %w", err)
	}
	defer conn.Close(ctx) // gives the lock back
	if _, err := conn.Exec(ctx, templateLock); err != nil {
		return "", fmt.Errorf("lock the template: %w", err)
	}
	var exists bool
	err = conn.QueryRow(ctx, "select exists (select from pg_database where datname = $1)", name).Scan(&exists)
	if err != nil || exists {
		return name, err
	}
	// It gets its name last, so a template that exists is complete.
	draft := name + "_draft"
	for _, sql := range []string{"drop database if exists " + draft + " with (force)", "create database " + draft} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", fmt.Errorf("%s: %w", sql, err)
		}
	}
	if err := c.fill(ctx, draft); err != nil {
		return "", err
	}
	for _, sql := range []string{
		"alter database " + draft + " with is_template true allow_connections false",
		"alter database " + draft + " rename to " + name,
	} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", fmt.Errorf("%s: %w", sql, err)
		}
	}
	return name, nil
}

// fill migrates a database and adds what tests need.
func (c *cluster) fill(ctx context.Context, name string) error {
	config, err := pgx.ParseConfig(c.databaseURL(name, c.base.User))
	if err != nil {
		return err
	}
	if _, err := migrations.Up(ctx, config); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.PgConn().Exec(ctx, bootstrap).ReadAll(); err != nil {
		return fmt.Errorf("bootstrap.sql: %w", err)
	}
	return nil
}

// schemaHash names a template by everything that makes it.
func schemaHash() (string, error) {
	files := migrations.FS()
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(text), text)
	}
	fmt.Fprint(hash, bootstrap)
	return hex.EncodeToString(hash.Sum(nil)[:6]), nil
}
