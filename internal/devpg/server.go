//go:build unix

package devpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	superuser = "postgres"
	// socketPort only names the socket file; no TCP port is opened.
	socketPort = "5432"
	// readyPoll is short because a start takes about 100 ms.
	readyPoll = 10 * time.Millisecond
	// startMax covers crash recovery of a large kept directory.
	startMax = 2 * time.Minute
	// fastMax is what a shutdown checkpoint may take before Stop stops being polite.
	fastMax = 30 * time.Second
	// killMax is what the kernel may take to end a process.
	killMax = 5 * time.Second
)

// Server is a running PostgreSQL. Stop must be called once it is no longer needed.
type Server struct {
	home   *home
	log    *slog.Logger
	pid    int
	exited chan struct{} // closed when the process has been waited for
	status error         // how it ended; read after exited

	stop      sync.Once
	stopError error
}

// Start starts a server, makes its files first if there are none, and returns when
// it accepts connections. ctx bounds the start, not the server's life.
//
// Errors name what to do where the user can do something: no binaries found
// ([ErrNoBinaries]), a directory that the server's user cannot reach, one that is in
// use, or one that holds other files. Else they end with the last lines of its log.
func Start(ctx context.Context, o Options) (*Server, error) {
	return start(ctx, o, searchPath(ctx))
}

func start(ctx context.Context, o Options, places []string) (_ *Server, err error) {
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	found, err := find(places)
	if err != nil {
		return nil, err
	}
	h, err := openHome(ctx, o, found)
	if err != nil {
		return nil, err
	}
	s := &Server{home: h, log: log, exited: make(chan struct{})}
	if err := s.launch(ctx, o); err != nil {
		h.close()
		return nil, err
	}
	if err := s.awaitReady(ctx); err != nil {
		err = fmt.Errorf("devpg: start: %w%s", err, h.logTail())
		return nil, errors.Join(err, s.Stop())
	}
	log.InfoContext(ctx, "postgres started", "dir", h.dir, "pid", s.pid, "user", h.account.name)
	return s, nil
}

// URL returns a URL on the given database for the superuser, without TLS, over the
// unix socket. It stays the same when the server is started again on its directory.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.User(superuser),
		Path:     "/" + database,
		RawQuery: url.Values{"host": {s.home.run}, "port": {socketPort}}.Encode(),
	}
	return u.String()
}

// Dir returns the directory of the server's files.
func (s *Server) Dir() string { return s.home.dir }

// PID returns the process id of the postmaster.
func (s *Server) PID() int { return s.pid }

// Exited is closed once the server's process has ended, by Stop or by itself.
func (s *Server) Exited() <-chan struct{} { return s.exited }

// Stop shuts the server down: open transactions are rolled back, connections closed,
// the files left clean. It waits until the process is gone, then removes a temporary
// directory. Further calls wait for the first and return the same.
func (s *Server) Stop() error {
	s.stop.Do(func() {
		s.stopError = errors.Join(s.shutdown(), s.home.close())
		s.log.Info("postgres stopped", "dir", s.home.dir, "pid", s.pid)
	})
	return s.stopError
}

// shutdown asks three times, each time less politely: fast, immediate, kill. The
// process is not waited for elsewhere, so its id cannot have been reused.
func (s *Server) shutdown() error {
	for _, ask := range []struct {
		signal syscall.Signal
		within time.Duration
	}{
		{syscall.SIGINT, fastMax},
		{syscall.SIGQUIT, killMax},
		{syscall.SIGKILL, killMax},
	} {
		select {
		case <-s.exited:
			return nil
		default:
		}
		if err := syscall.Kill(s.pid, ask.signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("devpg: stop process %d: %w", s.pid, err)
		}
		timer := time.NewTimer(ask.within)
		select {
		case <-s.exited:
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
	return fmt.Errorf("devpg: process %d did not end", s.pid)
}

// launch makes the files if there are none and starts the process.
func (s *Server) launch(ctx context.Context, o Options) error {
	if err := s.home.initialise(ctx); err != nil {
		return err
	}
	logFile, err := os.OpenFile(s.home.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("devpg: open the log: %w", err)
	}
	defer logFile.Close()
	if s.home.logFrom, err = logFile.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("devpg: open the log: %w", err)
	}
	command := exec.Command(s.home.found.postgres, s.home.arguments(o)...)
	command.Dir = s.home.data
	command.Env = append(environment(), o.Env...)
	command.Stdout, command.Stderr = logFile, logFile
	command.ExtraFiles = []*os.File{s.home.lock} // the server holds the lock as long as it lives
	command.SysProcAttr = childAttributes(s.home.account)
	started := make(chan error)
	var child sync.WaitGroup // waited for through exited
	child.Go(func() { s.own(command, started) })
	if err := <-started; err != nil {
		return fmt.Errorf("devpg: start %s: %w", command.Path, err)
	}
	return nil
}

// own starts the process and waits for it, on one thread for all of its life: Linux
// ends the child when the thread that forked it ends, not the process.
func (s *Server) own(command *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := command.Start(); err != nil {
		started <- err
		return
	}
	s.pid = command.Process.Pid
	started <- nil
	s.status = command.Wait()
	close(s.exited)
}

func (s *Server) awaitReady(ctx context.Context) error {
	config, err := pgconn.ParseConfig(s.URL("postgres"))
	if err != nil {
		return err
	}
	config.Fallbacks = nil
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		conn, err := pgconn.ConnectConfig(ctx, config)
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-s.exited:
			return fmt.Errorf("postgres ended: %w", s.status)
		case <-ctx.Done():
			return fmt.Errorf("postgres was not ready: %w", errors.Join(ctx.Err(), err))
		case <-tick.C:
		}
	}
}

// arguments is the command line: what every server gets, then what o asks for.
func (h *home) arguments(o Options) []string {
	settings := map[string]string{
		"listen_addresses":        "",
		"port":                    socketPort,
		"unix_socket_directories": `"` + strings.ReplaceAll(h.run, `"`, `""`) + `"`,
		"unix_socket_permissions": "0700",
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"logging_collector":       "off",
	}
	if !o.Fsync {
		settings["fsync"] = "off"
		settings["full_page_writes"] = "off"
		settings["min_wal_size"] = "32MB"
		settings["max_wal_size"] = "256MB" // it may be memory
		// In the directory, so that a killed server leaves nothing elsewhere.
		settings["dynamic_shared_memory_type"] = "mmap"
	}
	for name, value := range o.Settings {
		settings[name] = value
	}
	arguments := []string{"-D", h.data}
	for name, value := range settings {
		arguments = append(arguments, "-c"+name+"="+value)
	}
	slices.Sort(arguments[2:])
	return arguments
}

// environment is what a server process sees. PG* variables of the caller would
// change it, so nothing is inherited but the search path.
func environment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC", "HOME=" + filepath.Clean(os.TempDir())}
}
