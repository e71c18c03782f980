package main

import (
	"fmt"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// progressEvery is how often a line is printed where there is no terminal.
const progressEvery = 5 * time.Second

// progress shows how far a long command is: a bar on a terminal, a plain line now and
// then elsewhere. It is not safe for concurrent use.
type progress struct {
	to     *os.File
	what   string
	total  int64
	done   int64
	bar    *progressbar.ProgressBar // nil where there is no terminal
	lineAt time.Time
}

// newProgress counts to total, or without an end if total is negative. what names the
// things counted: "entries".
func newProgress(to *os.File, total int64, what string) *progress {
	p := &progress{to: to, what: what, total: total, lineAt: time.Now()}
	if term.IsTerminal(int(to.Fd())) {
		p.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(to),
			progressbar.OptionSetDescription(what),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	return p
}

// add counts n more.
func (p *progress) add(n int64) {
	p.done += n
	if p.bar != nil {
		_ = p.bar.Add64(n) // a bar that cannot be drawn is no reason to stop
		return
	}
	if time.Since(p.lineAt) < progressEvery {
		return
	}
	p.lineAt = time.Now()
	if p.total > 0 {
		fmt.Fprintf(p.to, "%d of %d %s\n", p.done, p.total, p.what)
	} else {
		fmt.Fprintf(p.to, "%d %s\n", p.done, p.what)
	}
}

// note names what is counted anew, where there is more to say of it.
func (p *progress) note(what string) {
	p.what = what
	if p.bar != nil {
		p.bar.Describe(what)
	}
}

// finish removes the bar.
func (p *progress) finish() {
	if p.bar != nil {
		_ = p.bar.Finish()
	}
}
