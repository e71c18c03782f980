// Command mutants plants faults in the code, one at a time, and sees whether the test
// that is to notice each does. `make mutants` runs it.
//
// State: nothing of the tree is written. A mutant is one file with one text replaced, given
// to the compiler in the file's place, so any number of runs may go on beside other work.
//
// Failure: a mutant is killed only if its own test fails, by name. Whatever else becomes of
// it is no kill: it survives, no longer applies, does not compile, takes too long, or makes
// something else fail. The same tests must pass without a mutant first: one that fails
// anyway would kill them all. The exit code is 0 if all were killed.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// cli is the command line.
type cli struct {
	Run     string        `placeholder:"REGEXP" help:"Only mutants whose name, file or test match."`
	Timeout time.Duration `default:"3m" help:"How long one mutant's test may take."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, arguments []string, out, progress io.Writer) int {
	var flags cli
	exitCode := -1
	parser, err := kong.New(&flags,
		kong.Name("mutants"),
		kong.Description("Plants faults in the code and sees whether tests notice."),
		kong.UsageOnError(),
		kong.Writers(out, progress),
		kong.Exit(func(code int) { exitCode = code }),
	)
	if err != nil {
		fmt.Fprintln(progress, "mutants:", err)
		return 1
	}
	_, err = parser.Parse(arguments)
	if exitCode >= 0 { // --help has been printed
		return exitCode
	}
	var wanted *regexp.Regexp
	if err == nil {
		wanted, err = regexp.Compile(flags.Run)
	}
	if err != nil {
		fmt.Fprintln(progress, "mutants:", err)
		return 2
	}
	results, err := newHunt(flags.Timeout, progress).all(ctx, selected(table, wanted))
	if err != nil {
		fmt.Fprintln(progress, "mutants:", err)
		return 1
	}
	if !report(out, results) {
		return 1
	}
	return 0
}
