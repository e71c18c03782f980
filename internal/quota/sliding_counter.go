package quota

// A slidingCounter estimates a sliding window from two cells aligned to the Unix
// epoch: all of the current cell, and the share of the previous one that the window
// still covers. With e elapsed of the current cell, a cost passes when
//
//	prev·(W−e) + (cur+cost)·W ≤ limit·W
//
// which in whole units is cur + ⌈prev·(W−e)/W⌉ + cost ≤ limit, so Used is that
// number. It may let through up to twice the limit in a trailing window; it is
// offered because contracts name it.
type slidingCounter struct {
	windowMicros int64
}

// Edges returns the starts of the previous and of the current cell.
func (c slidingCounter) Edges(nowMicros int64) []Edge {
	start := cellStart(nowMicros, c.windowMicros)
	return []Edge{{AtMicros: start - c.windowMicros}, {AtMicros: start}}
}

// Used returns the current cell and the weighted previous one, rounded up.
func (c slidingCounter) Used(v View) int64 {
	prev, cur := c.cells(v)
	start := cellStart(v.NowMicros, c.windowMicros)
	left := c.windowMicros - (v.NowMicros - start)
	weighted, _ := product(uint64(prev), uint64(left)).ceilDiv(uint64(c.windowMicros))
	return cur + int64(weighted)
}

// FreeAt looks for the first microsecond in this cell, then in the next one, where
// the current cell is the previous one; after that nothing is left.
func (c slidingCounter) FreeAt(v View, target int64) (atMicros int64, ok bool) {
	if c.Used(v) <= target {
		return v.NowMicros, true
	}
	prev, cur := c.cells(v)
	start := cellStart(v.NowMicros, c.windowMicros)
	if cur <= target {
		return start + c.fadedAfter(prev, target-cur), true
	}
	return start + c.windowMicros + c.fadedAfter(cur, target), true
}

// Take keeps no level.
func (c slidingCounter) Take(View, int64) State { return State{} }

// cells returns the units of the previous and of the current cell.
func (c slidingCounter) cells(v View) (prev, cur int64) {
	return max(0, v.Before[1]-v.Before[0]), max(0, v.Total-v.Before[1])
}

// fadedAfter returns the smallest elapsed time e, up to the whole window, at which
// prev·(W−e) ≤ target·W.
func (c slidingCounter) fadedAfter(prev, target int64) int64 {
	if prev <= target {
		return 0
	}
	// target < prev, so the quotient is below W.
	left, _, _ := product(uint64(target), uint64(c.windowMicros)).floorDiv(uint64(prev))
	return c.windowMicros - int64(left)
}

// cellStart returns the start of the cell that holds the instant, for cells of one
// length aligned to the Unix epoch.
func cellStart(atMicros, lengthMicros int64) int64 {
	into := atMicros % lengthMicros
	if into < 0 {
		into += lengthMicros
	}
	return atMicros - into
}
