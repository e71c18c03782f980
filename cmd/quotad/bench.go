package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/loadgen"
)

// benchCmd measures decisions a second and their latencies, of running instances or of
// one of its own on a private PostgreSQL that ends with it. It spends of tenants that it
// makes, unless it is told which ones it may spend of.
type benchCmd struct {
	URLs []string `name:"url" placeholder:"URL" help:"A running instance, or several; without, one on a private PostgreSQL that ends with the measurement."`
	Key  string   `name:"key" env:"QUOTAD_KEY" placeholder:"KEY" help:"API key for --url: with the scope admin the tenants to spend of are made, with decide name them by --tenant."`
	CA   string   `name:"ca" env:"QUOTAD_CA" placeholder:"FILE" help:"Trust the certificates in this file (PEM) in place of the system's."`

	Connections int           `name:"connections" default:"64" help:"How many connections send at the same time."`
	Rate        *int          `name:"rate" placeholder:"N" help:"Send N calls a second, at random intervals, and count times from when each was due. Without, each connection sends its next call when the last is answered."`
	Tenants     int           `name:"tenants" default:"1000" help:"How many tenants to make (quotad-bench-00001, ...) and to spread calls over."`
	Skew        float64       `name:"skew" default:"0" help:"How uneven: the nth tenant is called as often as 1/n to this power. 0 is even, 1 is usual."`
	Batch       int           `name:"batch" default:"1" help:"Requests a call; more than one are sent to /v1/consume/batch."`
	Keys        bool          `name:"idempotency-keys" help:"Send an idempotency key with each request, as callers do who retry."`
	Duration    time.Duration `name:"duration" default:"10s" help:"How long to measure."`
	Warmup      time.Duration `name:"warmup" default:"2s" help:"How long to send before that."`

	Tenant []string `name:"tenant" sep:"none" placeholder:"NAME" help:"Spend of this tenant of yours in place of new ones: what is used stays used. Give it once for each tenant. Needs --url and --meter."`
	Meter  string   `name:"meter" placeholder:"NAME" help:"The meter to spend of with --tenant."`
	Cost   int64    `name:"cost" default:"1" help:"Units that each request asks for."`

	JSON bool `name:"json" help:"Print one JSON object instead of the table."`
}

const (
	benchTenantsMax = 10_000
	benchLogin      = "quotad_bench"
)

// Validate is called by the parser.
func (cmd benchCmd) Validate() error {
	var errs []error
	bound := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	within := func(flag string, n, least, most int) {
		bound(n >= least && n <= most, "%s must be %d to %d", flag, least, most)
	}
	within("--connections", cmd.Connections, 1, loadgen.CallersMax)
	bound(cmd.Rate == nil || *cmd.Rate >= 1 && *cmd.Rate <= loadgen.PerSecondMax,
		"--rate must be 1 to %d; leave it out to send as fast as answers come", loadgen.PerSecondMax)
	within("--tenants", cmd.Tenants, 1, benchTenantsMax)
	within("--batch", cmd.Batch, 1, loadgen.BatchMax)
	bound(cmd.Skew >= 0 && cmd.Skew <= loadgen.SkewMax && !math.IsNaN(cmd.Skew), "--skew must be 0 to %d", loadgen.SkewMax)
	bound(cmd.Duration >= 100*time.Millisecond && cmd.Duration <= loadgen.TimeMax, "--duration must be 100ms to %s", loadgen.TimeMax)
	bound(cmd.Warmup >= 0 && cmd.Warmup <= loadgen.TimeMax, "--warmup must be 0s to %s", loadgen.TimeMax)
	bound(cmd.Cost >= 0 && cmd.Cost <= catalog.UnitsMax, "--cost must be 0 to %d", int64(catalog.UnitsMax))
	for _, text := range cmd.URLs {
		_, err := loadgen.ParseURL(text)
		bound(err == nil, "--url: %w", err)
	}
	bound(len(cmd.URLs) == 0 || cmd.Key != "", "--url needs --key, or QUOTAD_KEY")
	bound(len(cmd.URLs) > 0 || cmd.Key == os.Getenv("QUOTAD_KEY"), "--key needs --url: a private PostgreSQL has a key of its own")
	bound(len(cmd.Tenant) == 0 || len(cmd.URLs) > 0, "--tenant needs --url: a private PostgreSQL has none of your tenants")
	bound((len(cmd.Tenant) == 0) == (cmd.Meter == ""), "--tenant and --meter need each other")
	return errors.Join(errs...)
}

