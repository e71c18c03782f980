package catalog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of spans of time. Under a millisecond a window counts nothing that a caller
// could act on; over ten years it outlives any plan. A rate may be faster.
const (
	windowMicrosMin = int64(time.Millisecond / time.Microsecond)
	spanMicrosMax   = int64(10 * 365.25 * 24 * time.Hour / time.Microsecond)
)

// The rules of windows and rates, as an error says them.
const (
	windowRule   = "must be a duration such as 15m, 1h or 720h, from 1ms to 87660h (10 years)"
	calendarRule = "must be a duration such as 15m, 1h or 720h, from 1ms to 87660h (10 years), or one of hour, day, week, month, year"
	rateRule     = "must be units per duration such as 2/1s or 100/15m, from 0 to 999999999999999 units per 1us to 87660h"
)

var calendars = []Calendar{CalendarHour, CalendarDay, CalendarWeek, CalendarMonth, CalendarYear}

// ParseWindow reads a duration as Go writes them ("1h", "1h30m", "250ms"), or a
// calendar word. A duration is a whole number of microseconds.
func ParseWindow(text string) (Window, error) {
	if word := Calendar(text); slices.Contains(calendars, word) {
		return Window{Calendar: word}, nil
	}
	micros, ok := parseMicros(text)
	if !ok || micros < windowMicrosMin {
		return Window{}, fmt.Errorf("window %q %s", text, calendarRule)
	}
	return Window{DurationMicros: micros}, nil
}

// String is the window's one text form; "" for no window.
func (w Window) String() string {
	if w.Calendar != "" {
		return string(w.Calendar)
	}
	return formatMicros(w.DurationMicros)
}

// ParseRate reads units per duration: "2/1s", or "2/s" for short.
func ParseRate(text string) (Rate, error) {
	unitsText, per, found := strings.Cut(text, "/")
	if len(per) > 0 && (per[0] < '0' || per[0] > '9') && per[0] != '.' {
		per = "1" + per
	}
	units, unitsOK := parseUnits(unitsText)
	micros, perOK := parseMicros(per)
	if !found || !unitsOK || !perOK {
		return Rate{}, fmt.Errorf("rate %q %s", text, rateRule)
	}
	return Rate{Units: units, PerMicros: micros}, nil
}

// String is the rate's one text form; "" for no rate.
func (r Rate) String() string {
	if r == (Rate{}) {
		return ""
	}
	return strconv.FormatInt(r.Units, 10) + "/" + formatMicros(r.PerMicros)
}

// parseUnits reads 0 to UnitsMax in plain digits.
func parseUnits(text string) (units int64, ok bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	units, err := strconv.ParseInt(text, 10, 64)
	return units, err == nil && units <= UnitsMax
}

// parseMicros reads a duration of 1 microsecond to ten years, nothing finer.
func parseMicros(text string) (micros int64, ok bool) {
	d, err := time.ParseDuration(text)
	if err != nil || strings.HasPrefix(text, "+") || d%time.Microsecond != 0 {
		return 0, false
	}
	micros = int64(d / time.Microsecond)
	return micros, micros >= 1 && micros <= spanMicrosMax
}

// durationParts are the units a duration is written in, the largest first. Go's own
// form says 1h0m0s; people write 1h, and what they wrote comes back.
var durationParts = []struct {
	name   string
	micros int64
}{
	{"h", 3_600_000_000},
	{"m", 60_000_000},
	{"s", 1_000_000},
	{"ms", 1_000},
	{"us", 1},
}

func formatMicros(micros int64) string {
	var b strings.Builder
	for _, part := range durationParts {
		if n := micros / part.micros; n > 0 {
			b.WriteString(strconv.FormatInt(n, 10) + part.name)
			micros -= n * part.micros
		}
	}
	return b.String()
}
