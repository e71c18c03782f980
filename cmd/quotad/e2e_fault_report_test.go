package main

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/sim"
)

// faultTableEnv names a file that the table of a run is written to.
const faultTableEnv = "QUOTAD_FAULT_TABLE"

// A faultReport is one table of all faults of a run.
type faultReport struct {
	started time.Time
	seed    uint64

	mu   sync.Mutex
	rows map[string]faultRow
}

// add adds one run of a fault, or several, and says so where a table is asked for.
func (r *faultReport) add(name string, more *faultRow, failed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	row := r.rows[name]
	row.runs += more.runs
	row.Tally = row.Tally.Add(more.Tally)
	row.recovered(more.longest)
	row.failed = row.failed || failed
	r.rows[name] = row
	if os.Getenv(faultTableEnv) != "" { // someone waits for the table
		fmt.Fprintf(os.Stderr, "%4.0f s: fault %d of %d, %s: %d runs, %d acknowledged\n",
			time.Since(r.started).Seconds(), len(r.rows), len(faults), name, row.runs, row.Acknowledged)
	}
}

// print writes the table to the file that the environment names, or to the test's log.
func (r *faultReport) print(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	var table strings.Builder
	fmt.Fprintf(&table, "%s, seed %d, %s\n\n", r.started.UTC().Format(time.DateOnly), r.seed, time.Since(r.started).Round(time.Second))
	table.WriteString("| fault | runs | acknowledged | lost | doubled | over limit | time to recover |\n|---|---|---|---|---|---|---|\n")
	for _, f := range faults {
		if row, ran := r.rows[f.name]; ran {
			fmt.Fprintf(&table, "| %s | %s |\n", f.name, row)
			if row.failed {
				fmt.Fprintf(&table, "| **failed: %s** | | | | | | |\n", f.name)
			}
		}
	}
	path := os.Getenv(faultTableEnv)
	if path == "" {
		t.Log("\n" + table.String())
	} else if err := os.WriteFile(path, []byte(table.String()), 0o644); err != nil {
		t.Error(err)
	}
}

// A faultRow is what became of one fault.
type faultRow struct {
	sim.Tally
	runs    int
	longest time.Duration // to recover
	failed  bool
}

func (r *faultRow) recovered(took time.Duration) { r.longest = max(r.longest, took) }

// String is the row of a table.
func (r faultRow) String() string {
	return fmt.Sprintf("%d | %d | %d | %d | %d | %.1f s", r.runs, r.Acknowledged, r.Lost, r.Doubled, r.Over, r.longest.Seconds())
}
