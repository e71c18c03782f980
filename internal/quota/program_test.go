package quota_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/quota"
)

const (
	programs      = 600 // each run has others
	benches       = 4   // databases, each with programs of its own
	benchEngines  = 3
	programsMax   = 800 // of one database, which has room for a thousand plans
	shorteningMax = 200 // programs tried to make a failing one shorter
)

// Random programs of everything that can be asked, by engines that share a database, get
// the answers that the design's rules give when they are worked out from the list of all
// that has happened: every number, every wait to the millisecond, every error. MODEL_SEED
// runs one program again; QUOTAD_SOAK says how long to go on.
func TestProgramsGetWhatTheDesignSays(t *testing.T) {
	t.Parallel()
	if text := os.Getenv("MODEL_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("MODEL_SEED = %q: %v", text, err)
		}
		newBench(t).check(t, newProgram(seed))
		return
	}
	first := rand.Uint64()
	t.Logf("programs from seed %d on", first)
	until := time.Now().Add(soak(t))
	for i := range uint64(benches) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			more := func(n uint64) bool {
				return !t.Failed() && (n < uint64(pgtest.Rounds(programs)/benches) || time.Now().Before(until))
			}
			for n := uint64(0); more(n); {
				t.Run(fmt.Sprint(n), func(t *testing.T) {
					b := newBench(t)
					for end := n + programsMax; n < end && more(n) && !t.Failed(); n++ {
						b.check(t, newProgram(first+n*benches+i))
					}
				})
			}
		})
	}
}

// soak is how long to go on, from QUOTAD_SOAK.
func soak(t *testing.T) time.Duration {
	text := cmp.Or(os.Getenv("QUOTAD_SOAK"), "0s")
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("QUOTAD_SOAK = %q, want a duration", text)
	}
	return d
}

// check runs a program; one that fails is made as short as it goes.
func (b *bench) check(t *testing.T, p program) {
	t.Helper()
	err := b.carryOut(t, p)
	if err == nil {
		return
	}
	p, err = b.shorten(t, p, err)
	t.Fatalf("MODEL_SEED=%d disagrees, in short:\n%v", p.seed, err)
}

// shorten leaves out what a program fails without.
func (b *bench) shorten(t *testing.T, p program, failure error) (program, error) {
	tried := 0
	try := func(shorter program) bool {
		if tried++; tried > shorteningMax {
			return false
		}
		err := b.carryOut(t, shorter)
		if err != nil {
			p, failure = shorter, err
		}
		return err != nil
	}
	for size := len(p.steps) / 2; size > 0; size /= 2 {
		for from := 0; from+size <= len(p.steps); {
			shorter := p
			shorter.steps = slices.Delete(slices.Clone(p.steps), from, from+size)
			if !try(shorter) {
				from += size
			}
		}
	}
	for _, l := range p.setting().limits {
		shorter := p
		shorter.without = maps.Clone(p.without)
		shorter.without[l.name] = true
		try(shorter)
	}
	return p, failure
}

// A bench is a database with a clock that stands, and engines on it.
type bench struct {
	db       *pgtest.DB
	catalog  *catalog.Store
	ledger   *ledger.Store
	verifier *quota.Verifier
	engines  []*quota.Engine
	meters   map[string]*meter
	clock    int64
	programs int // so far
}

func newBench(t *testing.T) *bench {
	t.Helper()
	db := pgtest.New(t)
	pool := db.Service(t)
	b := &bench{db: db, catalog: catalog.NewStore(pool), ledger: ledger.NewStore(pool), meters: map[string]*meter{}}
	b.verifier = quota.NewVerifier(b.catalog)
	b.setClock(t, firstClock.UnixMicro())
	config := &catalog.Config{Meters: map[string]catalog.MeterSpec{}}
	for _, expiry := range []catalog.Expiry{catalog.ExpiryRelease, catalog.ExpiryCharge} {
		suffix := map[catalog.Expiry]string{catalog.ExpiryCharge: ".charged"}[expiry]
		calls, tokens := "calls"+suffix, "tokens"+suffix
		config.Meters[calls] = catalog.MeterSpec{Unit: "call", OnExpiry: expiry}
		config.Meters[tokens] = catalog.MeterSpec{
			Unit: "token", OnExpiry: expiry, Weights: map[string]catalog.WeightText{"input": "1", "cached": "0.15"},
		}
		b.meters[calls] = &meter{name: calls, onExpiry: expiry}
		b.meters[tokens] = &meter{
			name: tokens, onExpiry: expiry, weights: map[string]*big.Rat{"input": big.NewRat(1, 1), "cached": big.NewRat(15, 100)},
		}
	}
	if _, err := b.catalog.Apply(t.Context(), "test", config, catalog.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	for range benchEngines {
		b.engines = append(b.engines, b.engine(t))
	}
	return b
}

// engine starts an engine that ends with the test.
func (b *bench) engine(t *testing.T) *quota.Engine {
	t.Helper()
	database, err := pgx.ParseConfig(b.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := quota.Config{
		Database: database, Catalog: b.catalog, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Workers: 1, DecisionDeadline: 5 * time.Second,
	}
	e, err := quota.NewEngine(config.WithoutUpkeep())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run ended in %v", err)
		}
	})
	return e
}

// setClock sets the database's clock, where it is not there already.
func (b *bench) setClock(t testing.TB, to int64) {
	if b.clock != to {
		b.db.SetClock(t, time.UnixMicro(to))
		b.clock = to
	}
}
