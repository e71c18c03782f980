package api

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// ledgerOf reads all entries of a tenant, the oldest first.
func (s *service) ledgerOf(tenant string) (entries []entryBody) {
	s.t.Helper()
	path := "/v1/tenants/" + tenant + "/entries?limit=1000"
	for cursor := ""; ; {
		page := read[struct {
			Entries    []entryBody
			NextCursor string `json:"next_cursor"`
		}](s.t, s.read(catalog.KeyAudit, path+cursor))
		entries = append(entries, page.Entries...)
		if page.NextCursor == "" {
			return entries
		}
		cursor = "&cursor=" + url.QueryEscape(page.NextCursor)
	}
}

// trailing is the most that was used in any window (t - length, t].
func trailing(entries []entryBody, length time.Duration) (most int64) {
	for i := range entries {
		sum := int64(0)
		for j := i; j >= 0 && entries[j].At.After(entries[i].At.Add(-length)); j-- {
			sum += entries[j].Units
		}
		most = max(most, sum)
	}
	return most
}

// greedy spends what it can at random instants, for as many steps.
func (s *service) greedy(tenant string, seed uint64, steps int, pause time.Duration) {
	s.t.Helper()
	random := rand.New(rand.NewPCG(4, seed))
	for range steps {
		items := make([]string, 4)
		for i := range items {
			items[i] = charging(tenant, random.Int64N(4)+1)
		}
		for _, a := range s.batch(items...).results(s.t) {
			s.decided(a)
		}
		s.pass(time.Duration(random.Int64N(int64(pause/time.Microsecond))) * time.Microsecond)
	}
}

// No trailing window of a sliding log ever holds more than the limit, wherever it ends,
// and the limit is there to be used.
func TestASlidingLogNeverPassesItsLimitInAnyTrailingWindow(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(10))
	s.greedy("log", 0, 80, 15*time.Second)
	if most := trailing(s.ledgerOf("log"), time.Minute); most != 10 {
		t.Errorf("%d were used in a trailing minute, want 10", most)
	}
}

// A fixed window promises no more than its cells: around a boundary twice the limit
// passes, which docs/limits.md says, and never more. What one window held is no
// concern of the next, even a microsecond later, and the other way round.
func TestAFixedWindowAdmitsTwiceItsLimitAroundItsBoundaryAndNoMore(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	s.greedy("cell", 0, 60, 20*time.Second)
	s.pass(2 * time.Minute)
	_, d := s.spend("cell", 0)
	boundary := d.DecidedAt.Truncate(time.Minute).Add(time.Minute)
	s.db.SetClock(t, boundary.Add(-time.Microsecond))
	s.admitted("cell", 5)
	s.denied("cell", 1)
	s.db.SetClock(t, boundary)
	if got := left(t, s.admitted("cell", 2)); got != 3 {
		t.Errorf("remaining = %d after 2 of a new window, want 3", got)
	}
	s.admitted("cell", 3)
	s.db.SetClock(t, boundary.Add(time.Minute-time.Microsecond))
	s.denied("cell", 1)
	if most := trailing(s.ledgerOf("cell"), time.Minute); most != 10 {
		t.Errorf("%d were used in a trailing minute, want 10", most)
	}
}

// A sliding counter decides by prev·(W−e) + (cur+cost)·W ≤ limit·W, here computed again
// from what the ledger holds; and whatever the traffic, no trailing window reaches twice
// the limit.
func TestASlidingCounterDecidesByItsFormula(t *testing.T) {
	t.Parallel()
	const limit, window = 10, int64(time.Minute / time.Microsecond)
	s := newKinds(t, configOf(limit))
	random := rand.New(rand.NewPCG(5, 0))
	cells := map[int64]int64{}
	for range 100 {
		cost := random.Int64N(5)
		_, d := s.spend("counter", cost)
		now := d.DecidedAt.UnixMicro()
		prev, cur, elapsed := cells[now/window-1], cells[now/window], now%window
		if want := cost == 0 || prev*(window-elapsed)+(cur+cost)*window <= limit*window; d.Allowed != want {
			t.Fatalf("cost %d with %d and %d, %d µs in: allowed = %t", cost, prev, cur, elapsed, d.Allowed)
		}
		if d.Allowed {
			cells[now/window] += cost
		}
		s.pass(time.Duration(random.Int64N(int64(20*time.Second/time.Microsecond))) * time.Microsecond)
	}
	// The worst that can be done: all at the end of a cell, then what fits at each
	// instant until the next one ends.
	s.pass(5 * time.Minute)
	_, d := s.spend("counter", 0)
	boundary := d.DecidedAt.Truncate(time.Minute).Add(time.Minute)
	s.db.SetClock(t, boundary.Add(-time.Microsecond))
	s.admitted("counter", limit)
	for elapsed := 3 * time.Second; elapsed < time.Minute; elapsed += 3 * time.Second {
		s.db.SetClock(t, boundary.Add(elapsed))
		s.spend("counter", 1)
	}
	entries := s.ledgerOf("counter")
	if most := trailing(entries, time.Minute); most != 2*limit-1 {
		t.Errorf("%d were used in a trailing minute, want the worst, %d", most, 2*limit-1)
	}
}

