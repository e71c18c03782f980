package quota

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
)

// BenchmarkDecide measures durable decisions in process: two limits a call, 64 callers,
// a server that waits for its disk.
func BenchmarkDecide(b *testing.B) {
	for _, tenants := range []int{1, 1000} {
		b.Run(fmt.Sprintf("tenants=%d", tenants), func(b *testing.B) { benchmarkDecide(b, tenants) })
	}
}

func benchmarkDecide(b *testing.B, tenants int) {
	const callers = 64
	server := pgtest.Server(b, devpg.Options{Fsync: true})
	db := pgtest.On(b, server)
	pool := db.Service(b)
	w := &world{db: db, catalog: catalog.NewStore(pool), ledger: ledger.NewStore(pool)}
	var config strings.Builder
	config.WriteString(`
meters:
  calls: {unit: call}
plans:
  wide:
    limits:
      - {name: hourly, meter: calls, algorithm: sliding_log, limit: 1000000000, window: 1h}
      - {name: burst,  meter: calls, algorithm: token_bucket, capacity: 1000000000, refill: 1000000/1s}
tenants:
`)
	for i := range tenants {
		fmt.Fprintf(&config, "  t%d: {plan: wide}\n", i)
	}
	w.apply(b, config.String())
	e := w.engine(b, nil)
	var next atomic.Int64
	var group sync.WaitGroup
	b.ResetTimer()
	for range callers {
		group.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if _, err := e.Decide(b.Context(), consume(fmt.Sprintf("t%d", i%int64(tenants)), "calls", 1)); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
}
