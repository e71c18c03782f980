package quota

import (
	"runtime"
	"testing"
	"time"
)

// Partitions of entries are months and those of kept answers weeks. A clock that was
// ahead for a while leaves a tenant's time in a month that has its entries' partition,
// but not that week's for answers; the partition is then made where the tenant's time
// is, not where the clock is.
func TestPartitionsAreMadeWhereTheTenantsTimeIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	start := time.Date(2031, 5, 10, 12, 0, 0, 0, time.UTC)
	w.db.SetClock(t, start)
	e := w.engine(t, func(c *Config) { c.Deadline = 2 * time.Second })
	for !e.Health().Ready { // partitions up to July, and to its second week, are made before that
		runtime.Gosched()
	}
	ahead := time.Date(2031, 7, 31, 12, 0, 0, 0, time.UTC)
	w.db.SetClock(t, ahead)
	mustDecide(t, e, consume("acme", "calls", 1))
	w.db.SetClock(t, start)
	r := consume("acme", "calls", 1)
	r.Key = "k"
	if d := mustDecide(t, e, r); !d.Allowed || !d.DecidedAt.Equal(ahead) {
		t.Errorf("got %+v, want allowed at %v", d, ahead)
	}
	w.verify(t)
}