// What was used counts until the last microsecond of its window, also in the cell
// before, and not in the next one: nothing is thrown away early or kept too long.
func TestUsageCountsUntilTheLastMicrosecondOfItsWindow(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	at := time.Date(2026, 2, 10, 9, 59, 59, 999_999_000, time.UTC) // a microsecond before a minute and an hour begin
	for _, tt := range []struct {
		kind string
		gone time.Time // when nothing counts any more
		last int64     // what still counts just before
	}{
		{"log", at.Add(time.Minute), 5},
		{"counter", at.Add(time.Minute + time.Microsecond), 1}, // 5 of the cell before, by 1/60,000,000
		{"cell", at.Add(time.Microsecond), 5},
		{"hour", at.Add(time.Microsecond), 5},
		{"day", time.Date(2026, 2, 11, 5, 0, 0, 0, time.UTC), 5},
		{"week", time.Date(2026, 2, 16, 5, 0, 0, 0, time.UTC), 5},
		{"month", time.Date(2026, 2, 28, 5, 0, 0, 0, time.UTC), 5},
		{"year", time.Date(2027, 1, 31, 5, 0, 0, 0, time.UTC), 5},
	} {
		s.db.SetClock(t, at)
		s.admitted(tt.kind, 5)
		s.db.SetClock(t, tt.gone.Add(-time.Microsecond))
		if got := s.would(tt.kind, 0)[0].Limits[0].Used; got != tt.last {
			t.Errorf("%s: %d used a microsecond before %v, want %d", tt.kind, got, tt.gone, tt.last)
		}
		s.db.SetClock(t, tt.gone)
		if got := s.would(tt.kind, 0)[0].Limits[0].Used; got != 0 {
			t.Errorf("%s: %d used at %v, want 0", tt.kind, got, tt.gone)
		}
	}
}

// A fixed window ends when it was going to end: calls do not put it off, allowed or
// denied, and there is no timer that each of them starts again.
func TestTrafficDoesNotMoveTheEndOfAFixedWindow(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	eachKind(t, s, func(t *testing.T, s *service, k kind) {
		if !k.fixed() {
			return
		}
		first := s.admitted(k.name, 1)
		end := first.DecidedAt.Add(time.Duration(first.Limits[0].ResetMS) * time.Millisecond)
		for range 8 {
			s.passMillis(5432)
			_, d := s.spend(k.name, 1)
			if got := d.DecidedAt.Add(time.Duration(d.Limits[0].ResetMS) * time.Millisecond); !got.Equal(end) {
				t.Errorf("at %v the window ends at %v, want %v", d.DecidedAt, got, end)
			}
		}
		s.db.SetClock(t, end)
		if got := left(t, s.admitted(k.name, 1)); got != 4 {
			t.Errorf("remaining = %d after the first call of a window, want 4", got)
		}
	})
}

