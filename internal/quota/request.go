package quota

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// Bounds of one request. Each keeps a batch's work and a hashed row small.
const (
	ChargesMax    = 16                 // per request
	PoolsMax      = 16                 // per charge
	DimsMax       = 16                 // per request
	DimNameBytes  = 64                 // a dimension's name
	DimValueBytes = 256                // a dimension's value
	KeyBytesMax   = 255                // an idempotency key
	IDBytesMax    = catalog.IDBytesMax // a tenant's or a subject's id

	HoldsOpenMax = catalog.HoldsOpenMax // open holds of a tenant
	TTLMin       = time.Millisecond     // of a hold
	TTLMax       = 24 * time.Hour       // of a hold, its extensions included
)

// A Request asks for something that changes what a tenant has used. Zero fields are
// absent ones. Consume and hold are decided by the limits; what the other kinds say has
// happened is recorded, whatever the limits say.
type Request struct {
	Kind    ledger.Kind // "" is consume
	Tenant  string
	Subject string   // of consume, hold and adjust; the others have that of what they answer
	Charges []Charge // consume, hold, settle, adjust: all or none; charges on one meter are summed
	Dims    map[string]string
	Key     string // idempotency key
	DryRun  bool   // decide and say so, change nothing

	Hold  uuid.UUID     // settle, release, extend: of this one
	TTL   time.Duration // hold, extend: it ends this long from now
	Seq   int64         // reverse: the entry to give back from
	Units int64         // reverse: how many; 0 is all that is left
}

// kind is the request's kind, spelled out.
func (r *Request) kind() ledger.Kind {
	return cmp.Or(r.Kind, ledger.KindConsume)
}

// spends reports whether limits decide the request.
func (r *Request) spends() bool {
	return r.kind() == ledger.KindConsume || r.kind() == ledger.KindHold
}

// requestFields is what a request of each kind has to say beside its tenant.
var requestFields = map[ledger.Kind]struct{ charges, hold, ttl, seq, key bool }{
	ledger.KindConsume: {charges: true},
	ledger.KindHold:    {charges: true, ttl: true},
	ledger.KindSettle:  {charges: true, hold: true},
	ledger.KindRelease: {hold: true},
	ledger.KindExtend:  {hold: true, ttl: true},
	ledger.KindReverse: {seq: true, key: true},
	ledger.KindAdjust:  {charges: true, key: true},
}

// A Charge is one meter and what to spend on it: a cost in the meter's units, or
// amounts per pool that the meter's weights turn into one. Exactly one is given.
type Charge struct {
	Meter string
	Cost  int64            // units, used when Pools is nil
	Pools map[string]int64 // amount by pool

	// Path is where the caller wrote this charge, for errors: "" or "charges[2]".
	Path string
}

// field names a field of the charge as its caller wrote it.
func (c Charge) field(name string) string {
	if c.Path == "" {
		return name
	}
	return c.Path + "." + name
}

// Validate checks everything that can be checked without the tenant's plan. It
// returns nil or an [*Error] with code [CodeInvalidRequest] that lists every fault.
func (r Request) Validate() error {
	var faults []Fault
	add := func(field, rule string) { faults = append(faults, Fault{Field: field, Rule: rule}) }

	if rule := IDRule(r.Tenant); rule != "" {
		add("tenant", rule)
	}
	if r.Subject != "" {
		if rule := IDRule(r.Subject); rule != "" {
			add("subject", rule)
		}
	}
	if rule := keyRule(r.Key); rule != "" {
		add("Idempotency-Key", rule)
	}
	fields, known := requestFields[r.kind()]
	if !known {
		add("kind", fmt.Sprintf("%q is none that can be asked for", r.Kind))
	}
	if fields.charges {
		faults = append(faults, r.chargeFaults()...)
	}
	if fields.hold && r.Hold == uuid.Nil {
		add("hold", "must be the id of a hold")
	}
	if fields.ttl && (r.TTL < TTLMin || r.TTL > TTLMax || r.TTL%time.Microsecond != 0) {
		add("ttl_ms", TTLRule)
	}
	if fields.seq && r.Seq < 1 {
		add("seq", "must be the number of an entry, 1 or more")
	}
	if fields.seq && (r.Units < 0 || r.Units > catalog.UnitsMax) {
		add("units", ReversalUnitsRule)
	}
	if fields.key && r.Key == "" {
		add("Idempotency-Key", "is required")
	}
	faults = append(faults, dimFaults(r.Dims)...)
	if len(faults) > 0 {
		return &Error{Code: CodeInvalidRequest, Faults: faults}
	}
	return nil
}

