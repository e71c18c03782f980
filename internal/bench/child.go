package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// asChildEnv makes a test binary behave as this program; the program ignores it.
const asChildEnv = "QUOTAD_BENCH_CHILD"

// A childCmd runs one measurement in a process of its own: the task arrives as JSON.
type childCmd[T any] struct {
	run func(ctx context.Context, task T) (measurement, error)
}

// Run does the task and prints the measurement.
func (c childCmd[T]) Run(ctx context.Context, s streams) error {
	var task T
	decoder := json.NewDecoder(s.In)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&task); err != nil {
		return fmt.Errorf("read the task: %w", err)
	}
	m, err := c.run(ctx, task)
	if err != nil {
		return err
	}
	return json.NewEncoder(s.Out).Encode(m)
}

// measure has a process of this program do a task. It dies with the caller's.
func measure(ctx context.Context, mode string, task any) (m measurement, err error) {
	text, err := json.Marshal(task)
	if err != nil {
		return m, err
	}
	program, err := os.Executable()
	if err != nil {
		return m, err
	}
	out, err := output(ctx, bytes.NewReader(text), program, mode)
	if err != nil {
		return m, err
	}
	if err := json.Unmarshal(out, &m); err != nil {
		return m, fmt.Errorf("%s: %w", mode, err)
	}
	return m, nil
}

// output runs a program to its end and returns what it printed. Its error ends with
// what the program said was wrong.
func output(ctx context.Context, in io.Reader, program string, arguments ...string) ([]byte, error) {
	runtime.LockOSThread() // the kernel ends the child when the thread that forked it ends
	defer runtime.UnlockOSThread()
	command := exec.CommandContext(ctx, program, arguments...)
	command.Env = append(os.Environ(), asChildEnv+"=1")
	command.SysProcAttr = childAttributes()
	command.Stdin = in
	var said bytes.Buffer
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s %s: %w: %s", program, strings.Join(arguments, " "), err, said.String()), ctx.Err())
	}
	return out, nil
}
