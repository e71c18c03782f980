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
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// An outcome is what became of a mutant.
type outcome string

const (
	killed        outcome = "killed"
	survived      outcome = "SURVIVED"
	notApplicable outcome = "does not apply"
	notCompiled   outcome = "does not compile"
	outOfTime     outcome = "ran out of time"
	otherFailure  outcome = "failed, but not in its test"
)

// tailMax is how many lines of a program's output are worth showing.
const tailMax = 15

type result struct {
	mutant
	outcome outcome
	detail  string // what there is to see, unless it was killed
	took    time.Duration
}

// A hunt runs the tests of mutants, one after another: they are whole test programs, each
// with a PostgreSQL of its own.
type hunt struct {
	root     string // the module's directory
	work     string // where the programs are made
	timeout  time.Duration
	progress io.Writer
}

func newHunt(timeout time.Duration, progress io.Writer) *hunt {
	return &hunt{timeout: timeout, progress: progress}
}

// all returns what became of each mutant. It ends early if the tests do not pass without
// one.
func (h *hunt) all(ctx context.Context, mutants []mutant) (results []result, err error) {
	if h.root == "" {
		output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
		if err != nil {
			return nil, fmt.Errorf("find the module: %w", err)
		}
		h.root = strings.TrimSpace(string(output))
	}
	if h.work, err = os.MkdirTemp("", "quotad-mutants-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(h.work)) }()
	if err := os.Chmod(h.work, 0o711); err != nil { // a test program starts itself as another user
		return nil, err
	}
	if err := h.withoutMutants(ctx, mutants); err != nil {
		return nil, err
	}
	for i := range mutants {
		r := h.one(ctx, &mutants[i])
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		fmt.Fprintf(h.progress, "%3d/%d  %-9s %s (%.0f s)\n%s", i+1, len(mutants), r.outcome, r.name, r.took.Seconds(), r.detail)
		results = append(results, r)
	}
	return results, nil
}

// withoutMutants runs the tests on the code as it is.
func (h *hunt) withoutMutants(ctx context.Context, mutants []mutant) error {
	tests := make(map[string][]mutant)
	var packages []string
	for _, m := range mutants {
		if tests[m.pkg] == nil {
			packages = append(packages, m.pkg)
		}
		tests[m.pkg] = append(tests[m.pkg], m)
	}
	for _, pkg := range packages {
		var functions []string
		for _, m := range tests[pkg] {
			functions = append(functions, m.function())
		}
		slices.Sort(functions)
		functions = slices.Compact(functions)
		program, err := h.build(ctx, pkg)
		if err != nil {
			return fmt.Errorf("build the tests of %s: %w", pkg, err)
		}
		output, err := h.test(ctx, program, pkg, "^("+strings.Join(functions, "|")+")$", "-test.v")
		if err != nil {
			return fmt.Errorf("without a mutant the tests of %s end in %w:\n%s", pkg, err, failures(output))
		}
		for _, m := range tests[pkg] {
			if !strings.Contains(output, "--- PASS: "+m.test+" ") {
				return fmt.Errorf("%s has no test %s", pkg, m.test)
			}
		}
		fmt.Fprintf(h.progress, "without mutants, %d tests of %s pass\n", len(functions), pkg)
	}
	return nil
}

// one makes a mutant and runs its test.
func (h *hunt) one(ctx context.Context, m *mutant) (r result) {
	began := time.Now()
	defer func() { r.took = time.Since(began) }()
	text, err := m.apply(h.root)
	if err != nil {
		return result{mutant: *m, outcome: notApplicable, detail: err.Error() + "\n"}
	}
	overlay, err := h.overlay(m, text)
	if err != nil {
		return result{mutant: *m, outcome: notApplicable, detail: err.Error() + "\n"}
	}
	program, err := h.build(ctx, m.pkg, "-overlay="+overlay)
	if err != nil {
		return result{mutant: *m, outcome: notCompiled, detail: err.Error() + "\n"}
	}
	output, err := h.test(ctx, program, m.pkg, m.pattern())
	switch {
	case err == nil:
		return result{mutant: *m, outcome: survived}
	case strings.Contains(output, "--- FAIL: "+m.test+" "):
		return result{mutant: *m, outcome: killed}
	case strings.Contains(output, "panic: test timed out"):
		return result{mutant: *m, outcome: outOfTime, detail: tail(output)}
	default:
		return result{mutant: *m, outcome: otherFailure, detail: tail(output)}
	}
}

// overlay writes what makes the compiler read a text instead of the mutant's file.
func (h *hunt) overlay(m *mutant, text string) (name string, err error) {
	mutated := filepath.Join(h.work, "mutated.go")
	if err := os.WriteFile(mutated, []byte(text), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(h.root, filepath.FromSlash(m.file)): mutated},
	})
	if err != nil {
		return "", err
	}
	name = filepath.Join(h.work, "overlay.json")
	return name, os.WriteFile(name, replace, 0o600)
}

// build makes the test program of a package.
func (h *hunt) build(ctx context.Context, pkg string, flags ...string) (program string, err error) {
	program = filepath.Join(h.work, "mutant.test")
	arguments := append([]string{"test", "-c", "-ldflags=-w", "-o", program}, flags...) // without debug information, to link faster
	command := exec.CommandContext(ctx, "go", append(arguments, "./"+pkg)...)
	command.Dir = h.root
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w:\n%s", err, tail(string(output)))
	}
	return program, nil
}

// test runs tests of a package and returns what they printed.
func (h *hunt) test(ctx context.Context, program, pkg, pattern string, flags ...string) (string, error) {
	arguments := append([]string{"-test.run", pattern, "-test.timeout", h.timeout.String()}, flags...)
	command := exec.CommandContext(ctx, program, arguments...)
	command.Dir = filepath.Join(h.root, filepath.FromSlash(pkg))
	// A failure is all that matters: rapid need not look for a smaller one, nor keep it.
	command.Env = append(os.Environ(), "RAPID_SHRINKTIME=1ms", "RAPID_NOFAILFILE=true")
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	return output.String(), err
}

// failures returns the lines of a verbose output that name what failed, or else its end.
func failures(output string) string {
	var lines []string
	for line := range strings.Lines(output) {
		if strings.Contains(line, "--- FAIL") || strings.Contains(line, "_test.go:") {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return tail(output)
	}
	return tail(strings.Join(lines, ""))
}

// tail returns the last lines of a text, indented.
func tail(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	lines = lines[max(0, len(lines)-tailMax):]
	return "\t" + strings.Join(lines, "\n\t") + "\n"
}

// report prints a table of what became of the mutants; it returns whether all were killed.
func report(out io.Writer, results []result) bool {
	counts := make(map[outcome]int)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nmutant\toutcome\ttest")
	for i := range results {
		r := &results[i]
		counts[r.outcome]++
		fmt.Fprintf(w, "%s\t%s\t%s %s\n", r.name, r.outcome, r.pkg, r.test)
	}
	w.Flush()
	fmt.Fprintf(out, "\n%d of %d killed\n", counts[killed], len(results))
	return len(results) > 0 && counts[killed] == len(results)
}
