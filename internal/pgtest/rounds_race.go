//go:build race

package pgtest

// Rounds is how often a test goes on that asks for one thing after another: a fifth of n
// under the race detector, which costs several times the time and has little to see there.
func Rounds(n int) int { return n / 5 }
