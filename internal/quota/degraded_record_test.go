package quota

import (
	"strings"
	"testing"
)

// charging2 is a tenant's request of several charges.
func charging2(tenant string, charges ...Charge) Request {
	return Request{Tenant: tenant, Charges: charges}
}

func containing(text string) func(string) bool {
	return func(s string) bool { return strings.Contains(s, text) }
}

func wantGauge(t testing.TB, e *Engine, want int) {
	t.Helper()
	if got := e.degraded.pending(); got != want {
		t.Errorf("%d grants are pending, want %d", got, want)
	}
}

// awaitPosted waits until every grant of an engine is in the ledger.
func (w *world) awaitPosted(t testing.TB, e *Engine) {
	t.Helper()
	awaitReach(t, e, "caught up", func() bool { return e.degraded.pending() == 0 })
}
