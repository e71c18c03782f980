package calendar

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// zones are the odd ones: half and quarter hours, half-hour summer time, clocks that
// change at midnight or across it, skipped days, summer time below standard time,
// changes in Ramadan, the ends of the world, and the plain ones.
var zones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Asia/Kathmandu", "Asia/Tokyo",
	"Australia/Lord_Howe", "Australia/Adelaide", "Pacific/Chatham", "Pacific/Apia", "Pacific/Kwajalein",
	"Pacific/Kiritimati", "Etc/GMT+12", "America/Sao_Paulo", "America/Havana", "America/St_Johns",
	"America/Santiago", "America/Caracas", "America/Nuuk", "America/Scoresbysund", "Europe/Dublin",
	"Africa/Casablanca", "Africa/Cairo", "Africa/Monrovia", "Asia/Beirut", "Asia/Gaza", "Asia/Tehran",
	"Asia/Pyongyang", "Asia/Jakarta", "Antarctica/Troll", "Antarctica/Casey", "Europe/Lisbon",
	"America/Asuncion", "Asia/Amman", "Atlantic/Azores",
}

var words = []Word{Minute, wordHour, wordDay, wordWeek, wordMonth, wordYear}

func drawClock(t *rapid.T) clock {
	name := rapid.SampledFrom(zones).Draw(t, "zone")
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatalf("load zone: %v", err)
	}
	return clock{zone: zone, anchorDay: rapid.IntRange(1, 31).Draw(t, "anchor")}
}

// drawNear draws an instant of the zone's history, more often close to a change of
// its offset or to its midnight.
func drawNear(t *rapid.T, zone *time.Location) int64 {
	at := rapid.OneOf(
		rapid.Int64Range(0, 70*years), rapid.Int64Range(40*years, 60*years), rapid.Int64Range(0, instantMaxMicros),
	).Draw(t, "at")
	if _, until := time.UnixMicro(at).In(zone).ZoneBounds(); !until.IsZero() && rapid.Bool().Draw(t, "near a change") {
		at = until.UnixMicro() + rapid.OneOf(
			rapid.Int64Range(-90*minute, 90*minute), rapid.Int64Range(-26*hours, 26*hours),
		).Draw(t, "from it")
	}
	if rapid.Bool().Draw(t, "near a boundary") {
		start, end := clock{zone: zone, anchorDay: 1}.window(rapid.SampledFrom(words).Draw(t, "of"), at)
		at = rapid.SampledFrom([]int64{start - 1, start, start + 1, end - 1, end}).Draw(t, "beside")
	}
	return min(max(at, 0), instantMaxMicros)
}

// Windows tile time: every instant is in exactly one, its neighbours begin where it
// ends, and any instant inside says the same window.
func TestCalendarWindowsTileTime(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		current := drawClock(t)
		c := &Calendar{current: current, past: drawPast(t, current.zone)}
		word := rapid.SampledFrom(words).Draw(t, "word")
		now := drawNear(t, current.zone)
		if len(c.past) > 0 && rapid.Bool().Draw(t, "near a change of calendar") {
			now = rapid.SampledFrom(c.past).Draw(t, "change").untilMicros + rapid.Int64Range(-400*days, 400*days).Draw(t, "away")
		}
		checkTile(t, c, word, now)
	})
}

func drawPast(t *rapid.T, zone *time.Location) []pastClock {
	var past []pastClock
	until := drawNear(t, zone)
	for range rapid.IntRange(0, 4).Draw(t, "past calendars") {
		past = append(past, pastClock{untilMicros: until, clock: drawClock(t)})
		until += rapid.OneOf(
			rapid.Int64Range(1, 3*hours), rapid.Int64Range(1, 60*days), rapid.Int64Range(1, 900*days),
		).Draw(t, "in force for")
	}
	return past
}

func checkTile(t rapid.TB, c *Calendar, word Word, now int64) {
	start, end := c.Window(word, now)
	if start > now || now >= end {
		t.Fatalf("%s window at %s = [%s, %s)", word, instant(now), instant(start), instant(end))
	}
	for _, inside := range []int64{start, start + (now-start)/2, now + (end-now)/2, end - 1} {
		if s, e := c.Window(word, inside); s != start || e != end {
			t.Fatalf("%s window at %s = [%s, %s), at %s = [%s, %s)", word,
				instant(now), instant(start), instant(end), instant(inside), instant(s), instant(e))
		}
	}
	if _, e := c.Window(word, start-1); e != start {
		t.Fatalf("%s window before %s ends at %s", word, instant(start), instant(e))
	}
	if s, _ := c.Window(word, end); s != end {
		t.Fatalf("%s window after %s starts at %s", word, instant(end), instant(s))
	}
}

