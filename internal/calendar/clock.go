package calendar

import (
	"fmt"
	"time"
)

// A clock is a time zone and the day of the month on which months start: the rules
// by which one calendar cuts time. The zero value is UTC and the first.
type clock struct {
	zone      *time.Location
	anchorDay int // 1-31; a month without that day starts on its last one
}

const (
	secondsPerDay    = 24 * 60 * 60
	secondsPerHour   = 60 * 60
	secondsPerMinute = 60
	microsPerSec     = 1_000_000
)

// A Word names a span that follows the calendar. Its text form is stable: it is stored
// and sent.
type Word string

const (
	Minute Word = "minute" // buckets have it, windows of limits do not
	Hour   Word = "hour"
	Day    Word = "day"
	Week   Word = "week" // starts on Monday
	Month  Word = "month"
	Year   Word = "year"
)

// window returns the window of a calendar word that holds an instant.
func (c clock) window(word Word, nowMicros int64) (startMicros, endMicros int64) {
	now := time.UnixMicro(nowMicros).In(c.location())
	switch word {
	case Hour:
		start, end := cell(now, secondsPerHour)
		return start * microsPerSec, end * microsPerSec
	case Minute:
		start, end := cell(now, secondsPerMinute)
		return start * microsPerSec, end * microsPerSec
	}
	period := c.period(word, now)
	start := c.firstSecond(c.periodDay(word, period))
	end := c.firstSecond(c.periodDay(word, period+1))
	// Where clocks fall back across midnight the new day has begun, and the old date
	// comes back for up to an hour; where a whole day is skipped, its window is empty.
	for end <= now.Unix() {
		period++
		start, end = end, c.firstSecond(c.periodDay(word, period+1))
	}
	return start * microsPerSec, end * microsPerSec
}

func (c clock) location() *time.Location {
	if c.zone == nil {
		return time.UTC
	}
	return c.zone
}

// cell returns the hour or minute of the local clock, of this length in seconds, that
// holds now, in Unix seconds. Cells follow the offset: a change of it ends one, so the
// hour that is repeated when clocks fall back is a window of its own, and half-hour
// zones start at local :00.
func cell(now time.Time, length int64) (start, end int64) {
	_, offset := now.Zone()
	local := now.Unix() + int64(offset)
	start = local - mod(local, length) - int64(offset)
	end = start + length
	since, _ := now.ZoneBounds()
	if !since.IsZero() && since.Unix() > start && offsetAt(since.Add(-time.Second)) != offset {
		start = since.Unix()
	}
	until := nextChange(now)
	if !until.IsZero() && until.Unix() < end && offsetAt(until) != offset {
		end = until.Unix()
	}
	return start, end
}

func offsetAt(t time.Time) int {
	_, offset := t.Zone()
	return offset
}

// period numbers the periods of a word; it returns the one that now's local date is in.
func (c clock) period(word Word, now time.Time) int64 {
	year, month, day := now.Date()
	switch word {
	case Day:
		return dayNumber(year, month, day)
	case Week:
		return week(dayNumber(year, month, day))
	case Month:
		period := int64(year)*12 + int64(month) - 1
		if day < c.anchorIn(year, month) {
			period--
		}
		return period
	case Year:
		if month == time.January && day < c.anchorIn(year, month) {
			year--
		}
		return int64(year)
	}
	panic(fmt.Sprintf("calendar: unknown calendar word %q", word))
}

// periodDay returns the number of the day on which a period starts.
func (c clock) periodDay(word Word, period int64) int64 {
	switch word {
	case Day:
		return period
	case Week:
		return weekDay(period)
	case Month:
		year := (period - mod(period, 12)) / 12
		month := time.Month(mod(period, 12) + 1)
		return dayNumber(int(year), month, c.anchorIn(int(year), month))
	case Year:
		return dayNumber(int(period), time.January, c.anchorIn(int(period), time.January))
	}
	panic(fmt.Sprintf("calendar: unknown calendar word %q", word))
}

// anchorIn returns the day on which the month starts its billing period.
func (c clock) anchorIn(year int, month time.Month) int {
	last := time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return min(max(1, c.anchorDay), last)
}

// offsetMaxSeconds is more than any zone was ever ahead of UTC.
const offsetMaxSeconds = 26 * secondsPerHour

// changesMax bounds the changes of a zone's offset within two days. Two are the most
// that ever happened; package time adds the ends of years.
const changesMax = 8

// firstSecond returns the first second, in Unix time, at which the local date is
// the day of this number or a later one. That is its midnight, but where clocks skip
// midnight it is the moment they do, and where midnight comes twice it is the first.
func (c clock) firstSecond(day int64) int64 {
	midnight := day * secondsPerDay // on the local clock
	t := time.Unix(midnight-offsetMaxSeconds, 0).In(c.location())
	for range changesMax {
		_, offset := t.Zone()
		at := midnight - int64(offset)
		until := nextChange(t)
		if until.IsZero() || at < until.Unix() {
			return max(at, t.Unix())
		}
		t = until
	}
	panic(fmt.Sprintf("calendar: zone %s changes its offset too often", c.zone))
}

// nextChange returns an instant after t up to which the zone keeps its offset; zero
// when it keeps it for good.
func nextChange(t time.Time) time.Time {
	_, until := t.ZoneBounds()
	if !until.IsZero() && !until.After(t) {
		// After the last change that a zone lists, package time ends every year after
		// 365 days: the last day of a leap year begins at or after its own end.
		until = time.Date(t.UTC().Year()+1, time.January, 1, 0, 0, 0, 0, time.UTC).In(t.Location())
	}
	return until
}

// dayNumber returns days since 1970-01-01, as if every day were one of UTC.
func dayNumber(year int, month time.Month, day int) int64 {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Unix() / secondsPerDay
}

// week numbers weeks from Monday to Sunday; day 0 was a Thursday.
func week(day int64) int64 { return (day + 3 - mod(day+3, 7)) / 7 }

// weekDay returns the number of the week's Monday.
func weekDay(week int64) int64 { return week*7 - 3 }

// mod returns a modulo n, 0 or more for a below 0 too.
func mod(a, n int64) int64 {
	if r := a % n; r < 0 {
		return r + n
	} else {
		return r
	}
}
