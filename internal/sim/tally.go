package sim

import "github.com/google/uuid"

// A Tally is what a run came to, counted from tags and nothing else: a second opinion
// beside the findings of [Ledger.CheckCalls].
type Tally struct {
	Acknowledged int // calls whose callers were told that they are allowed
	Lost         int // of these, not in the ledger
	Doubled      int // calls that are in the ledger more than once
	Over         int // entries, or sets of answers, that passed a limit
}

// Add returns the sum of two runs.
func (t Tally) Add(more Tally) Tally {
	return Tally{t.Acknowledged + more.Acknowledged, t.Lost + more.Lost, t.Doubled + more.Doubled, t.Over + more.Over}
}

// Tally counts what became of calls. CheckCalls comes first.
func (l *Ledger) Tally(calls []Call) Tally {
	written := make(map[tagKey]map[uuid.UUID]bool)
	for _, t := range l.tenants {
		for i := range t.entries {
			key := tagKey{t.name, t.entries[i].tag} // no tag: an expiry
			if written[key] == nil {
				written[key] = make(map[uuid.UUID]bool)
			}
			written[key][t.entries[i].requestID] = true
		}
	}
	tally := Tally{Over: l.over}
	acknowledged := make(map[tagKey]bool)
	for i := range calls {
		c := &calls[i]
		if c.Outcome == OutcomeAllowed && !c.DryRun {
			acknowledged[tagKey{c.Tenant, c.Tag}] = true
		}
	}
	for key := range acknowledged {
		tally.Acknowledged++
		if len(written[key]) == 0 {
			tally.Lost++
		}
	}
	for key, requests := range written {
		if key.text != "" && len(requests) > 1 {
			tally.Doubled++
		}
	}
	return tally
}