// A day begins at the first instant of its local date: found here by looking at the
// local clock every 15 seconds.
func TestCalendarDaysBeginWhereTheLocalDateDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawClock(t)
		now := drawNear(t, c.zone)
		start, end := c.window(wordDay, now)
		latest := int64(-1 << 62) // the latest local date seen
		for at := start - 27*hours - start%(15*second); at <= end; at += 15 * second {
			year, month, dayOfMonth := time.UnixMicro(at).In(c.zone).Date()
			date := time.Date(year, month, dayOfMonth, 0, 0, 0, 0, time.UTC).Unix()
			begins := date > latest && latest > -1<<62
			latest = max(latest, date)
			if begins != (at == start || at == end) && at >= start {
				t.Fatalf("%s: day at %s = [%s, %s), but at %s a date begins = %v",
					c.zone, instant(now), instant(start), instant(end), instant(at), begins)
			}
		}
	})
}

// Longer windows begin where one of their days does, on the right day: a Monday, the
// anchor or the last of a month without it. An hour has one offset and one number.
func TestCalendarWindowsBeginOnTheirDay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawClock(t)
		now := drawNear(t, c.zone)
		for _, word := range []Word{wordWeek, wordMonth, wordYear} {
			start, end := c.window(word, now)
			for _, at := range []int64{start, end} {
				if dayStart, _ := c.window(wordDay, at); dayStart != at {
					t.Fatalf("%s: %s begins at %s, its day at %s", c.zone, word, instant(at), instant(dayStart))
				}
				if !c.beginsOn(word, at) {
					t.Fatalf("%s, anchor %d: %s begins on %s", c.zone, c.anchorDay, word, time.UnixMicro(at).In(c.zone))
				}
			}
		}
		start, end := c.window(wordHour, now)
		first, last := time.UnixMicro(start).In(c.zone), time.UnixMicro(end-1).In(c.zone)
		if end-start > hours || first.Hour() != last.Hour() || offsetAt(first) != offsetAt(last) {
			t.Fatalf("%s: hour at %s = [%s, %s]", c.zone, instant(now), first, last)
		}
	})
}

// beginsOn reports whether the local date at the start of a window is right. A day
// that a zone skips as a whole cannot begin a window; the next one does.
func (c clock) beginsOn(word Word, at int64) bool {
	date := func(at int64) time.Time {
		year, month, dayOfMonth := time.UnixMicro(at).In(c.zone).Date()
		return time.Date(year, month, dayOfMonth, 0, 0, 0, 0, time.UTC)
	}
	for d := date(at-1).AddDate(0, 0, 1); !d.After(date(at)); d = d.AddDate(0, 0, 1) {
		lastOfMonth := time.Date(d.Year(), d.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
		anchored := d.Day() == min(c.anchorDay, lastOfMonth)
		if word == wordWeek && d.Weekday() == time.Monday ||
			word == wordMonth && anchored ||
			word == wordYear && anchored && d.Month() == time.January {
			return true
		}
	}
	return false
}

// A calendar that changed gives the windows that walking forward gives, one by one,
// each with the calendar in force at its start.
func TestCalendarEqualsAWalkThroughItsChanges(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		current := drawClock(t)
		c := &Calendar{current: current, past: drawPast(t, current.zone)}
		if len(c.past) == 0 {
			return
		}
		word := rapid.SampledFrom(words[2:]).Draw(t, "word")
		last := c.past[len(c.past)-1].untilMicros + rapid.Int64Range(0, 800*days).Draw(t, "after the last change")
		start, end := c.past[0].window(word, c.past[0].untilMicros-rapid.Int64Range(1, 100*days).Draw(t, "before the first"))
		for start < last {
			at := start + rapid.Int64Range(0, end-start-1).Draw(t, "into the window")
			if gotStart, gotEnd := c.Window(word, at); gotStart != start || gotEnd != end {
				t.Fatalf("%s window at %s = [%s, %s), want [%s, %s)",
					word, instant(at), instant(gotStart), instant(gotEnd), instant(start), instant(end))
			}
			if word == wordDay || word == wordWeek {
				if end-start > 200*days {
					t.Fatalf("a %s of %d days", word, (end-start)/days)
				}
			}
			start = end
			inForce := c.current
			for i := len(c.past) - 1; i >= 0 && c.past[i].untilMicros > start; i-- {
				inForce = c.past[i].clock
			}
			_, end = inForce.window(word, start)
		}
	})
}

// Buckets tile their range: they begin where it does, end where it does, meet each
// other, and each is the part of a window that lies in the range.
func TestBucketsTileTheirRange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		current := drawClock(t)
		c := &Calendar{current: current, past: drawPast(t, current.zone)}
		word := rapid.SampledFrom(words).Draw(t, "word")
		from := drawNear(t, current.zone)
		_, end := c.Window(word, from)
		to := from + rapid.Int64Range(1, 40*(end-from)).Draw(t, "length")
		edges, ok := c.Buckets(word, from, to, 1_000_000)
		if !ok || edges[0] != from || edges[len(edges)-1] != to {
			t.Fatalf("%s buckets of [%s, %s) = %d edges, %t", word, instant(from), instant(to), len(edges), ok)
		}
		for i, at := range edges[:len(edges)-1] {
			start, end := c.Window(word, at)
			if max(start, from) != at || min(end, to) != edges[i+1] {
				t.Fatalf("%s bucket %d of [%s, %s) = [%s, %s), its window is [%s, %s)", word, i,
					instant(from), instant(to), instant(at), instant(edges[i+1]), instant(start), instant(end))
			}
		}
	})
}
