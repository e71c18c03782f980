package quota

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/internal/catalog"
)

// A forecast is how a limit goes on if nothing happens but that open holds expire: the
// units that they set aside come back, or turn into usage where the meter says so. What is
// used and held together never rises by itself, so the first instant at which something
// fits can be searched for by halves.
type forecast struct {
	limit    *limit
	view     View  // now
	held     int64 // now
	expiries []expiry
}

// An expiry is an open hold that counts on the limit.
type expiry struct {
	atMicros int64
	units    int64
	charged  bool // it becomes usage; else it comes back
}

// forecast looks ahead from now for l.
func (b *book) forecast(l *limit, subject string) forecast {
	f := forecast{limit: l, view: b.view(l, subject), held: b.held(l, subject)}
	if !l.Algorithm.CountsHolds() {
		return f
	}
	for _, h := range b.holds {
		units, counts := h.on(l, subject)
		if !counts || units == 0 && l.Algorithm != catalog.Concurrency {
			continue
		}
		meter := b.snapshot.Meter(l.Meter)
		f.expiries = append(f.expiries, expiry{
			atMicros: h.expiresMicros, units: units,
			charged: meter != nil && meter.OnExpiry == catalog.ExpiryCharge && l.Algorithm != catalog.Concurrency,
		})
	}
	slices.SortFunc(f.expiries, func(x, y expiry) int { return cmp.Compare(x.atMicros, y.atMicros) })
	return f
}

// at returns what the limit will see, and what will be held, at an instant from now on.
func (f *forecast) at(atMicros int64) (v View, held int64) {
	v, held = f.view, f.held
	v.NowMicros = atMicros
	for _, e := range f.expiries {
		if e.atMicros > atMicros {
			break
		}
		v.OpenHolds--
		if f.limit.Algorithm != catalog.Concurrency {
			held -= e.units
		}
		if !e.charged {
			continue
		}
		if f.limit.Algorithm.KeepsLevel() {
			v.State = f.limit.rule.Take(View{NowMicros: e.atMicros, State: v.State}, e.units)
		}
		v.Total += e.units
		v.LastAtMicros = e.atMicros
	}
	if f.limit.Algorithm.KeepsLevel() || f.limit.Algorithm == catalog.Concurrency {
		return v, held
	}
	edges, now := f.limit.rule.Edges(atMicros), f.limit.rule.Edges(f.view.NowMicros)
	v.Before = make([]int64, len(edges))
	for i, edge := range edges {
		v.Before[i] = f.before(edge, now)
	}
	return v, held
}

// before returns the running total just before an edge: one of now's, or one to come.
func (f *forecast) before(edge Edge, now []Edge) int64 {
	for i := range now {
		if now[i].AtMicros == edge.AtMicros {
			return f.view.Before[i]
		}
	}
	total := f.view.Total
	for _, e := range f.expiries {
		if e.charged && e.atMicros < edge.AtMicros {
			total += e.units
		}
	}
	return total
}

// fits reports whether asked units fit at an instant.
func (f *forecast) fits(atMicros, asked int64) bool {
	v, held := f.at(atMicros)
	return fits(f.limit.rule.Used(v), held, asked, f.limit.units)
}

// freeAt returns the first instant at which asked units fit; ok is false when they never
// do. A sliding log that need not be empty is not asked: where its window will begin is in
// the ledger.
func (f *forecast) freeAt(asked int64) (atMicros int64, ok bool) {
	if len(f.expiries) == 0 {
		return f.limit.rule.FreeAt(f.view, f.limit.units-f.held-asked)
	}
	low := f.view.NowMicros
	high, ok := f.settledAt(f.limit.units - asked)
	for ok && f.limit.Algorithm != catalog.SlidingLog && high-low > 1 {
		middle := low + (high-low)/2
		if f.fits(middle, asked) {
			high = middle
		} else {
			low = middle
		}
	}
	return high, ok
}

// settledAt returns when, once every hold has expired, at most target units are used.
func (f *forecast) settledAt(target int64) (atMicros int64, ok bool) {
	last := f.view.NowMicros
	if n := len(f.expiries); n > 0 {
		last = max(last, f.expiries[n-1].atMicros)
	}
	if f.limit.Algorithm == catalog.SlidingLog {
		return f.emptyAt(last), true
	}
	v, _ := f.at(last)
	return f.limit.rule.FreeAt(v, target)
}

// emptyAt returns when nothing is left in a sliding log, from an instant on at which
// nothing is held.
func (f *forecast) emptyAt(last int64) int64 {
	window := f.limit.Window.DurationMicros
	if f.limit.rule.Used(f.view) > 0 {
		last = max(last, f.view.LastAtMicros+window)
	}
	for _, e := range f.expiries {
		if e.charged {
			last = max(last, e.atMicros+window)
		}
	}
	return last
}

// resetAt returns when nothing is used or held any more.
func (f *forecast) resetAt() (atMicros int64, ok bool) { return f.settledAt(0) }
