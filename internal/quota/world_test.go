package quota

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
)

// world is a database with a configuration, for engines to work on.
type world struct {
	db      *pgtest.DB
	catalog *catalog.Store
	ledger  *ledger.Store
}

func newWorld(t testing.TB, config string) *world {
	t.Helper()
	return newWorldOf(t, pgtest.New(t), config)
}

// newWorldAt is a world whose clock stands at an instant.
func newWorldAt(t testing.TB, at time.Time, config string) *world {
	t.Helper()
	db := pgtest.New(t)
	db.SetClock(t, at)
	return newWorldOf(t, db, config)
}

func newWorldOf(t testing.TB, db *pgtest.DB, config string) *world {
	t.Helper()
	pool := db.Service(t)
	w := &world{db: db, catalog: catalog.NewStore(pool), ledger: ledger.NewStore(pool)}
	w.apply(t, config)
	return w
}

func (w *world) apply(t testing.TB, config string) {
	t.Helper()
	parsed, err := catalog.ParseFile([]byte(config), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.catalog.Apply(t.Context(), "test", parsed, catalog.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
}

// engine starts an engine that ends with the test. change may adjust its configuration.
func (w *world) engine(t testing.TB, change func(*Config)) *Engine {
	t.Helper()
	e, stop := w.stoppableEngine(t, change)
	t.Cleanup(stop)
	return e
}

// patience is how long engines of tests wait for a busy database, but for those that are
// about one that is away, which are hasty.
const patience = deadlineDefault

func hasty(c *Config) { c.DecisionDeadline = decisionDefault }

// stoppableEngine starts an engine that stop ends; calling it again does nothing.
func (w *world) stoppableEngine(t testing.TB, change func(*Config)) (e *Engine, stop func()) {
	t.Helper()
	database, err := pgx.ParseConfig(w.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Database: database,
		Catalog:  w.catalog,
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)),
		Metrics:  prometheus.NewRegistry(),

		DecisionDeadline: patience,
	}
	if change != nil {
		change(&config)
	}
	e, err = NewEngine(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run ended in %v", err)
		}
	})
	return e, stop
}

func consume(tenant, meter string, cost int64) Request {
	return Request{Tenant: tenant, Charges: []Charge{{Meter: meter, Cost: cost}}}
}

// decide decides r or fails the test.
func mustDecide(t testing.TB, e *Engine, r Request) Decision {
	t.Helper()
	d, err := e.Decide(t.Context(), r)
	if err != nil {
		t.Fatalf("Decide(%+v) ended in %v", r, err)
	}
	return d
}

func wantCode(t testing.TB, err error, code Code) *Error {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Code != code {
		t.Fatalf("got error %v, want code %s", err, code)
	}
	return e
}

func (w *world) entries(t testing.TB, tenant string) []ledger.Entry {
	t.Helper()
	page, err := w.ledger.Entries(t.Context(), ledger.EntryQuery{Tenant: tenant, Limit: ledger.EntriesMax})
	if err != nil {
		t.Fatal(err)
	}
	return page.Entries
}

// verify fails the test unless everything of every tenant follows from its entries.
func (w *world) verify(t testing.TB) {
	t.Helper()
	for _, finding := range w.findings(t) {
		t.Error(finding)
	}
}

func (w *world) findings(t testing.TB) []ledger.Finding {
	t.Helper()
	pool := w.db.Owner(t)
	heads, err := w.ledger.Heads(t.Context(), "", 10_000)
	if err != nil {
		t.Fatal(err)
	}
	verifier := NewVerifier(w.catalog)
	var findings []ledger.Finding
	for _, head := range heads {
		result, err := verifier.Verify(t.Context(), pool, head.Tenant, nil)
		if err != nil {
			t.Fatal(err)
		}
		findings = append(findings, result.Findings...)
	}
	strays, err := verifier.Strays(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	return append(findings, strays...)
}

// requestIDs returns how often each request stands in the ledger of tenant.
func (w *world) requestIDs(t testing.TB, tenant string) map[uuid.UUID]int {
	t.Helper()
	seen := make(map[uuid.UUID]int)
	for _, e := range w.entries(t, tenant) {
		seen[e.RequestID]++
	}
	return seen
}
