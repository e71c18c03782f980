package calendar

import (
	"testing"
	"time"
)

func FuzzCalendar(f *testing.F) {
	f.Add(uint8(2), uint8(31), uint8(3), micros("2024-03-10T07:00:00Z"), uint8(0), uint8(1), int64(0))
	f.Add(uint8(6), uint8(1), uint8(0), micros("2024-04-06T15:10:00Z"), uint8(9), uint8(15), micros("2024-04-06T15:00:00Z"))
	f.Add(uint8(9), uint8(30), uint8(4), micros("2011-12-30T10:00:00Z"), uint8(3), uint8(31), micros("2011-12-30T09:00:00Z"))
	f.Fuzz(func(t *testing.T, zone, anchor, word uint8, now int64, pastZone, pastAnchor uint8, until int64) {
		load := func(n uint8) *time.Location {
			at, err := time.LoadLocation(zones[int(n)%len(zones)])
			if err != nil {
				t.Fatal(err)
			}
			return at
		}
		c := &Calendar{current: clock{zone: load(zone), anchorDay: int(anchor)}}
		if until > 0 {
			c.past = []pastClock{{
				untilMicros: within(until, 0, instantMaxMicros),
				clock:       clock{zone: load(pastZone), anchorDay: int(pastAnchor)},
			}}
		}
		checkTile(t, c, words[int(word)%len(words)], within(now, 0, instantMaxMicros))
	})
}
