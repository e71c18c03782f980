//go:build unix

package devpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	temporaryPrefix = "quotad-pg-"
	// sharedMemory is a file system in memory on Linux. A new database is six hundred
	// small files; making them took 500 ms on a virtual disk and 40 ms here.
	sharedMemory = "/dev/shm"
	// memoryBytesMin is far more than a test's server needs, so that one which fills
	// it fails no one else; containers often have 64 MB there.
	memoryBytesMin = 4 << 30
	// socketPathMax is below what the strictest system allows for a socket's path,
	// 103 bytes.
	socketPathMax = 100
	// releaseMax is how long a server may need to end after its owner was killed.
	releaseMax = 15 * time.Second
	// abandonedAfter keeps the sweep off directories that are just being made.
	abandonedAfter = time.Minute
	logTailLines   = 15
	logTailBytes   = 8 << 10
)

// home is the directory of a server, locked by this process.
type home struct {
	dir       string
	data      string
	run       string
	temporary bool
	lock      *os.File
	logFrom   int64 // where this start's part of the log begins
	found     binaries
	account   account
}

// openHome makes or opens o.Dir, takes its lock, and makes sure that the user the
// server will run as can reach it. The caller closes it.
func openHome(ctx context.Context, o Options, found binaries) (_ *home, err error) {
	h := &home{found: found, temporary: o.Dir == ""}
	if h.temporary {
		parent := os.TempDir()
		if !o.Fsync {
			parent = VolatileDir()
		}
		sweep(parent)
		h.dir, err = os.MkdirTemp(parent, temporaryPrefix)
	} else {
		h.dir, err = prepareKept(o.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("devpg: %w", err)
	}
	h.data = filepath.Join(h.dir, "data")
	if h.lock, err = takeLock(ctx, h.dir); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.close()
		}
	}()
	if h.account, err = chooseAccount(h.data); err != nil {
		return nil, err
	}
	if err := h.makeReachable(ctx); err != nil {
		return nil, err
	}
	return h, h.makeRun()
}

// VolatileDir returns the directory for files that need not outlive the machine: one
// in memory if it has room and TMPDIR does not say otherwise, else the system's.
func VolatileDir() string {
	if os.Getenv("TMPDIR") == "" && freeBytes(sharedMemory) >= memoryBytesMin {
		return sharedMemory
	}
	return os.TempDir()
}

// prepareKept makes dir, or accepts an empty one or one of ours; anything else is
// refused before its owner or mode could be touched.
func prepareKept(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(filepath.Join(dir, "lock")); len(names) > 0 && errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s holds files that are not from here: give an empty directory", dir)
	}
	return dir, nil
}

// takeLock takes dir's lock. When the holder is a server whose owner is gone, it is
// about to end, and the lock is waited for; a living owner is an error at once.
func takeLock(ctx context.Context, dir string) (*os.File, error) {
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("devpg: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, releaseMax)
	defer cancel()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		owner := lockOwner(file)
		if !errors.Is(err, syscall.EWOULDBLOCK) || alive(owner) {
			file.Close()
			return nil, fmt.Errorf("devpg: %s is in use by process %d: %w", dir, owner, err)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("devpg: %s is in use by a server whose owner (process %d) is gone; end the process in %s first",
				dir, owner, filepath.Join(dir, "data", "postmaster.pid"))
		case <-tick.C:
		}
	}
	if err := errors.Join(file.Truncate(0), writeOwner(file)); err != nil {
		file.Close()
		return nil, fmt.Errorf("devpg: write the lock: %w", err)
	}
	return file, nil
}

func writeOwner(file *os.File) error {
	_, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	return err
}

// lockOwner returns the process id in a lock file; 0 if it is not written yet, or
// given back while the last processes of a killed server still end.
func lockOwner(file *os.File) int {
	text := make([]byte, 20)
	n, _ := file.ReadAt(text, 0)
	pid, _ := strconv.Atoi(string(text[:n]))
	return pid
}