func (r *Request) chargeFaults() []Fault {
	var faults []Fault
	if len(r.Charges) == 0 {
		faults = append(faults, Fault{"charges", "must hold at least one charge"})
	}
	if len(r.Charges) > ChargesMax {
		faults = append(faults, Fault{"charges", fmt.Sprintf("must hold at most %d charges", ChargesMax)})
	}
	// The settle of a hold on one meter need not name it again.
	unnamed := r.Kind == ledger.KindSettle && len(r.Charges) == 1
	for _, c := range r.Charges[:min(len(r.Charges), ChargesMax)] {
		faults = append(faults, c.faults(unnamed)...)
	}
	return faults
}

// costField names the field that said what a meter is charged, as its caller wrote it.
func (r *Request) costField(meter string) string {
	for _, c := range r.Charges {
		if c.Meter == meter || c.Meter == "" {
			return c.field("cost")
		}
	}
	return "cost"
}

func (c Charge) faults(unnamed bool) []Fault {
	var faults []Fault
	if !catalog.ValidName(c.Meter) && !(unnamed && c.Meter == "") {
		faults = append(faults, Fault{c.field("meter"), catalog.NameRule})
	}
	if c.Pools == nil {
		if c.Cost < 0 || c.Cost > catalog.UnitsMax {
			faults = append(faults, Fault{c.field("cost"), unitsRule})
		}
		return faults
	}
	if len(c.Pools) == 0 || len(c.Pools) > PoolsMax {
		faults = append(faults, Fault{c.field("pools"), fmt.Sprintf("must name 1 to %d pools", PoolsMax)})
	}
	for _, pool := range slices.Sorted(maps.Keys(c.Pools)) {
		if amount := c.Pools[pool]; amount < 0 || amount > catalog.UnitsMax {
			faults = append(faults, Fault{c.field("pools." + pool), unitsRule})
		}
	}
	return faults
}

const unitsRule = "must be a whole number from 0 to 999999999999999"

// The rules of a hold's ttl_ms, and of the units of a reversal.
const (
	TTLRule           = "must be a whole number from 1 to 86400000, which is 24 hours"
	ReversalUnitsRule = "must be a whole number from 1 to 999999999999999, or left out for all that is left"
)

// IDRule returns the rule of tenant and subject ids that id breaks, or "".
func IDRule(id string) string { return catalog.IDRule(id) }

func keyRule(key string) string {
	if len(key) > KeyBytesMax {
		return fmt.Sprintf("must be at most %d bytes long", KeyBytesMax)
	}
	return catalog.CharactersRule(key)
}

func dimFaults(dims map[string]string) []Fault {
	if len(dims) == 0 { // sorting no names allocates twice
		return nil
	}
	var faults []Fault
	if len(dims) > DimsMax {
		return []Fault{{"dims", fmt.Sprintf("must hold at most %d dimensions", DimsMax)}}
	}
	for _, name := range slices.Sorted(maps.Keys(dims)) {
		if name == "" || len(name) > DimNameBytes || catalog.CharactersRule(name) != "" {
			faults = append(faults, Fault{"dims", fmt.Sprintf(
				"names must be 1 to %d bytes of UTF-8 without control characters", DimNameBytes)})
		}
		if len(dims[name]) > DimValueBytes || catalog.CharactersRule(dims[name]) != "" {
			faults = append(faults, Fault{"dims." + name, fmt.Sprintf(
				"must be at most %d bytes of UTF-8 without control characters", DimValueBytes)})
		}
	}
	return faults
}
