package sim

import (
	"math/big"
	"testing"
	"time"
)

func at(t *testing.T, text string) int64 {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.UnixMicro()
}

// The checks of calendar windows stand on these instants.
func TestCalendarWindowsBeginWhereTheyShould(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Asia/Kolkata") // five and a half hours ahead
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		word, now, want string
		anchor          int
	}{
		{"hour", "2026-03-05T10:17:03+05:30", "2026-03-05T10:00:00+05:30", 1},
		{"day", "2026-03-05T00:00:00+05:30", "2026-03-05T00:00:00+05:30", 1},
		{"day", "2026-03-04T23:59:59+05:30", "2026-03-04T00:00:00+05:30", 1},
		{"week", "2026-03-05T10:17:03+05:30", "2026-03-02T00:00:00+05:30", 1},
		{"week", "2026-03-01T10:17:03+05:30", "2026-02-23T00:00:00+05:30", 1},
		{"month", "2026-03-05T10:17:03+05:30", "2026-03-01T00:00:00+05:30", 1},
		{"month", "2026-03-05T10:17:03+05:30", "2026-02-28T00:00:00+05:30", 31},
		{"month", "2024-02-29T10:17:03+05:30", "2024-02-29T00:00:00+05:30", 31},
		{"year", "2026-01-05T10:17:03+05:30", "2025-01-10T00:00:00+05:30", 10},
	} {
		got := time.UnixMicro(calendarStart(tt.word, at(t, tt.now), zone, tt.anchor)).In(zone).Format(time.RFC3339)
		if got != tt.want {
			t.Errorf("%s of %s with anchor %d begins at %s, want %s", tt.word, tt.now, tt.anchor, got, tt.want)
		}
	}
}

// The example of the contract: 84 in the last minute, 36 now, 15 s in, limit 100.
func TestTheSlidingCountersExample(t *testing.T) {
	t.Parallel()
	var s series
	start := at(t, "2026-01-15T12:01:00Z")
	s.add(0, start-1, 84)
	s.add(1, start, 36)
	u := slidingCounterUsage(&limit{window: 60e6, size: big.NewInt(100)}, &s, moment{start + 15e6, 2})
	if u.used.Int64() != 99 || !u.fits(big.NewInt(1)) || u.fits(big.NewInt(2)) {
		t.Errorf("used %s; 1 fits: %t, 2 fit: %t; want 99, true, false", u.used, u.fits(big.NewInt(1)), u.fits(big.NewInt(2)))
	}
	if cell(-1, 10) != -10 || cell(10, 10) != 10 {
		t.Error("cells are not aligned to the epoch")
	}
}
