package calendar

import (
	"encoding/json"
	"fmt"
	"time"
	_ "time/tzdata" // the zones, for machines that have none installed
)

// pastCalendarsMax bounds how many earlier calendars are followed: older ones only
// shape windows that ended long ago.
const pastCalendarsMax = 32

// A Calendar cuts time into one tenant's hours, days, weeks, months and years. It
// is immutable and safe for concurrent use. The zero value is UTC with months from
// the first.
//
// A window keeps the calendar that was in force when it started. The window that
// starts at its end follows the calendar in force there, and ends at that
// calendar's next boundary; so windows tile time without a gap, and a changed zone
// or anchor starts with the next window.
type Calendar struct {
	current clock
	past    []pastClock // oldest first
}

// A pastClock is the clock in force until, and not including, an instant.
type pastClock struct {
	untilMicros int64
	clock
}

// A Setting is what a tenant's calendar follows.
type Setting struct {
	Timezone      string // IANA name
	BillingAnchor int    // day of the month, 1-31
}

// A Past is a setting that a tenant had until an instant. A window keeps the calendar
// that was in force when it started.
type Past struct {
	Until         time.Time `json:"until"`
	Timezone      string    `json:"timezone"`
	BillingAnchor int       `json:"billing_anchor"`
}

// New returns the calendar of a setting and of those that a tenant had
// before, oldest first. load finds a zone by its IANA name, as [time.LoadLocation]
// does; that reads a file, so callers on a hot path pass one that remembers.
func New(s Setting, past []Past, load func(string) (*time.Location, error)) (*Calendar, error) {
	zone, err := load(s.Timezone)
	if err != nil {
		return nil, fmt.Errorf("load the time zone: %w", err)
	}
	c := &Calendar{current: clock{zone: zone, anchorDay: s.BillingAnchor}}
	for _, p := range past[max(0, len(past)-pastCalendarsMax):] {
		zone, err := load(p.Timezone)
		if err != nil {
			return nil, fmt.Errorf("load an earlier time zone: %w", err)
		}
		c.past = append(c.past, pastClock{
			untilMicros: p.Until.UnixMicro(),
			clock:       clock{zone: zone, anchorDay: p.BillingAnchor},
		})
	}
	return c, nil
}

// FromAccount returns the calendar of an account, whose calendar_past is JSON, or empty
// if it never changed. load is as for [New].
func FromAccount(s Setting, past []byte, load func(string) (*time.Location, error)) (*Calendar, error) {
	var earlier []Past
	if len(past) > 0 {
		if err := json.Unmarshal(past, &earlier); err != nil {
			return nil, fmt.Errorf("read earlier calendars: %w", err)
		}
	}
	return New(s, earlier, load)
}

// Window returns the window of a calendar word, [Minute] included, that holds an
// instant: start ≤ now < end.
func (c *Calendar) Window(word Word, nowMicros int64) (startMicros, endMicros int64) {
	started := false // whether a window of an earlier calendar ended at sinceMicros
	sinceMicros := int64(0)
	inForce := 0 // index into past; len(past) is the current one
	for ; inForce < len(c.past) && c.past[inForce].untilMicros <= nowMicros; inForce++ {
		until := c.past[inForce].untilMicros
		if started && until <= sinceMicros {
			continue // over before a window of it could start
		}
		start, end := c.past[inForce].window(word, until-1)
		if nowMicros < end {
			return clip(start, sinceMicros, started), end
		}
		sinceMicros, started = end, true
	}
	at := c.current
	if inForce < len(c.past) {
		at = c.past[inForce].clock
	}
	start, end := at.window(word, nowMicros)
	return clip(start, sinceMicros, started), end
}

// clip moves a start up to the end of the window before it.
func clip(startMicros, sinceMicros int64, started bool) int64 {
	if started {
		return max(startMicros, sinceMicros)
	}
	return startMicros
}
