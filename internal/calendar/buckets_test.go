package calendar

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// How long each bucket of a range is says where clocks changed.
func TestBuckets(t *testing.T) {
	t.Parallel()
	repeat := func(n int, length string) (lengths []string) {
		for range n {
			lengths = append(lengths, length)
		}
		return lengths
	}
	for _, row := range []struct {
		name     string
		zone     string
		anchor   int
		word     Word
		from, to string
		want     []string // the length of each bucket
	}{
		{"days", "UTC", 1, wordDay, "2024-05-10T00:00:00Z", "2024-05-13T00:00:00Z", repeat(3, "24h0m0s")},
		{"cut at both ends", "UTC", 1, wordDay, "2024-05-10T18:00:00Z", "2024-05-12T00:00:00.000001Z", []string{"6h0m0s", "24h0m0s", "1µs"}},
		{"inside of one", "UTC", 1, wordMonth, "2024-05-10T18:00:00Z", "2024-05-10T18:00:00.000001Z", []string{"1µs"}},
		{"of a microsecond before and after an edge", "UTC", 1, wordHour, "2024-05-10T17:59:59.999999Z", "2024-05-10T18:00:00.000001Z", []string{"1µs", "1µs"}},

		{"a day of 23 hours", "America/New_York", 1, wordDay, "2024-03-09T05:00:00Z", "2024-03-12T04:00:00Z", []string{"24h0m0s", "23h0m0s", "24h0m0s"}},
		{"a day of 25 hours", "Europe/Berlin", 1, wordDay, "2024-10-25T22:00:00Z", "2024-10-28T23:00:00Z", []string{"24h0m0s", "25h0m0s", "24h0m0s"}},
		{"its 25 hours", "Europe/Berlin", 1, wordHour, "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z", repeat(25, "1h0m0s")},
		{"half an hour more", "Australia/Lord_Howe", 1, wordDay, "2024-04-05T13:00:00Z", "2024-04-08T13:30:00Z", []string{"24h0m0s", "24h30m0s", "24h0m0s"}},
		{"half an hour less", "Australia/Lord_Howe", 1, wordDay, "2024-10-04T13:30:00Z", "2024-10-07T13:00:00Z", []string{"24h0m0s", "23h30m0s", "24h0m0s"}},
		{"an hour of half an hour", "Australia/Lord_Howe", 1, wordHour, "2024-04-06T14:00:00Z", "2024-04-06T16:30:00Z", []string{"1h0m0s", "30m0s", "1h0m0s"}},

		{"days at +5:30", "Asia/Kolkata", 1, wordDay, "2024-05-09T18:30:00Z", "2024-05-11T18:30:00Z", repeat(2, "24h0m0s")},
		{"hours at +5:30", "Asia/Kolkata", 1, wordHour, "2024-05-10T10:00:00Z", "2024-05-10T12:00:00Z", []string{"30m0s", "1h0m0s", "30m0s"}},
		{"hours at +5:45", "Asia/Kathmandu", 1, wordHour, "2024-05-10T10:00:00Z", "2024-05-10T12:00:00Z", []string{"15m0s", "1h0m0s", "45m0s"}},
		{"days at +12:45", "Pacific/Chatham", 1, wordDay, "2024-05-09T11:15:00Z", "2024-05-11T11:15:00Z", repeat(2, "24h0m0s")},
		{"hours at +12:45", "Pacific/Chatham", 1, wordHour, "2024-05-10T10:00:00Z", "2024-05-10T12:00:00Z", []string{"15m0s", "1h0m0s", "45m0s"}},

		{"the day that Samoa skipped", "Pacific/Apia", 1, wordDay, "2011-12-29T10:00:00Z", "2012-01-01T10:00:00Z", repeat(3, "24h0m0s")},
		{"the week that had six days", "Pacific/Apia", 1, wordWeek, "2011-12-26T10:00:00Z", "2012-01-08T10:00:00Z", []string{"144h0m0s", "168h0m0s"}},

		{"minutes", "America/New_York", 1, Minute, "2024-03-10T06:58:30Z", "2024-03-10T07:01:00Z", []string{"30s", "1m0s", "1m0s"}},
		{"minutes of an offset with seconds", "Africa/Monrovia", 1, Minute, "1971-05-10T00:00:00Z", "1971-05-10T00:02:00Z", []string{"30s", "1m0s", "30s"}},

		{"weeks from Monday", "UTC", 1, wordWeek, "2024-12-25T00:00:00Z", "2025-01-08T00:00:00Z", []string{"120h0m0s", "168h0m0s", "48h0m0s"}},
		{"a week of 167 hours", "Europe/Berlin", 1, wordWeek, "2024-03-24T23:00:00Z", "2024-04-07T22:00:00Z", []string{"167h0m0s", "168h0m0s"}},
		{"months", "UTC", 1, wordMonth, "2024-01-01T00:00:00Z", "2024-04-01T00:00:00Z", []string{"744h0m0s", "696h0m0s", "744h0m0s"}},
		{"months from the last day", "UTC", 31, wordMonth, "2024-01-31T00:00:00Z", "2024-04-30T00:00:00Z", []string{"696h0m0s", "744h0m0s", "720h0m0s"}},
		{"months over a change of clocks", "America/New_York", 1, wordMonth, "2024-03-01T05:00:00Z", "2024-05-01T04:00:00Z", []string{"743h0m0s", "720h0m0s"}},
	} {
		edges, ok := calendarOf(t, row.zone, row.anchor).Buckets(row.word, micros(row.from), micros(row.to), 100)
		if !ok {
			t.Errorf("%s: more than a hundred buckets", row.name)
			continue
		}
		var got []string
		for i := range edges[1:] {
			got = append(got, (time.Duration(edges[i+1]-edges[i]) * time.Microsecond).String())
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s, want-, got+:\n%s", row.name, diff)
		}
	}
}

func TestBucketsAreBounded(t *testing.T) {
	t.Parallel()
	c := calendarOf(t, "UTC", 1)
	from := micros("2024-05-10T00:00:00Z")
	if edges, ok := c.Buckets(Minute, from, from+days, 1440); !ok || len(edges) != 1441 {
		t.Errorf("a day of minutes = %d edges, %t, want 1441", len(edges), ok)
	}
	if _, ok := c.Buckets(Minute, from, from+days+1, 1440); ok {
		t.Error("1441 buckets passed for 1440")
	}
	if _, ok := c.Buckets(Minute, 0, instantMaxMicros, 1440); ok {
		t.Error("8000 years of minutes passed for 1440")
	}
}
