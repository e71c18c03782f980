package quota

import (
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// A wait is a violated limit as it stood, and what was asked of it; or that the tenant has
// as many open holds as it may have.
type wait struct {
	forecast forecast
	subject  string // "" for the whole tenant
	asked    int64
	result   int // index in Decision.Limits

	reset      bool // it is not violated: this is until nothing of it is used
	corrected  bool // what was used last may have been given back
	holdsFull  bool
	freeMicros int64 // with holdsFull
}

// crosses reports whether the ledger has to be asked where the window has room: a sliding
// log that needs not be empty, or is so before its last entry has left it.
func (w *wait) crosses() bool {
	return !w.holdsFull && w.forecast.limit.Algorithm == catalog.SlidingLog &&
		(w.reset || w.corrected || w.asked < w.forecast.limit.units)
}

// crossing is the question: behind which instant the window has to begin.
func (w *wait) crossing() ledger.CrossingQuery {
	f := &w.forecast
	now, window := f.view.NowMicros, f.limit.Window.DurationMicros
	q := ledger.CrossingQuery{
		LoMicros:  now - window,
		HiMicros:  f.view.LastAtMicros,
		NowMicros: now,
		Base:      f.view.Before[0],
		Target:    f.view.Total + w.asked - f.limit.units,
	}
	for _, e := range f.expiries {
		term := ledger.Term{AtMicros: e.atMicros - window, Units: e.units}
		if e.charged { // then it is used, until it leaves the window
			term.AtMicros = e.atMicros
		}
		q.Terms = append(q.Terms, term)
		q.HiMicros = max(q.HiMicros, term.AtMicros)
	}
	return q
}

// freeAt returns when what was asked fits this limit; ok is false when it never does.
// crossing answers for a wait that crosses.
func (w *wait) freeAt(crossing func(w *wait) int64) (atMicros int64, ok bool) {
	switch {
	case w.holdsFull:
		return w.freeMicros, true
	case w.crosses():
		return max(w.forecast.view.NowMicros, crossing(w)+w.forecast.limit.Window.DurationMicros), true
	default:
		return w.forecast.freeAt(w.asked)
	}
}

// crossings calls need for each wait whose answer is in the ledger.
func (v *verdict) crossings(need func(w *wait)) {
	for i := range v.waits {
		if (v.waits[i].reset || v.decision.Reason.passes()) && v.waits[i].crosses() {
			need(&v.waits[i])
		}
	}
}

// settleWaits tells how long a denied request has to wait: the longest of its limits'
// waits, from the real clock, or none if one of them never ends.
func (v *verdict) settleWaits(b *book, crossing func(w *wait) int64) {
	v.settleResets(b, crossing)
	if !v.decision.Reason.passes() {
		return
	}
	longest, ends := int64(0), true
	for i := range v.waits {
		w := &v.waits[i]
		if w.reset {
			continue
		}
		at, ok := w.freeAt(crossing)
		if !ok {
			ends = false
			continue
		}
		ms := max(1, ceilMillis(at-b.clockMicros))
		if !w.holdsFull {
			v.decision.Limits[w.result].RetryMS = &ms
		}
		longest = max(longest, ms)
	}
	if ends {
		v.decision.RetryMS = &longest
	}
}

// settleResets tells when nothing is left of limits of which units were given back.
func (v *verdict) settleResets(b *book, crossing func(w *wait) int64) {
	for i := range v.waits {
		if w := &v.waits[i]; w.reset {
			at, _ := w.freeAt(crossing)
			v.decision.Limits[w.result].resetAt(at, b.clockMicros)
		}
	}
}
