package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	listenMax = 30 * time.Second // for a server to say where it listens
	stopMax   = 30 * time.Second // for a server to answer what it has
	saidMax   = 4 << 10
)

// A server is a process that listens until it is stopped.
type server struct {
	URL     string
	command *exec.Cmd
	said    tail // of stderr
	running errgroup.Group
	exited  chan struct{}
}

// startServer starts a program that prints "listening on http://host:port" first.
func startServer(ctx context.Context, in []byte, program string, arguments ...string) (*server, error) {
	s := &server{command: exec.Command(program, arguments...), exited: make(chan struct{})}
	s.command.Env = append(os.Environ(), asChildEnv+"=1")
	s.command.SysProcAttr = childAttributes()
	s.command.Stdin, s.command.Stderr = bytes.NewReader(in), &s.said
	out, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s.command.Stdout = write
	started := make(chan error)
	s.running.Go(func() error { return s.own(started) })
	err = <-started
	write.Close()
	if err != nil {
		return nil, errors.Join(err, s.running.Wait())
	}
	if err := s.awaitAddress(ctx, out); err != nil {
		return nil, errors.Join(fmt.Errorf("%s %s: %w", program, strings.Join(arguments, " "), err), s.stop())
	}
	return s, nil
}

// own starts the process and waits for it on one thread, which the kernel ends it with.
func (s *server) own(started chan<- error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(s.exited)
	err := s.command.Start()
	started <- err
	if err != nil {
		return nil // it has been told
	}
	return s.command.Wait()
}

func (s *server) awaitAddress(ctx context.Context, out *os.File) error {
	until := time.Now().Add(listenMax)
	if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
		until = deadline
	}
	if err := out.SetReadDeadline(until); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("read where it listens: %w", err)
	}
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		return fmt.Errorf("its first line is %q, want where it listens", line)
	}
	s.URL = url
	return nil
}

// stop ends the server in order, or by force when it takes too long. Its error ends
// with the last that it said.
func (s *server) stop() error {
	_ = s.command.Process.Signal(syscall.SIGTERM) // it may have ended already: then Wait says how
	timer := time.NewTimer(stopMax)
	defer timer.Stop()
	select {
	case <-s.exited:
	case <-timer.C:
		_ = s.command.Process.Kill()
	}
	if err := s.running.Wait(); err != nil {
		return fmt.Errorf("%s ended with %w:\n%s", s.command.Path, err, s.said.text())
	}
	return nil
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

var _ io.Writer = (*tail)(nil)

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	t.kept = t.kept[max(0, len(t.kept)-saidMax):]
	return len(p), nil
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
