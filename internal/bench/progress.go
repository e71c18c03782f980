package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progress shows what is being done: a bar on a terminal, a line for each step elsewhere.
type progress struct {
	to    *os.File
	total int
	done  int
	bar   *progressbar.ProgressBar // nil where there is no terminal
}

func newProgress(to *os.File, total int) *progress {
	p := &progress{to: to, total: total}
	if term.IsTerminal(int(to.Fd())) {
		p.bar = progressbar.NewOptions(total,
			progressbar.OptionSetWriter(to),
			progressbar.OptionShowCount(),
			progressbar.OptionSetPredictTime(false),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

// note says what is being done.
func (p *progress) note(what string) {
	if p.bar != nil {
		p.bar.Describe(what)
		return
	}
	fmt.Fprintln(p.to, what)
}

// measured says what a run came to.
func (p *progress) measured(name string, m measurement) {
	p.done++
	if p.bar != nil {
		_ = p.bar.Add(1) // a bar that cannot be drawn is no reason to stop
		return
	}
	fmt.Fprintf(p.to, "%d of %d: %s: %s a second, p50 %s, p99 %s ms\n", p.done, p.total, name,
		grouped(m.PerSecond), fixed(inMS(m.P50), 2), fixed(inMS(m.P99), 2))
}

// finish removes the bar.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