func alive(pid int) bool {
	return pid > 0 && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// makeReachable lets the server's user into dir, and checks that it can get there:
// parents are the user's own business, so one that is closed is an error.
func (h *home) makeReachable(ctx context.Context) error {
	if h.account.own {
		return nil
	}
	if err := os.Chmod(h.dir, 0o711); err != nil {
		return fmt.Errorf("devpg: %w", err)
	}
	if err := h.probe(ctx, "/"); err != nil {
		return fmt.Errorf("devpg: user %s cannot run %s: %w", h.account.name, h.found.postgres, err)
	}
	if h.probe(ctx, h.dir) == nil {
		return nil
	}
	closed := h.dir
	for parent := filepath.Dir(closed); h.probe(ctx, parent) != nil; parent = filepath.Dir(parent) {
		closed = parent
	}
	return fmt.Errorf("devpg: %s cannot be used: PostgreSQL does not run as root, and user %s may not enter %s; "+
		"choose another directory or run `chmod o+x %s`", h.dir, h.account.name, closed, closed)
}

// probe enters dir as the server's user, the way the server will.
func (h *home) probe(ctx context.Context, dir string) error {
	command := exec.CommandContext(ctx, h.found.postgres, "--version")
	command.Dir = dir
	command.Env = environment()
	command.SysProcAttr = childAttributes(h.account)
	return command.Run()
}

// makeRun makes the directory of the socket, elsewhere if its path would be too long.
func (h *home) makeRun() error {
	h.run = filepath.Join(h.dir, "run")
	if len(filepath.Join(h.run, ".s.PGSQL."+socketPort)) > socketPathMax {
		run, err := os.MkdirTemp("/tmp", temporaryPrefix)
		if err != nil {
			return fmt.Errorf("devpg: %w", err)
		}
		h.run = run
	}
	if err := os.MkdirAll(h.run, 0o700); err != nil {
		return fmt.Errorf("devpg: %w", err)
	}
	return h.account.take(h.run)
}

// initialise makes the database files if there are none. They get their name last,
// so an interrupted start leaves nothing that looks complete.
func (h *home) initialise(ctx context.Context) error {
	if _, err := os.Lstat(h.data); err == nil {
		return nil
	}
	fresh := h.data + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.Mkdir(fresh, 0o700)); err != nil {
		return fmt.Errorf("devpg: %w", err)
	}
	if err := h.account.take(fresh); err != nil {
		return err
	}
	runtime.LockOSThread() // see Server.own
	defer runtime.UnlockOSThread()
	command := exec.CommandContext(ctx, h.found.initdb, "--pgdata="+fresh, "--username="+superuser,
		"--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions")
	command.Dir = fresh
	command.Env = environment()
	command.SysProcAttr = childAttributes(h.account)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("devpg: initdb: %w\n%s", errors.Join(err, ctx.Err()), bytes.TrimSpace(output))
	}
	if err := os.Rename(fresh, h.data); err != nil {
		return fmt.Errorf("devpg: %w", err)
	}
	return nil
}

func (h *home) logPath() string { return filepath.Join(h.dir, "postgres.log") }

// logTail returns the last lines that the server logged since this start, for an
// error's end.
func (h *home) logTail() string {
	text, err := os.ReadFile(h.logPath())
	if err != nil || int64(len(text)) <= h.logFrom {
		return ""
	}
	text = text[h.logFrom:]
	text = text[max(0, len(text)-logTailBytes):]
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	lines = lines[max(0, len(lines)-logTailLines):]
	return "\nthe end of " + h.logPath() + ":\n" + strings.Join(lines, "\n")
}

// close gives the lock back and removes what is temporary. The server has ended.
func (h *home) close() error {
	var errs []error
	if h.temporary {
		errs = append(errs, os.RemoveAll(h.dir))
	}
	if h.run != "" && filepath.Dir(h.run) != h.dir {
		errs = append(errs, os.RemoveAll(h.run))
	}
	errs = append(errs, h.lock.Truncate(0), h.lock.Close())
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("devpg: clean up: %w", err)
	}
	return nil
}

// sweep removes temporary homes whose owner was killed before it could. A home that
// is in use has its lock held. What cannot be removed is left to the next sweep.
func sweep(parent string) {
	locks, _ := filepath.Glob(filepath.Join(parent, temporaryPrefix+"*", "lock"))
	for _, name := range locks {
		info, err := os.Lstat(name)
		if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < abandonedAfter {
			continue
		}
		file, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		file.Close()
	}
}
