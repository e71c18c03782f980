package quota

import (
	"fmt"
	"testing"
	"time"
)

// The end of a fixed window is told exactly, on days of 23 and 25 hours, in zones of half
// hours, and from anchors that a month does not have.
func TestAFixedWindowSaysItsExactEnd(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		window, zone string
		anchor       int
		at, end      string // UTC
	}{
		{"15m", "UTC", 1, "2026-03-01T12:07:00.000001Z", "2026-03-01T12:15:00Z"},
		{"hour", "Asia/Kolkata", 1, "2026-03-01T12:00:00Z", "2026-03-01T12:30:00Z"},
		{"day", "Europe/Berlin", 1, "2026-03-29T00:30:00Z", "2026-03-29T22:00:00Z"},        // 23 hours
		{"day", "Europe/Berlin", 1, "2026-10-25T00:30:00Z", "2026-10-25T23:00:00Z"},        // 25 hours
		{"hour", "Australia/Lord_Howe", 1, "2026-04-04T15:10:00Z", "2026-04-04T15:30:00Z"}, // set back by half an hour
		{"week", "America/New_York", 1, "2026-03-04T00:00:00Z", "2026-03-09T04:00:00Z"},
		{"month", "Asia/Jakarta", 31, "2026-02-15T00:00:00Z", "2026-02-27T17:00:00Z"}, // the 28th there
		{"month", "UTC", 29, "2028-02-15T00:00:00Z", "2028-02-29T00:00:00Z"},
		{"year", "UTC", 31, "2026-06-01T00:00:00Z", "2027-01-31T00:00:00Z"},
	} {
		t.Run(fmt.Sprintf("%d %s in %s", i, c.window, c.zone), func(t *testing.T) {
			t.Parallel()
			at, err := time.Parse(time.RFC3339Nano, c.at)
			if err != nil {
				t.Fatal(err)
			}
			w := newWorldAt(t, at, fmt.Sprintf(`
meters: {calls: {unit: call}}
plans: {pro: {limits: [{name: window, meter: calls, algorithm: fixed_window, limit: 5, window: %s}]}}
tenants: {acme: {plan: pro, timezone: %s, billing_anchor: %d}}
`, c.window, c.zone, c.anchor))
			w.db.Exec(t, "select quotad.ensure_partitions($1::timestamptz - interval '1 day', $1::timestamptz + interval '1 day')", at)
			d := mustDecide(t, w.engine(t, nil), consume("acme", "calls", 5))
			if got := d.Limits[0].ResetAt.Format(time.RFC3339Nano); got != c.end {
				t.Errorf("at %s the window ends at %s, want %s", c.at, got, c.end)
			}
			if got, want := d.Limits[0].ResetMS, ceilMillis(d.Limits[0].ResetAt.UnixMicro()-at.UnixMicro()); got != want {
				t.Errorf("it resets in %d ms, want %d", got, want)
			}
		})
	}
}
