package quota

import (
	"fmt"

	"github.com/quotad/quotad/internal/ledger"
)

// An original is an entry that is to be given back from.
type original struct {
	seq      int64
	kind     ledger.Kind
	meter    string
	meterID  int32
	subject  string
	units    int64
	atMicros int64
	returned int64 // units of it that were given back already
	awaited  bool  // the expiry of a hold that can still be settled
}

// reverse answers a reversal of o and, if it is no dry run, does it: the units count no
// longer from the instant at which they were used, and levels get them back now.
func (b *book) reverse(r *Request, o *original) (verdict, error) {
	switch {
	case o == nil:
		return verdict{}, &Error{Code: CodeEntryNotFound, Faults: []Fault{{"seq", "must be the number of an entry of the tenant"}}}
	case o.awaited:
		return verdict{}, &Error{Code: CodeNotReversible, Faults: []Fault{{
			"seq", fmt.Sprintf("must not be the expiry of a hold that can still be settled: settle it with what it came to (entry %d)", o.seq),
		}}}
	case o.units <= 0:
		return verdict{}, &Error{Code: CodeNotReversible, Faults: []Fault{{
			"seq", fmt.Sprintf("must be an entry that used units: entry %d is of kind %s and used none", o.seq, o.kind),
		}}}
	}
	units, left := r.Units, o.units-o.returned
	if units == 0 {
		units = left
	}
	if units > left || left == 0 {
		return verdict{}, &Error{Code: CodeReversalTooLarge, Faults: []Fault{{
			"units", fmt.Sprintf("must be at most %d: entry %d used %d, of which %d were given back", left, o.seq, o.units, o.returned),
		}}}
	}
	v := recorded(r, o.subject)
	v.lines = []line{{
		kind: ledger.KindReverse, meter: o.meter, meterID: o.meterID, subject: o.subject,
		units: -units, refSeq: o.seq, atMicros: b.nowMicros, effectiveMicros: o.atMicros,
	}}
	v.decision.Reversal = &Reversal{Seq: o.seq, Meter: o.meter, Units: units, Left: left - units}
	b.enterAll(&v, r)
	if !r.DryRun {
		o.returned += units
	}
	v.reportAll(b, r)
	return v, nil
}
