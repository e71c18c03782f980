package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// simulateCmd tells what a plan would have decided on past traffic: the service's own
// code on a CSV file, without a database.
type simulateCmd struct {
	Config string `name:"config" required:"" placeholder:"FILE" help:"Configuration with the plan and its meters."`
	Trace  string `name:"trace" required:"" placeholder:"FILE" help:"CSV of past traffic, - for standard input. Columns: time, tenant, and if present subject, meter, cost and the meter's pools; others are ignored."`
	Plan   string `name:"plan" placeholder:"NAME" help:"Plan that every tenant gets. Not needed when the file has only one."`
	Meter  string `name:"meter" placeholder:"NAME" help:"Meter of rows that name none. Not needed when the plan limits only one."`
	Top    int    `name:"top" default:"3" help:"How many of the tenants hit hardest to list."`
	JSON   bool   `name:"json" help:"Print the result as JSON."`
}

// rowsPerCheck is how many rows pass between looks at the context and the progress.
const rowsPerCheck = 1000

// Run decides every row of the trace in its order and prints what came of it.
func (cmd simulateCmd) Run(ctx context.Context, s *streams) error {
	data, err := os.ReadFile(cmd.Config)
	if err != nil {
		return fmt.Errorf("read the configuration: %w", err)
	}
	config, err := catalog.ParseFile(data, cmd.Config)
	if err != nil {
		return err
	}
	snapshot, tenants, err := config.Compile()
	if err != nil {
		return err
	}
	plan, err := cmd.choosePlan(snapshot, config)
	if err != nil {
		return err
	}
	file, size, err := cmd.open()
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	read := newTraceReader(bufio.NewReader(file), cmd.Trace, snapshot, cmd.chooseMeter(plan))
	bar := newProgress(s.Err, size, "bytes")
	result, err := simulate(ctx, quota.NewSimulator(snapshot, plan, tenants), read, newOutcome(plan), bar)
	bar.finish()
	if err != nil {
		return err
	}
	if cmd.JSON {
		return json.NewEncoder(s.Out).Encode(result.summary(cmd.Top))
	}
	return result.print(s.Out, cmd.Top)
}

// simulate decides the trace row by row.
func simulate(
	ctx context.Context, simulator *quota.Simulator, trace *traceReader, result *outcome, bar *progress,
) (*outcome, error) {
	for rows := 0; ; rows++ {
		if rows%rowsPerCheck == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			bar.add(trace.offset() - bar.done)
		}
		row, err := trace.next()
		if errors.Is(err, io.EOF) {
			return result, nil
		}
		if err != nil {
			return nil, err
		}
		decision, err := simulator.Decide(row.atMicros, &row.request)
		if err != nil {
			return nil, trace.explain(err)
		}
		if err := result.count(&decision); err != nil {
			return nil, err
		}
	}
}

// choosePlan returns the plan that was asked for, or the only one there is.
func (cmd simulateCmd) choosePlan(snapshot *catalog.Snapshot, config *catalog.Config) (*catalog.Plan, error) {
	names := slices.Sorted(maps.Keys(config.Plans))
	name := cmd.Plan
	if name == "" && len(names) == 1 {
		name = names[0]
	}
	if plan := snapshot.Plan(name); plan != nil {
		return plan, nil
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s has no plan", cmd.Config)
	}
	return nil, fmt.Errorf("--plan must be one of %s", strings.Join(names, ", "))
}

// chooseMeter returns the meter of rows that name none: the one that was asked for,
// or the only one the plan limits, or "".
func (cmd simulateCmd) chooseMeter(plan *catalog.Plan) string {
	if cmd.Meter != "" || len(plan.Limits) == 0 {
		return cmd.Meter
	}
	first := plan.Limits[0].Meter
	if slices.ContainsFunc(plan.Limits, func(l catalog.Limit) bool { return l.Meter != first }) {
		return ""
	}
	return first
}

// open opens the trace and tells its size in bytes, -1 if it has none.
func (cmd simulateCmd) open() (file *os.File, size int64, err error) {
	if cmd.Trace == "-" {
		return os.Stdin, -1, nil
	}
	if file, err = os.Open(cmd.Trace); err != nil {
		return nil, 0, fmt.Errorf("read the trace: %w", err)
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return file, -1, nil
	}
	return file, info.Size(), nil
}