// Run measures and prints. What failed is told, and an error.
func (cmd benchCmd) Run(ctx context.Context, s *streams) (err error) {
	var trusted *tls.Config
	if cmd.CA != "" {
		roots, err := rootsFrom(cmd.CA)
		if err != nil {
			return fmt.Errorf("bench: --ca: %w", err)
		}
		trusted = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	}
	if len(cmd.URLs) == 0 {
		p, startErr := cmd.startPrivate(ctx, s)
		if startErr != nil {
			return stoppedEarly(ctx, startErr)
		}
		defer func() { err = errors.Join(err, p.close(ctx)) }()
	}
	client := loadgen.Client{URLs: cmd.URLs, TLS: trusted, Token: cmd.Key, Skew: cmd.Skew, Batch: cmd.Batch, Keys: cmd.Keys}
	if client.Items, err = cmd.items(ctx, s, trusted); err != nil {
		return stoppedEarly(ctx, err)
	}
	m, err := cmd.measure(ctx, s, &client)
	stopped := ctx.Err() != nil
	if err != nil && (!stopped || m.Counts == loadgen.Counts{} && m.Unended.Calls == 0) {
		return stoppedEarly(ctx, err)
	}
	if err := cmd.result(m, stopped).print(s.Out, cmd.JSON); err != nil {
		return err
	}
	if m.Total.Failed > 0 {
		return fmt.Errorf("bench: %d of %d requests failed", m.Total.Failed, m.Total.Decisions()+m.Total.Failed)
	}
	return nil
}

// rate is of calls a second, 0 for as fast as answers come.
func (cmd benchCmd) rate() int {
	if cmd.Rate == nil {
		return 0
	}
	return *cmd.Rate
}

// measure sends, and shows how far it is.
func (cmd benchCmd) measure(ctx context.Context, s *streams, client *loadgen.Client) (loadgen.Measurement, error) {
	d := loadgen.Drive{Callers: cmd.Connections, Warm: cmd.Warmup, Time: cmd.Duration, PerSecond: cmd.rate()}
	bar := newProgress(s.Err, int64(math.Ceil((d.Warm + d.Time).Seconds())), "seconds")
	defer bar.finish()
	var before loadgen.Counts
	var elapsedBefore time.Duration
	d.Tell = func(elapsed time.Duration, c loadgen.Counts) {
		if elapsed < elapsedBefore+time.Second {
			return
		}
		perSecond := float64(c.Decisions()-before.Decisions()) / (elapsed - elapsedBefore).Seconds()
		bar.note(fmt.Sprintf("seconds, %.0f decisions/s, %d failed", perSecond, c.Failed))
		bar.add(int64(elapsed.Seconds()) - bar.done)
		before, elapsedBefore = c, elapsed
	}
	return client.Run(ctx, d)
}

// startPrivate starts an instance and sets where it is, and an admin key.
func (cmd *benchCmd) startPrivate(ctx context.Context, s *streams) (*private, error) {
	log := slog.New(slog.NewTextHandler(s.Err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	p, err := startPrivate(ctx, s, "", benchLogin, serverConfig{Listen: "127.0.0.1:0", Log: log, RememberDenials: true})
	if err != nil {
		return nil, err
	}
	cmd.URLs = []string{p.server.URL()}
	_, cmd.Key, err = p.server.catalog.CreateKey(ctx, "quotad bench", catalog.KeySpec{
		Env: "dev", Name: "bench", Scopes: []catalog.KeyScope{catalog.KeyAdmin},
	})
	if err != nil {
		return nil, errors.Join(err, p.close(ctx))
	}
	return p, nil
}

// stoppedEarly says what a signal did, where there is nothing to print yet.
func stoppedEarly(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("bench: stopped before anything was measured")
	}
	if strings.HasPrefix(err.Error(), "bench: ") {
		return err
	}
	return fmt.Errorf("bench: %w", err)
}