// Days, weeks, months and years are those of the tenant's zone, across changes of its
// clocks, and months begin on its billing anchor or on the last day of a shorter month.
// The first call after the end of one starts from nothing.
func TestCalendarWindowsFollowTheTenantsZoneAndAnchor(t *testing.T) {
	t.Parallel()
	rows := []struct {
		zone   string
		anchor int
		word   string
		end    string        // of a window, the start of the next one
		next   time.Duration // the length of that
	}{
		{"UTC", 1, "day", "2026-02-01T00:00:00Z", 24 * time.Hour},
		{"Asia/Jakarta", 1, "day", "2026-02-01T17:00:00Z", 24 * time.Hour},
		{"Asia/Kolkata", 1, "hour", "2026-02-01T17:30:00Z", time.Hour},
		{"Asia/Kolkata", 1, "day", "2026-02-01T18:30:00Z", 24 * time.Hour},
		{"America/New_York", 1, "day", "2026-03-08T05:00:00Z", 23 * time.Hour},
		{"America/New_York", 1, "day", "2026-11-01T04:00:00Z", 25 * time.Hour},
		{"America/New_York", 1, "hour", "2026-11-01T06:00:00Z", time.Hour}, // 1 o'clock comes twice
		{"Europe/Berlin", 1, "week", "2026-03-22T23:00:00Z", 7*24*time.Hour - time.Hour},
		{"America/New_York", 1, "month", "2026-03-01T05:00:00Z", 31*24*time.Hour - time.Hour},
		{"UTC", 31, "month", "2027-02-28T00:00:00Z", 31 * 24 * time.Hour},
		{"UTC", 31, "month", "2028-02-29T00:00:00Z", 31 * 24 * time.Hour},
		{"UTC", 31, "month", "2026-04-30T00:00:00Z", 31 * 24 * time.Hour},
		{"Asia/Jakarta", 15, "month", "2026-02-14T17:00:00Z", 28 * 24 * time.Hour},
		{"UTC", 1, "year", "2027-01-01T00:00:00Z", 365 * 24 * time.Hour},
		{"UTC", 1, "year", "2028-01-01T00:00:00Z", 366 * 24 * time.Hour},
		{"Pacific/Auckland", 15, "year", "2027-01-14T11:00:00Z", 365 * 24 * time.Hour},
	}
	c := &configuration{}
	for i, tt := range rows {
		name := fmt.Sprintf("row-%d", i)
		c.plans = append(c.plans, fmt.Sprintf(`%q:%s`, name, planOf(
			fmt.Sprintf(`{"name":"it","meter":"api.calls","algorithm":"fixed_window","limit":5,"window":%q}`, tt.word))))
		c.tenants = append(c.tenants, fmt.Sprintf(`%q:{"plan":%q,"timezone":%q,"billing_anchor":%d}`, name, name, tt.zone, tt.anchor))
	}
	s := newKinds(t, c)
	for i, tt := range rows {
		name := fmt.Sprintf("row-%d", i)
		end, err := time.Parse(time.RFC3339, tt.end)
		if err != nil {
			t.Fatal(err)
		}
		s.db.SetClock(t, end.Add(-time.Microsecond))
		s.admitted(name, 5)
		if got := retryMillis(t, s.denied(name, 1)); got != 1 {
			t.Errorf("%s of %s before %s: a wait of %d ms, want 1", tt.word, tt.zone, tt.end, got)
		}
		s.db.SetClock(t, end)
		d := s.admitted(name, 1)
		if got := left(t, d); got != 4 {
			t.Errorf("%s of %s at %s: remaining = %d, want 4", tt.word, tt.zone, tt.end, got)
		}
		if got := time.Duration(d.Limits[0].ResetMS) * time.Millisecond; got != tt.next {
			t.Errorf("%s of %s at %s: it ends after %v, want %v", tt.word, tt.zone, tt.end, got, tt.next)
		}
	}
}

// A month of the calendar and thirty days are different limits: the one ends at once,
// the other lets go of each unit when it is that old.
func TestThirtyDaysAreNotAMonth(t *testing.T) {
	t.Parallel()
	c := &configuration{}
	c.tenant("both", planOf(
		`{"name":"month","meter":"api.calls","algorithm":"fixed_window","limit":10,"window":"month"}`,
		`{"name":"rolling","meter":"api.calls","algorithm":"sliding_log","limit":10,"window":"720h"}`,
	))
	s := newKinds(t, c)
	at := time.Date(2026, 2, 27, 12, 0, 0, 0, time.UTC)
	s.db.SetClock(t, at)
	s.admitted("both", 4)
	for _, tt := range []struct {
		at             time.Time
		month, rolling int64
	}{
		{time.Date(2026, 2, 28, 4, 59, 0, 0, time.UTC), 4, 4},
		{time.Date(2026, 2, 28, 5, 0, 0, 0, time.UTC), 0, 4},
		{at.Add(720*time.Hour - time.Microsecond), 0, 4},
		{at.Add(720 * time.Hour), 0, 0},
	} {
		s.db.SetClock(t, tt.at)
		l := s.would("both", 0)[0].Limits
		if l[0].Used != tt.month || l[1].Used != tt.rolling {
			t.Errorf("at %v: %d of the month and %d of 30 days used, want %d and %d", tt.at, l[0].Used, l[1].Used, tt.month, tt.rolling)
		}
	}
}

// A span of nothing, over which no rate and no count means anything, is refused when it
// is configured.
func TestASpanOfNothingIsRefused(t *testing.T) {
	t.Parallel()
	s := newKinds(t, configOf(5))
	for _, k := range kinds {
		for _, span := range []string{"0s", "-1m", "0", "1ns", ""} {
			limit := strings.NewReplacer(`"window":"1m"`, `"window":"`+span+`"`, `7/1m`, `7/`+span).Replace(k.limitOf("it", 5))
			if limit == k.limitOf("it", 5) {
				continue // a word of the calendar has a length
			}
			field := "limits[0].window"
			for _, name := range []string{"refill", "rate"} {
				if strings.Contains(limit, `"`+name+`"`) {
					field = "limits[0]." + name
				}
			}
			s.admin("PUT", "/v1/plans/"+k.name, planOf(limit)).wantFault(t, field, "")
		}
	}
}
