package quota

// A concurrencyLimit admits a hold while fewer than its limit are open on the meter. Its
// count is that of the live holds themselves: a caller that died gives its place back when
// its hold expires.
type concurrencyLimit struct{}

// Edges returns none: holds are counted.
func (concurrencyLimit) Edges(int64) []Edge { return nil }

// Used returns how many holds are open.
func (concurrencyLimit) Used(v View) int64 { return v.OpenHolds }

// FreeAt returns now or never: when holds end is not the rule's to know.
func (concurrencyLimit) FreeAt(v View, target int64) (atMicros int64, ok bool) {
	return v.NowMicros, v.OpenHolds <= target
}

// Take keeps no level.
func (concurrencyLimit) Take(View, int64) State { return State{} }
