package main

import (
	"fmt"
	"io"
	"time"
)

// progress says what is being done, a line for each step: a run has so few of them that a
// bar would stand still.
type progress struct {
	to    io.Writer
	total int
	done  int
	begun time.Time // the measuring
}

// note says what is being done.
func (p *progress) note(what string) { fmt.Fprintln(p.to, what) }

// measured says what a run came to, and when the others will have been measured if they
// take as long as those until now.
func (p *progress) measured(name string, m measurement) {
	p.done++
	elapsed := time.Since(p.begun)
	left := elapsed * time.Duration(p.total-p.done) / time.Duration(p.done)
	fmt.Fprintf(p.to, "%d of %d, after %s and about %s before the end: %s: %s a second, p50 %s, p99 %s ms\n", p.done, p.total,
		elapsed.Round(time.Second), left.Round(time.Second), name, grouped(m.PerSecond), fixed(inMS(m.P50), 2), fixed(inMS(m.P99), 2))
}
