package main

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"

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
	prepare := func(_ context.Context, i int) (loadgen.Caller, error) {
		random := rand.New(rand.NewPCG(2, uint64(i)))
		return func(ctx context.Context) (loadgen.Outcome, error) {
			d, err := engine.Decide(ctx, quota.Request{
				Tenant:  spec.Names[random.IntN(len(spec.Names))],
				Charges: []quota.Charge{{Meter: meterName, Pools: pools}},
			})
			return outcome(d.Allowed), err
		}, nil
	}
	m, err = spec.run(func(d loadgen.Drive) (loadgen.Measurement, error) { return d.Run(ctx, prepare) })
	m.CPU.Client, m.CPU.Service = 0, m.CPU.Client // it is the service
	return m, err
}
