package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/loadgen"
	"github.com/quotad/quotad/internal/quota"
)

// runEngine decides in process: what is left of quotad without HTTP.
func runEngine(ctx context.Context, spec sqlSpec) (m measurement, err error) {
	config, err := pgx.ParseConfig(spec.Database)
	if err != nil {
		return m, err
	}
	pool, err := pgxpool.New(ctx, spec.Database)
	if err != nil {
		return m, err
	}
	defer pool.Close()
	engine, err := quota.NewEngine(quota.Config{
		Database: config, Catalog: catalog.NewStore(pool), Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		return m, err
	}
	running, stop := context.WithCancel(ctx)
	var group errgroup.Group
	group.Go(func() error { return engine.Run(running) })
	defer func() {
		stop()
		err = errors.Join(err, group.Wait())
	}()
	pools := callPools()
	decide := func(ctx context.Context, tenant string) (loadgen.Outcome, error) {
		d, err := engine.Decide(ctx, quota.Request{Tenant: tenant, Charges: []quota.Charge{{Meter: meterName, Pools: pools}}})
		return outcome(d.Allowed), err
	}
	met, err := meet(ctx, spec.Names, decide)
	if err != nil || spec.Each {
		m.Total = met
		return m, err
	}
	prepare := func(_ context.Context, i int) (loadgen.Caller, error) {
		random := rand.New(rand.NewPCG(2, uint64(i)))
		return func(ctx context.Context) (loadgen.Outcome, error) {
			return decide(ctx, spec.Names[random.IntN(len(spec.Names))])
		}, nil
	}
	m, err = spec.run(func(d loadgen.Drive) (loadgen.Measurement, error) { return d.Run(ctx, prepare) })
	m.Total.Allowed += met.Allowed
	m.CPU.Client, m.CPU.Service = 0, m.CPU.Client // it is the service
	return m, err
}

// meetCallers decide at a time for tenants that the engine has not met.
const meetCallers = 512

// meet decides once for each tenant, so that the engine is measured with what it
// remembers of them, as a service that has run for a while is.
func meet(ctx context.Context, names []string, decide func(context.Context, string) (loadgen.Outcome, error)) (loadgen.Counts, error) {
	var allowed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(meetCallers)
	for _, name := range names {
		group.Go(func() error {
			o, err := decide(ctx, name)
			allowed.Add(o.Allowed)
			return err
		})
	}
	err := group.Wait()
	return loadgen.Counts{Allowed: allowed.Load()}, err
}
