package calendar

import (
	"testing"
	"time"
)

const (
	wordHour  = Hour
	wordDay   = Day
	wordWeek  = Week
	wordMonth = Month
	wordYear  = Year
)

func calendarOf(t testing.TB, zone string, anchorDay int, past ...Past) *Calendar {
	t.Helper()
	c, err := New(Setting{Timezone: zone, BillingAnchor: anchorDay}, past, time.LoadLocation)
	if err != nil {
		t.Fatalf("New(%s, %d): %v", zone, anchorDay, err)
	}
	return c
}

// Each row is a window: its first and its last microsecond are in it, some between
// too, and its neighbours meet it.
func TestCalendarWindows(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name       string
		zone       string
		anchor     int
		word       Word
		start, end string
	}{
		{"a day", "UTC", 1, wordDay, "2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z"},
		{"a day of a zone", "Asia/Jakarta", 1, wordDay, "2024-05-09T17:00:00Z", "2024-05-10T17:00:00Z"},
		{"the last day of a leap year after the listed changes", "Europe/Berlin", 1, wordDay, "2040-12-30T23:00:00Z", "2040-12-31T23:00:00Z"},
		{"the year after it", "Europe/Berlin", 1, wordYear, "2040-12-31T23:00:00Z", "2041-12-31T23:00:00Z"},
		{"the last hour of that year", "America/New_York", 1, wordHour, "2041-01-01T04:00:00Z", "2041-01-01T05:00:00Z"},
		{"the leap day", "UTC", 1, wordDay, "2024-02-29T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"the first instant", "UTC", 1, wordDay, "1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z"},
		{"the last year", "UTC", 1, wordYear, "9999-01-01T00:00:00Z", "+10000-01-01T00:00:00Z"},

		{"New York springs forward: 23 hours", "America/New_York", 1, wordDay, "2024-03-10T05:00:00Z", "2024-03-11T04:00:00Z"},
		{"New York falls back: 25 hours", "America/New_York", 1, wordDay, "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z"},
		{"and after it as ever", "America/New_York", 1, wordDay, "2024-11-04T05:00:00Z", "2024-11-05T05:00:00Z"},
		{"Berlin springs forward", "Europe/Berlin", 1, wordDay, "2024-03-30T23:00:00Z", "2024-03-31T22:00:00Z"},
		{"Berlin falls back", "Europe/Berlin", 1, wordDay, "2024-10-26T22:00:00Z", "2024-10-27T23:00:00Z"},
		{"Lord Howe falls back by half an hour", "Australia/Lord_Howe", 1, wordDay, "2024-04-06T13:00:00Z", "2024-04-07T13:30:00Z"},
		{"Lord Howe springs forward by half an hour", "Australia/Lord_Howe", 1, wordDay, "2024-10-05T13:30:00Z", "2024-10-06T13:00:00Z"},
		{"Kolkata", "Asia/Kolkata", 1, wordDay, "2024-05-09T18:30:00Z", "2024-05-10T18:30:00Z"},
		{"no midnight in Sao Paulo: from 01:00", "America/Sao_Paulo", 1, wordDay, "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z"},
		{"the day before it", "America/Sao_Paulo", 1, wordDay, "2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z"},
		{"23:00 twice in Sao Paulo", "America/Sao_Paulo", 1, wordDay, "2018-02-17T02:00:00Z", "2018-02-18T03:00:00Z"},
		{"midnight twice in Havana: from the first", "America/Havana", 1, wordDay, "2024-11-03T04:00:00Z", "2024-11-04T05:00:00Z"},
		{"the old date comes back at 00:01 in St. John's", "America/St_Johns", 1, wordDay, "2010-11-07T02:30:00Z", "2010-11-08T03:30:00Z"},
		{"the day before it", "America/St_Johns", 1, wordDay, "2010-11-06T02:30:00Z", "2010-11-07T02:30:00Z"},
		{"Apia before it skips a day", "Pacific/Apia", 1, wordDay, "2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z"},
		{"Apia after it skipped a day", "Pacific/Apia", 1, wordDay, "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"},

		{"an hour", "UTC", 1, wordHour, "2024-05-10T12:00:00Z", "2024-05-10T13:00:00Z"},
		{"an hour of a half-hour zone", "Asia/Kolkata", 1, wordHour, "2024-05-10T10:30:00Z", "2024-05-10T11:30:00Z"},
		{"an hour of a quarter-hour zone", "Asia/Kathmandu", 1, wordHour, "2024-05-10T10:15:00Z", "2024-05-10T11:15:00Z"},
		{"01:00 in New York", "America/New_York", 1, wordHour, "2024-11-03T05:00:00Z", "2024-11-03T06:00:00Z"},
		{"01:00 in New York again", "America/New_York", 1, wordHour, "2024-11-03T06:00:00Z", "2024-11-03T07:00:00Z"},
		{"01:00 in New York, then 03:00", "America/New_York", 1, wordHour, "2024-03-10T06:00:00Z", "2024-03-10T07:00:00Z"},
		{"03:00 in New York", "America/New_York", 1, wordHour, "2024-03-10T07:00:00Z", "2024-03-10T08:00:00Z"},
		{"01:00 in Lord Howe", "Australia/Lord_Howe", 1, wordHour, "2024-04-06T14:00:00Z", "2024-04-06T15:00:00Z"},
		{"01:30 in Lord Howe again, for half an hour", "Australia/Lord_Howe", 1, wordHour, "2024-04-06T15:00:00Z", "2024-04-06T15:30:00Z"},
		{"02:00 in Lord Howe", "Australia/Lord_Howe", 1, wordHour, "2024-04-06T15:30:00Z", "2024-04-06T16:30:00Z"},
		{"01:00 in Lord Howe, then 02:30", "Australia/Lord_Howe", 1, wordHour, "2024-10-05T14:30:00Z", "2024-10-05T15:30:00Z"},
		{"02:30 in Lord Howe, for half an hour", "Australia/Lord_Howe", 1, wordHour, "2024-10-05T15:30:00Z", "2024-10-05T16:00:00Z"},

		{"00:00 in St. John's, for one minute", "America/St_Johns", 1, wordHour, "2010-11-07T02:30:00Z", "2010-11-07T02:31:00Z"},
		{"23:01 in St. John's again", "America/St_Johns", 1, wordHour, "2010-11-07T02:31:00Z", "2010-11-07T03:30:00Z"},
		{"the hour a year of UTC ends in", "Australia/Adelaide", 1, wordHour, "2044-12-31T23:30:00Z", "2045-01-01T00:30:00Z"},

		{"a week from Monday", "UTC", 1, wordWeek, "2024-05-06T00:00:00Z", "2024-05-13T00:00:00Z"},
		{"a week over the year's end", "UTC", 1, wordWeek, "2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z"},
		{"the week of the first instant", "UTC", 1, wordWeek, "1969-12-29T00:00:00Z", "1970-01-05T00:00:00Z"},
		{"a week of 167 hours", "America/New_York", 1, wordWeek, "2024-03-04T05:00:00Z", "2024-03-11T04:00:00Z"},
		{"weeks take no anchor", "UTC", 17, wordWeek, "2024-05-06T00:00:00Z", "2024-05-13T00:00:00Z"},

		{"a month", "UTC", 1, wordMonth, "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z"},
		{"a month over the year's end", "UTC", 15, wordMonth, "2024-12-15T00:00:00Z", "2025-01-15T00:00:00Z"},
		{"a month of a zone", "Asia/Jakarta", 1, wordMonth, "2024-04-30T17:00:00Z", "2024-05-31T17:00:00Z"},
		{"a month over a change of clocks", "America/New_York", 1, wordMonth, "2024-03-01T05:00:00Z", "2024-04-01T04:00:00Z"},
		{"anchor 31: January to the leap day", "UTC", 31, wordMonth, "2024-01-31T00:00:00Z", "2024-02-29T00:00:00Z"},
		{"anchor 31: the leap day to March", "UTC", 31, wordMonth, "2024-02-29T00:00:00Z", "2024-03-31T00:00:00Z"},
		{"anchor 31: March to April", "UTC", 31, wordMonth, "2024-03-31T00:00:00Z", "2024-04-30T00:00:00Z"},
		{"anchor 31: December to January", "UTC", 31, wordMonth, "2024-12-31T00:00:00Z", "2025-01-31T00:00:00Z"},
		{"anchor 31 in a common year", "UTC", 31, wordMonth, "2023-02-28T00:00:00Z", "2023-03-31T00:00:00Z"},
		{"anchor 29 in a leap year", "UTC", 29, wordMonth, "2024-02-29T00:00:00Z", "2024-03-29T00:00:00Z"},
		{"anchor 29 in a common year", "UTC", 29, wordMonth, "2023-02-28T00:00:00Z", "2023-03-29T00:00:00Z"},
		{"anchor 30", "UTC", 30, wordMonth, "2023-01-30T00:00:00Z", "2023-02-28T00:00:00Z"},

		{"a year", "UTC", 1, wordYear, "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"},
		{"a year from its anchor", "UTC", 31, wordYear, "2024-01-31T00:00:00Z", "2025-01-31T00:00:00Z"},
		{"a year of a zone", "Pacific/Auckland", 1, wordYear, "2023-12-31T11:00:00Z", "2024-12-31T11:00:00Z"},
	} {
		start, end := micros(row.start), endMicros(row.end)
		c := calendarOf(t, row.zone, row.anchor)
		for _, now := range []int64{start, start + (end-start)/50, start + (end-start)/2, end - 1} {
			if gotStart, gotEnd := c.Window(row.word, now); gotStart != start || gotEnd != end {
				t.Errorf("%s: window at %s = [%s, %s), want [%s, %s)",
					row.name, instant(now), instant(gotStart), instant(gotEnd), row.start, row.end)
			}
		}
		if _, gotEnd := c.Window(row.word, start-1); gotEnd != start {
			t.Errorf("%s: the window before ends at %s, want %s", row.name, instant(gotEnd), row.start)
		}
		if gotStart, _ := c.Window(row.word, end); gotStart != end {
			t.Errorf("%s: the window after starts at %s, want %s", row.name, instant(gotStart), row.end)
		}
	}
}

