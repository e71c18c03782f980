package sim

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/api"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/quota"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const worldConfig = `
meters:
  calls:  {unit: call}
  tokens: {unit: token, weights: {input: 1, output: 4}}
  jobs:   {unit: job}
  mail:   {unit: mail}
  logins: {unit: attempt}
  posts:  {unit: post}
plans:
  all:
    limits:
      - {name: log,     meter: calls,  algorithm: sliding_log,     limit: 5,   window: 10s}
      - {name: hourly,  meter: calls,  algorithm: fixed_window,    limit: 100, window: 1h}
      - {name: daily,   meter: calls,  algorithm: fixed_window,    limit: 200, window: day}
      - {name: counter, meter: tokens, algorithm: sliding_counter, limit: 100, window: 10s}
      - {name: pool,    meter: tokens, algorithm: token_bucket,    capacity: 60, refill: 7/1m}
      - {name: smooth,  meter: mail,   algorithm: gcra,            burst: 3, rate: 1/7s}
      - {name: shape,   meter: jobs,   algorithm: leaky_bucket,    queue: 4, rate: 3/7s}
      - {name: each,    meter: logins, algorithm: sliding_log,     limit: 2, window: 1m, scope: subject}
      - {name: drip,    meter: logins, algorithm: token_bucket,    capacity: 3, refill: 1/1s, scope: subject}
      - {name: watch,   meter: posts,  algorithm: token_bucket,    capacity: 1, refill: 1/1m, mode: shadow}
      - {name: unused,  meter: posts,  algorithm: sliding_log,     limit: 0, window: 1m, mode: off}
      - {name: free,    meter: posts,  algorithm: sliding_log,     unlimited: true, window: 1m}
tenants:
  acme:   {plan: all, timezone: Asia/Jakarta}
  globex: {plan: all}
`

// A world is one instance on a database whose clock the test sets.
type world struct {
	db      *pgtest.DB
	catalog *catalog.Store
	url     string
	token   string
	calls   []Call
	tags    int
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db := pgtest.New(t)
	pool := db.Service(t)
	w := &world{db: db, catalog: catalog.NewStore(pool)}
	w.apply(t, worldConfig)
	database, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	engine, err := quota.NewEngine(quota.Config{Database: database, Catalog: w.catalog, Log: log, Metrics: registry, DecisionDeadline: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	handler, err := api.New(api.Config{
		Engine: engine, Ledger: ledger.NewStore(pool), Denials: quota.NewDenialStore(pool),
		Reader: quota.NewReader(pool, w.catalog), Catalog: w.catalog,
		Keys: catalog.NewAuthenticator(w.catalog, time.Now), Log: log, Metrics: registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running errgroup.Group
	running.Go(func() error { return engine.Run(ctx) })
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.Close()
		stop()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
	})
	_, w.token, err = w.catalog.CreateKey(t.Context(), "test", catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyAdmin}})
	if err != nil {
		t.Fatal(err)
	}
	w.url = server.URL
	db.SetClock(t, time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC))
	return w
}

func (w *world) apply(t *testing.T, config string) {
	t.Helper()
	parsed, err := catalog.ParseFile([]byte(config), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.catalog.Apply(t.Context(), "test", parsed, catalog.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
}

// send sends requests one after another and keeps the calls. Tags and URLs are added.
func (w *world) send(t *testing.T, requests ...Request) {
	t.Helper()
	calls, err := Load{
		Token: w.token, Workers: 1, Calls: len(requests), Time: time.Minute,
		Next: func(int, []Call) []Request {
			if len(requests) == 0 {
				return nil
			}
			next := requests[0]
			requests = requests[1:]
			next.URL = w.url
			if next.Tag == "" {
				w.tags++
				next.Tag = fmt.Sprint("call-", w.tags)
			}
			return []Request{next}
		},
	}.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.calls = append(w.calls, calls...)
}

func one(tenant, meter string, cost int64) Request {
	return Request{Tenant: tenant, Charges: []Charge{{Meter: meter, Cost: cost}}, Costs: map[string]int64{meter: cost}}
}

func (r Request) of(subject string) Request { r.Subject = subject; return r }
func (r Request) keyed(key string) Request  { r.Key, r.Tag = key, key; return r }
func (r Request) dry() Request              { r.DryRun = true; return r }
func (r Request) and(more ...Request) Request {
	r.Costs = map[string]int64{r.Charges[0].Meter: r.Charges[0].Cost}
	for _, m := range more {
		r.Charges = append(slices.Clone(r.Charges), m.Charges...)
		r.Costs[m.Charges[0].Meter] += m.Charges[0].Cost
	}
	return r
}

// live makes a history in which every limit was reached.
func (w *world) live(t *testing.T) {
	t.Helper()
	for round := range 4 {
		key := fmt.Sprint("key-", round)
		w.send(t,
			one("acme", "calls", 2),
			one("acme", "calls", 1).of("ann").and(one("acme", "jobs", 1), one("acme", "mail", 2)).keyed(key),
			one("acme", "calls", 1).of("ann").and(one("acme", "jobs", 1), one("acme", "mail", 2)).keyed(key),
			one("acme", "calls", 1).dry(),
			one("acme", "calls", 3),
			one("acme", "calls", 0),
			one("acme", "mail", 2).keyed("denied-"+key),
			one("acme", "tokens", 40),
			one("acme", "tokens", 30),
			Request{
				Tenant: "globex", Charges: []Charge{{Meter: "tokens", Pools: map[string]int64{"input": 3, "output": 4}}},
				Costs: map[string]int64{"tokens": 19},
			},
			one("acme", "jobs", 2),
			one("acme", "jobs", 2),
			one("acme", "logins", 1).of("ann"),
			one("acme", "logins", 1).of("bob"),
			one("acme", "logins", 2).of("bob"),
			one("acme", "logins", 1).of("nobody-yet").dry(),
			one("globex", "posts", 1).of("bob"),
			one("globex", "posts", 1),
			one("globex", "nothing", 1),
		)
		w.db.AdvanceClock(t, 5*time.Second+time.Duration(round)*777_123*time.Microsecond)
	}
}

// read reads the ledger as db sees it.
func read(t *testing.T, db Querier) *Ledger {
	t.Helper()
	l, err := Read(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// wantNone fails the test for every finding.
func wantNone(t *testing.T, found []string) {
	t.Helper()
	for _, line := range found {
		t.Error(line)
	}
}

// wantFound fails the test unless a finding holds the text.
func wantFound(t *testing.T, found []string, text string) {
	t.Helper()
	if !slices.ContainsFunc(found, func(line string) bool { return strings.Contains(line, text) }) {
		t.Errorf("got findings %q, want one with %q", found, text)
	}
}
