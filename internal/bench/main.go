// Command bench measures quotad beside what it could be replaced with, and prints the
// ratios: a chi handler that decides nothing, and SQL that runs a transaction for each
// request. `make bench` runs it.
//
// State: a private PostgreSQL with the server's default settings, in a directory on a
// disk, removed at the end. Everything that is measured is a process of its own: the
// real quotad, the chi handler, and the clients are never in one heap or scheduler.
//
// Time: each subject is measured a few times, in turns with the others, so that a slow
// minute of the machine slows them alike. Medians are reported.
//
// Failure: a run in which any answer was wrong, or after which the ledger does not hold
// exactly the allowed answers, fails the whole benchmark. A missed target does not.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// cli is the benchmark, and the processes that it starts of itself. Those read what to
// do from standard input, as JSON, and write what came of it to standard output.
type cli struct {
	Run runCmd `cmd:"" default:"withargs" help:"Measure everything and print the table."`

	Load    childCmd[loadSpec] `cmd:"" hidden:"" help:"Send requests over HTTP."`
	SQL     childCmd[sqlSpec]  `cmd:"" hidden:"" name:"sql" help:"Decide with a transaction for each request."`
	Commits childCmd[sqlSpec]  `cmd:"" hidden:"" help:"Commit one row at a time."`
	Engine  childCmd[sqlSpec]  `cmd:"" hidden:"" help:"Decide in process."`
	Plain   plainCmd           `cmd:"" hidden:"" help:"Serve a chi handler that only decodes and encodes."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], streams{os.Stdin, os.Stdout, os.Stderr}))
}

// streams are those of the process: results to Out, progress to Err.
type streams struct {
	In  io.Reader
	Out io.Writer
	Err *os.File
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, arguments []string, s streams) int {
	commands := cli{
		Load:    childCmd[loadSpec]{run: runLoad},
		SQL:     childCmd[sqlSpec]{run: runSQL},
		Commits: childCmd[sqlSpec]{run: runCommits},
		Engine:  childCmd[sqlSpec]{run: runEngine},
	}
	exitCode := -1
	parser, err := kong.New(&commands,
		kong.Name("bench"),
		kong.Description("Measures quotad beside what it could be replaced with."),
		kong.UsageOnError(),
		kong.Writers(s.Out, s.Err),
		kong.Exit(func(code int) { exitCode = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(s),
	)
	if err != nil {
		fmt.Fprintln(s.Err, "bench:", err)
		return 1
	}
	command, err := parser.Parse(arguments)
	if exitCode >= 0 { // --help has been printed
		return exitCode
	}
	if err != nil {
		fmt.Fprintln(s.Err, "bench:", err)
		return 2
	}
	if err := command.Run(); err != nil {
		fmt.Fprintln(s.Err, "bench:", err)
		return 1
	}
	return 0
}