// endMicros reads an instant of the year 10000 too, which RFC 3339 cannot write.
func endMicros(text string) int64 {
	if text == "+10000-01-01T00:00:00Z" {
		return instantMaxMicros + 1
	}
	return micros(text)
}

// A changed calendar starts with the next window.
func TestCalendarChanges(t *testing.T) {
	t.Parallel()
	until := func(text, zone string, anchor int) Past {
		return Past{Until: time.UnixMicro(micros(text)), Timezone: zone, BillingAnchor: anchor}
	}
	for _, row := range []struct {
		name    string
		word    Word
		zone    string
		anchor  int
		past    []Past
		windows []string // the starts of windows that follow each other
	}{
		{
			"a zone ahead", wordDay, "Asia/Tokyo", 1,
			[]Past{until("2024-05-10T12:00:00Z", "UTC", 1)},
			[]string{"2024-05-09T00:00:00Z", "2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z", "2024-05-11T15:00:00Z", "2024-05-12T15:00:00Z"},
		},
		{
			"a zone behind", wordDay, "America/New_York", 1,
			[]Past{until("2024-05-10T12:00:00Z", "UTC", 1)},
			[]string{"2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z", "2024-05-11T04:00:00Z", "2024-05-12T04:00:00Z"},
		},
		{
			"a change on the boundary", wordDay, "Asia/Tokyo", 1,
			[]Past{until("2024-05-11T00:00:00Z", "UTC", 1)},
			[]string{"2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z", "2024-05-11T15:00:00Z"},
		},
		{
			"a change a microsecond later", wordDay, "Asia/Tokyo", 1,
			[]Past{until("2024-05-11T00:00:00.000001Z", "UTC", 1)},
			[]string{"2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z", "2024-05-12T00:00:00Z", "2024-05-12T15:00:00Z"},
		},
		{
			"an anchor", wordMonth, "UTC", 15,
			[]Past{until("2024-05-10T12:00:00Z", "UTC", 1)},
			[]string{"2024-04-01T00:00:00Z", "2024-05-01T00:00:00Z", "2024-06-01T00:00:00Z", "2024-06-15T00:00:00Z", "2024-07-15T00:00:00Z"},
		},
		{
			"an anchor, seen by days", wordDay, "UTC", 15,
			[]Past{until("2024-05-10T12:00:00Z", "UTC", 1)},
			[]string{"2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z", "2024-05-12T00:00:00Z"},
		},
		{
			"two changes in one window: the newest counts", wordDay, "America/New_York", 1,
			[]Past{until("2024-05-10T10:00:00Z", "UTC", 1), until("2024-05-10T12:00:00Z", "Asia/Tokyo", 1)},
			[]string{"2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z", "2024-05-11T04:00:00Z"},
		},
		{
			"a second change on the boundary: the newest counts", wordDay, "America/New_York", 1,
			[]Past{until("2024-05-10T10:00:00Z", "UTC", 1), until("2024-05-11T00:00:00Z", "Asia/Tokyo", 1)},
			[]string{"2024-05-10T00:00:00Z", "2024-05-11T00:00:00Z", "2024-05-11T04:00:00Z"},
		},
		{
			"there and back", wordMonth, "UTC", 1,
			[]Past{until("2024-05-10T10:00:00Z", "UTC", 1), until("2024-05-20T12:00:00Z", "Asia/Tokyo", 20)},
			[]string{"2024-05-01T00:00:00Z", "2024-06-01T00:00:00Z", "2024-07-01T00:00:00Z"},
		},
		{
			"a change in a shortened window", wordMonth, "UTC", 20,
			[]Past{until("2024-05-10T10:00:00Z", "UTC", 1), until("2024-06-05T12:00:00Z", "UTC", 10)},
			[]string{"2024-05-01T00:00:00Z", "2024-06-01T00:00:00Z", "2024-06-10T00:00:00Z", "2024-06-20T00:00:00Z", "2024-07-20T00:00:00Z"},
		},
	} {
		c := calendarOf(t, row.zone, row.anchor, row.past...)
		for i, text := range row.windows[:len(row.windows)-1] {
			start, end := micros(text), micros(row.windows[i+1])
			for _, now := range []int64{start, start + (end-start)/2, end - 1} {
				if gotStart, gotEnd := c.Window(row.word, now); gotStart != start || gotEnd != end {
					t.Errorf("%s: window at %s = [%s, %s), want [%s, %s)",
						row.name, instant(now), instant(gotStart), instant(gotEnd), instant(start), instant(end))
				}
			}
		}
	}
}

