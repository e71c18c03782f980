package pg

import "time"

// OrNull returns a parameter of a statement that is null for the zero time.
func OrNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
