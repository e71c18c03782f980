// Command quotad decides whether a tenant may spend now, and keeps the ledger that
// proves it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// cli is every command, flag and environment variable. A command's Run method gets
// the context that ends on SIGINT or SIGTERM.
type cli struct {
	Serve       serveCmd       `cmd:"" help:"Run one instance: the HTTP API on a migrated database."`
	Migrate     migrateCmd     `cmd:"" help:"Bring the database's schema to this version, and make the login that serves."`
	Apply       applyCmd       `cmd:"" help:"Make the database agree with a file of meters, plans and tenants."`
	Key         keyCmd         `cmd:"" help:"Make, list and revoke API keys."`
	Simulate    simulateCmd    `cmd:"" help:"Tell what a plan would have decided on past traffic, from a CSV file, without a database."`
	Verify      verifyCmd      `cmd:"" help:"Prove that everything follows from the ledger; exit 1 and name the first bad entry if not."`
	Bench       benchCmd       `cmd:"" help:"Measure decisions a second and their latencies, of running instances or of one on a private PostgreSQL."`
	Dev         devCmd         `cmd:"" help:"Run everything with demo data on a private PostgreSQL that ends with it."`
	Demo        demoCmd        `cmd:"" help:"Load the demo into a migrated database and print a key."`
	Healthcheck healthcheckCmd `cmd:"" help:"Ask a running instance whether it is ready; exit 1 if it is not."`

	Version versionCmd `cmd:"" help:"Print the version."`
}

func main() {
	ending := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it; else a terminal that closes leaves nothing behind
		ending = append(ending, syscall.SIGHUP)
	}
	signal.Ignore(syscall.SIGPIPE) // whoever reads along may stop: a write fails then, and everything else ends as it should
	ctx, stop := signal.NotifyContext(context.Background(), ending...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr *os.File) int {
	var commands cli
	streams := &streams{Out: stdout, Err: stderr}
	exitCode := -1
	parser, err := kong.New(&commands,
		kong.Name("quotad"),
		kong.Description("Exact, durable, explainable quotas on PostgreSQL."),
		kong.UsageOnError(),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { exitCode = code }),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(streams),
	)
	if err != nil {
		fmt.Fprintln(stderr, "quotad:", err)
		return 1
	}
	command, err := parser.Parse(args)
	if exitCode >= 0 { // --help has been printed
		return exitCode
	}
	if err != nil {
		fmt.Fprintln(stderr, "quotad:", err)
		return 2
	}
	if err := command.Run(); err != nil {
		fmt.Fprintln(stderr, "quotad:", err)
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			return coded.ExitCode()
		}
		return 1
	}
	return 0
}

// streams is where a command writes: results to Out, progress and logs to Err.
type streams struct {
	Out *os.File
	Err *os.File
}
