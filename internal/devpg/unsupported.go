//go:build !unix

package devpg

import (
	"context"
	"fmt"
	"os"
)

// VolatileDir returns the system's directory for temporary files.
func VolatileDir() string { return os.TempDir() }

// Server cannot run on this system.
type Server struct{}

// Start returns an error: there are no unix sockets or process credentials here.
func Start(context.Context, Options) (*Server, error) {
	return nil, fmt.Errorf("%w (on this system it cannot be started from here: give a database URL)", ErrNoBinaries)
}

// URL returns "".
func (*Server) URL(string) string { return "" }

// Dir returns "".
func (*Server) Dir() string { return "" }

// PID returns 0.
func (*Server) PID() int { return 0 }

// Exited returns nil.
func (*Server) Exited() <-chan struct{} { return nil }

// Stop does nothing.
func (*Server) Stop() error { return nil }
