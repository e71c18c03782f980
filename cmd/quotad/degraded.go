package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/quotad/quotad/internal/spool"
)

// degradedBytesMax bounds what is kept of grants made without the database: some hundred
// thousand of them. Then nothing more is granted.
const degradedBytesMax = 64 << 20

// Bounds of --decision-deadline: below, a database that answers would be taken for one
// that does not; above, calls have ended anyway.
const (
	decisionDeadlineMin = 20 * time.Millisecond
	decisionDeadlineMax = 5 * time.Second
)

// degradedFlags say what an instance does while the database is away.
type degradedFlags struct {
	Deadline time.Duration `name:"decision-deadline" default:"250ms" env:"QUOTAD_DECISION_DEADLINE" help:"How long a decision waits for a database that is away before on_error of its limits decides: 20ms to 5s."`
	KeyAge   time.Duration `name:"degraded-key-age" default:"0s" env:"QUOTAD_DEGRADED_KEY_AGE" help:"How old a copy of an API key may be while the database is away or refuses. More than 5s lets keys in for as long that were revoked meanwhile; 0s ends all answers some seconds into an outage."`
	Dir      string        `name:"degraded-dir" type:"path" env:"QUOTAD_DEGRADED_DIR" help:"A directory of this instance alone, on a disk that lasts: what is granted without the database is kept there until it is in the ledger. It is made if the one it is in is there. Without it nothing is granted."`
}

func (f degradedFlags) validate() error {
	if f.Deadline < decisionDeadlineMin || f.Deadline > decisionDeadlineMax {
		return fmt.Errorf("--decision-deadline must be from %s to %s", decisionDeadlineMin, decisionDeadlineMax)
	}
	if f.KeyAge < 0 {
		return errors.New("--degraded-key-age must not be negative")
	}
	return nil
}

// open takes the directory; nil without one.
func (f degradedFlags) open() (*spool.Spool, error) {
	if f.Dir == "" {
		return nil, nil
	}
	return spool.Open(f.Dir, degradedBytesMax)
}
