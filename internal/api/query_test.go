package api

import (
	"net/url"
	"testing"
	"time"
)

// Only what RFC 3339 writes is an instant: another service that reads the same text must
// not understand another one, or none.
func TestInstantIsAsRFC3339WritesIt(t *testing.T) {
	for text, want := range map[string]time.Time{
		"2026-01-31T12:00:00Z":         startOfTest,
		"2026-01-31T19:00:00+07:00":    startOfTest,
		"2026-01-30T12:01:00-23:59":    startOfTest,
		"2026-01-31T12:00:00.0000019Z": startOfTest.Add(time.Microsecond),
		"1970-01-01T00:00:00Z":         time.Unix(0, 0).UTC(),
		"9999-12-31T23:59:59.999999Z":  time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC),
		"2026-01-31T12:00:00,5Z":       {},
		"2026-01-31T12:00:00.Z":        {},
		"2026-01-31T1:00:00Z":          {},
		"2026-01-31T12:00:00+24:00":    {},
		"2026-01-31T12:00:00-24:00":    {},
		"2026-01-31T12:00:00+00:60":    {},
		"2026-01-31T12:00:00+0700":     {},
		"2026-01-31T12:00:00":          {},
		"2026-01-31T12:00:60Z":         {},
		"2026-02-29T12:00:00Z":         {},
		"2026-01-31t12:00:00z":         {},
		"2026-01-31 12:00:00Z":         {},
		"2026-01-31":                   {},
		" 2026-01-31T12:00:00Z":        {},
		"2026-01-31T12:00:00Z\n":       {},
		"1969-12-31T23:59:59Z":         {},
		"1970-01-01T06:59:59+07:00":    {},
		"9999-12-31T23:59:59-00:01":    {},
		"10000-01-01T00:00:00Z":        {},
		"":                             {},
	} {
		f := filter{values: url.Values{"from": {text}}}
		got := f.instant("from")
		if !got.Equal(want) || want.IsZero() != (len(f.faults) == 1) {
			t.Errorf("instant(%q) = %v, faults %v; want %v", text, got, f.faults, want)
		}
	}
}
