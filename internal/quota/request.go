package quota

import (
	"fmt"
	"maps"
	"slices"

	"github.com/quotad/quotad/internal/catalog"
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
)

// A Request asks whether a tenant may spend now. Zero fields are absent ones.
type Request struct {
	Tenant  string
	Subject string
	Charges []Charge // admitted all or none; charges on one meter are summed
	Dims    map[string]string
	Key     string // idempotency key
	DryRun  bool   // decide and say so, change nothing
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
	if len(r.Charges) == 0 {
		add("charges", "must hold at least one charge")
	}
	if len(r.Charges) > ChargesMax {
		add("charges", fmt.Sprintf("must hold at most %d charges", ChargesMax))
	}
	for _, c := range r.Charges[:min(len(r.Charges), ChargesMax)] {
		faults = append(faults, c.faults()...)
	}
	faults = append(faults, dimFaults(r.Dims)...)
	if len(faults) > 0 {
		return &Error{Code: CodeInvalidRequest, Faults: faults}
	}
	return nil
}

func (c Charge) faults() []Fault {
	var faults []Fault
	if !catalog.ValidName(c.Meter) {
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

// IDRule returns the rule of tenant and subject ids that id breaks, or "".
func IDRule(id string) string { return catalog.IDRule(id) }

func keyRule(key string) string {
	if len(key) > KeyBytesMax {
		return fmt.Sprintf("must be at most %d bytes long", KeyBytesMax)
	}
	return catalog.CharactersRule(key)
}

func dimFaults(dims map[string]string) []Fault {
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