func TestCalendarZeroValueIsUTCFromTheFirst(t *testing.T) {
	t.Parallel()
	start, end := new(Calendar).Window(wordMonth, micros("2024-05-10T12:00:00Z"))
	if start != micros("2024-05-01T00:00:00Z") || end != micros("2024-06-01T00:00:00Z") {
		t.Errorf("window = [%s, %s), want May", instant(start), instant(end))
	}
}

func TestCalendarRefusesAnUnknownZone(t *testing.T) {
	t.Parallel()
	tenant := Setting{Timezone: "UTC", BillingAnchor: 1}
	past := []Past{{Timezone: "Mars/Olympus", BillingAnchor: 1}}
	if _, err := New(tenant, past, time.LoadLocation); err == nil {
		t.Error("an unknown earlier zone was accepted")
	}
	tenant.Timezone = "Mars/Olympus"
	if _, err := New(tenant, nil, time.LoadLocation); err == nil {
		t.Error("an unknown zone was accepted")
	}
}

// Every decision on a calendar window pays this: a budget of 2 µs.
func BenchmarkCalendarWindow(b *testing.B) {
	now := micros("2024-05-10T12:00:00Z")
	for _, word := range []Word{wordHour, wordDay, wordWeek, wordMonth, wordYear} {
		c := calendarOf(b, "America/New_York", 31)
		b.Run(string(word), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.Window(word, now)
			}
		})
	}
}
