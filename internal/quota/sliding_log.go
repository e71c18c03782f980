package quota

// A slidingLog never lets more than its limit through in any trailing window. The
// window is half-open, (now − W, now]: an entry counts until exactly W after it.
type slidingLog struct {
	windowMicros int64
}

// Edges returns the first microsecond inside the window.
func (l slidingLog) Edges(nowMicros int64) []Edge {
	return []Edge{{AtMicros: nowMicros - l.windowMicros + 1, Sliding: true}}
}

// Used returns the units consumed inside the window.
func (l slidingLog) Used(v View) int64 {
	return max(0, v.Total-v.Before[0])
}

// FreeAt returns when enough of the oldest entries have left: with target units of
// the newest still allowed inside, the entry before those must be a window old.
func (l slidingLog) FreeAt(v View, target int64) (atMicros int64, ok bool) {
	if l.Used(v) <= target {
		return v.NowMicros, true
	}
	last := v.LastAtMicros
	if target > 0 {
		last = v.Crossing(v.Total - target)
	}
	return max(v.NowMicros, last+l.windowMicros), true
}

// Take keeps no level.
func (l slidingLog) Take(View, int64) State { return State{} }
