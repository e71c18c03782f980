package quota

// An Algorithm is the rule of one limit, compiled from its numbers. Every algorithm
// is the same comparison over a different count: cost fits when
// used + held + cost ≤ limit (see fits). Values are immutable and safe for
// concurrent use; methods do no I/O and read no clock.
type Algorithm interface {
	// Edges returns the instants, in microseconds, from which Used counts: for each
	// one the engine reads the running total just before it into View.Before, in the
	// same order. Algorithms that keep a level have none.
	Edges(nowMicros int64) []Edge

	// Used returns how many units of the limit are taken, 0 or more; it may exceed
	// the limit.
	Used(v View) int64

	// FreeAt returns the earliest instant, in microseconds and never before
	// v.NowMicros, at which Used is at most target with no further traffic. ok is
	// false when that never happens. target is 0 or more.
	FreeAt(v View, target int64) (atMicros int64, ok bool)

	// Take returns the level after cost units are consumed at v.NowMicros. Windowed
	// algorithms return the zero State: their usage is the ledger's.
	Take(v View, cost int64) State
}

// An Edge is an instant at which a window begins, counted from and including
// AtMicros. A sliding edge keeps its distance from now; the others stand still.
type Edge struct {
	AtMicros int64
	Sliding  bool
}

// A View is what one limit can see of its meter at one instant.
type View struct {
	NowMicros    int64
	Total        int64   // running total of units now
	Before       []int64 // running total just before each edge, and what was given back since of what came after it
	LastAtMicros int64   // the newest entry that used units; 0 if none
	State        State   // the level, as last written; its zero value means none yet
	OpenHolds    int64   // open holds on the meter

	// Crossing returns the instant of the first entry whose running total is at
	// least total. Only sliding_log's FreeAt asks, for totals in its window.
	Crossing func(total int64) (atMicros int64)
}

// A State is the level a limit keeps: an exact rational Units + Remainder/Denominator
// as of AtMicros. What it measures is the algorithm's business. The zero value
// (Denominator 0) means that nothing was ever taken.
type State struct {
	Units       int64
	Remainder   int64 // 0 ≤ Remainder < Denominator
	Denominator int64
	AtMicros    int64
}

// Fresh reports whether nothing was ever taken.
func (s State) Fresh() bool { return s.Denominator == 0 }

// fits is the one comparison of every limit. Costs, holds and limits are at most
// catalog.UnitsMax, so the sum cannot overflow.
func fits(used, held, cost, limit int64) bool {
	return used+held+cost <= limit
}
