package tidy

// exception lets one rule pass in one file. Symbol limits it to one thing in the file,
// as the finding names it; "" means all.
type exception struct {
	rule   string
	path   string
	symbol string
	reason string
}

var exceptions = []exception{
	{
		"no-exit", "cmd/quotad/main.go", "os.Exit",
		"the one place where the process ends",
	},
	{
		"no-exit", "internal/pgtest/process.go", "os.Exit",
		"it is the body of a TestMain, which ends a test process",
	},
	{
		"no-exit", "internal/bench/main.go", "os.Exit",
		"it is the main of a program of its own, which is not shipped",
	},
	{
		"no-fresh-context", "internal/bench/main.go", "context.Background",
		"the main of a program of its own makes the first context",
	},
	{
		"no-exit", "internal/mutants/main.go", "os.Exit",
		"it is the main of a program of its own, which is not shipped",
	},
	{
		"no-fresh-context", "internal/mutants/main.go", "context.Background",
		"the main of a program of its own makes the first context",
	},
	{
		"no-globals", "internal/pgtest/process.go", "shared",
		"a test process has one server, and its tests have nothing else in common that could own it",
	},
	{
		"no-skip", "internal/pgtest/process.go", "Skipf",
		"-short asks for the tests that need no server, and the reason is printed",
	},
	{
		"no-fresh-context", "internal/pgtest/db.go", "context.Background",
		"a cleanup runs after the test's own context has ended",
	},
	{
		"no-clock", "internal/quota/engine.go", "",
		"a deadline bounds how long a caller waits; it decides nothing",
	},
	{
		"no-clock", "internal/quota/runner.go", "",
		"deadlines of waiting calls and of resolving an unknown commit; they decide nothing",
	},
	{
		"no-clock", "internal/quota/health.go", "",
		"how long decisions have failed, for readiness; it decides nothing",
	},
	{
		"no-clock", "internal/quota/creation.go", "",
		"a call that waits for its tenant's account is answered by its deadline, which the process's clock measures; no decision sees it",
	},
	{
		"no-clock", "internal/quota/parked.go", "",
		"how long a busy tenant goes past its worker; it decides nothing",
	},
	{
		"no-clock", "internal/quota/batch.go", "",
		"how long a batch took, for a metric",
	},
	{
		"no-clock", "internal/quota/upkeep.go", "",
		"intervals of upkeep, and how far the database's clock is from this one",
	},
	{
		"no-clock", "internal/quota/exhaustion.go", "",
		"how old a remembered denial is: it is given again for a second, and can only deny",
	},
	{
		"no-clock", "internal/quota/reach.go", "",
		"how long the database is away, for the log",
	},
	{
		"no-clock", "internal/quota/degraded.go", "",
		"while the database is away there is no other clock: the database's, carried on by the monotonic one, is what local limits count by",
	},
	{
		"no-float", "internal/quota/metrics.go", "",
		"a metric's values and buckets are floats; none is read back",
	},
	{
		"machine-paths", "internal/devpg/binaries.go", "/home" + "/l",
		"where Homebrew on Linux puts binaries, on every machine",
	},
	{
		"machine-paths", "internal/devpg/binaries_test.go", "/home" + "/l",
		"the same place, in a test of the search",
	},
}
