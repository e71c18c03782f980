package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

//go:embed demo.yaml
var demoConfig []byte

const (
	demoTenant = "acme"
	demoActor  = "quotad demo"
)

// demoCmd loads the demo into a database that is migrated already, beside the instances
// that serve it: what dev does for its own.
type demoCmd struct {
	Database databaseFlags `embed:""`
	Pooling  poolerFlags   `embed:""`
	Logging  logFlags      `embed:""`
	URL      string        `name:"url" default:"http://127.0.0.1:8080" help:"Where the instances are reached, for the lines that are printed."`
	JSON     bool          `name:"json" help:"Print one JSON object instead of the text."`
}

// Run applies the demo configuration, makes a key and replays a little traffic.
func (cmd demoCmd) Run(ctx context.Context, s *streams) error {
	pool, err := cmd.Database.open(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	database := pool.Config().ConnConfig
	conn, err := connectAsSession(ctx, database, cmd.Pooling.Pooler)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	conn.Close(ctx)
	store := catalog.NewStore(pool)
	engine, err := quota.NewEngine(quota.Config{
		Database: database, Pooler: cmd.Pooling.Pooler, Catalog: store, Log: cmd.Logging.logger(s.Err), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	group.Go(func() error { return engine.Run(running) })
	info, err := loadDemo(ctx, store, engine)
	stop()
	if err := errors.Join(err, group.Wait()); err != nil {
		return err
	}
	info.URL, info.DatabaseURL = cmd.URL, "$QUOTAD_DATABASE_URL"
	return info.print(s.Out, cmd.JSON)
}

// demoInfo is what a user of the demo needs to know.
type demoInfo struct {
	URL         string `json:"url"`
	AdminKey    string `json:"admin_key"`
	Tenant      string `json:"tenant"`
	DatabaseURL string `json:"database_url"`
}

// loadDemo applies the demo configuration, makes a key, and, into an empty ledger,
// replays a little traffic, so that there is something to look at.
func loadDemo(ctx context.Context, store *catalog.Store, engine *quota.Engine) (demoInfo, error) {
	config, err := catalog.ParseFile(demoConfig, "demo.yaml")
	if err != nil {
		return demoInfo{}, err
	}
	if _, err := store.Apply(ctx, demoActor, config, catalog.ApplyOptions{}); err != nil {
		return demoInfo{}, fmt.Errorf("demo: %w", err)
	}
	_, token, err := store.CreateKey(ctx, demoActor, catalog.KeySpec{
		Env: "dev", Name: "demo", Scopes: []catalog.KeyScope{catalog.KeyAdmin},
	})
	if err != nil {
		return demoInfo{}, fmt.Errorf("demo: %w", err)
	}
	if err := replayDemo(ctx, engine); err != nil {
		return demoInfo{}, fmt.Errorf("demo: replay demo traffic: %w", err)
	}
	return demoInfo{AdminKey: token, Tenant: demoTenant}, nil
}

// replayDemo sends what a small morning looks like: API calls, model calls with their
// tokens, and a free customer who runs out. Keys make a second start send nothing anew.
func replayDemo(ctx context.Context, engine *quota.Engine) error {
	regions := []string{"eu", "us", "ap"}
	for i := range 30 {
		requests := []quota.Request{
			{
				Tenant: demoTenant, Subject: fmt.Sprintf("user-%d", i%4), Dims: map[string]string{"region": regions[i%3]},
				Charges: []quota.Charge{{Meter: "api.calls", Cost: 1}},
			},
			{Tenant: "globex", Charges: []quota.Charge{{Meter: "api.calls", Cost: 1}}},
		}
		if i%3 == 0 {
			requests = append(requests, quota.Request{
				Tenant: demoTenant, Subject: fmt.Sprintf("user-%d", i%4), Dims: map[string]string{"model": "small"},
				Charges: []quota.Charge{{Meter: "llm.tokens", Pools: map[string]int64{
					"input_tokens": int64(400 + 37*i), "output_tokens": int64(20 + 11*i),
				}}},
			})
		}
		for n, r := range requests {
			r.Key = fmt.Sprintf("demo-%d-%d", i, n)
			if _, err := engine.Decide(ctx, r); err != nil {
				return err
			}
		}
	}
	return nil
}

const demoText = `quotad is running.

  url       %[1]s
  tenant    %[3]s
  key       %[2]s
  database  %[4]s

Ask whether %[3]s may make a call, see what is left, and look at the ledger:

  curl -s %[1]s/v1/consume -H 'Authorization: Bearer %[2]s' --json '{"tenant":"%[3]s","meter":"api.calls"}'
  curl -s %[1]s/v1/tenants/%[3]s/limits -H 'Authorization: Bearer %[2]s'
  curl -s '%[1]s/v1/tenants/%[3]s/entries?limit=5&order=desc' -H 'Authorization: Bearer %[2]s'

quotad verify --database-url '%[4]s' proves that everything follows from the ledger.
`

// print writes what to try, or one line of JSON.
func (i demoInfo) print(to io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(to)
		encoder.SetEscapeHTML(false) // a URL is to be read
		return encoder.Encode(i)
	}
	_, err := fmt.Fprintf(to, demoText, i.URL, i.AdminKey, i.Tenant, i.DatabaseURL)
	return err
}
