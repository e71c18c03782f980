package quota

import (
	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
)

// A fixedWindow counts from the start of the window that holds now, [start, end):
// cells of one length aligned to the Unix epoch, or a word of the tenant's calendar.
// Around a boundary up to twice the limit can pass within one window's length.
type fixedWindow struct {
	lengthMicros int64              // 0 when word is set
	word         catalog.Calendar   // "" when lengthMicros is set
	calendar     *calendar.Calendar // used with word only
}

// Edges returns the start of the window.
func (f fixedWindow) Edges(nowMicros int64) []Edge {
	start, _ := f.window(nowMicros)
	return []Edge{{AtMicros: start}}
}

// Used returns the units consumed since the start of the window.
func (f fixedWindow) Used(v View) int64 {
	return max(0, v.Total-v.Before[0])
}

// FreeAt returns the end of the window, when everything comes back at once.
func (f fixedWindow) FreeAt(v View, target int64) (atMicros int64, ok bool) {
	if f.Used(v) <= target {
		return v.NowMicros, true
	}
	_, end := f.window(v.NowMicros)
	return end, true
}

// Take keeps no level.
func (f fixedWindow) Take(View, int64) State { return State{} }

func (f fixedWindow) window(nowMicros int64) (startMicros, endMicros int64) {
	if f.word != "" {
		return f.calendar.Window(f.word, nowMicros)
	}
	start := cellStart(nowMicros, f.lengthMicros)
	return start, start + f.lengthMicros
}
