package devpg

import (
	"errors"
	"log/slog"
)

// ErrNoBinaries is what Start returns when the machine has no PostgreSQL server; its
// text says what to install.
var ErrNoBinaries = errors.New("devpg: no PostgreSQL server found: install it " +
	"(`apt-get install postgresql`, `dnf install postgresql-server`, `brew install postgresql`), " +
	"or put the directory of its `postgres` and `initdb` in PATH")

// Options says what kind of server to start. The zero value is a throwaway one that
// loses data when the machine stops.
type Options struct {
	// Dir keeps the server's files; it must be empty or from an earlier Start. "" is
	// a new temporary directory that Stop removes.
	Dir string
	// Fsync makes commits survive a power cut, as in production. Leave it off in
	// tests, where it costs a disk flush per commit.
	Fsync bool
	// Settings are further parameters, as in postgresql.conf; they win over the
	// package's own.
	Settings map[string]string
	// Env are further environment variables of the server's processes, NAME=value; it
	// inherits none.
	Env []string
	// Log gets the start and the stop; nil is silent.
	Log *slog.Logger
}
