package quota

import (
	"maps"
	"slices"

	"github.com/quotad/quotad/internal/catalog"
)

// costOf returns what the charge's amounts per pool cost on its meter: the sum of
// amount × weight, rounded up once. Amounts are validated. It returns an [*Error]
// with code [CodeInvalidRequest] that names every pool the meter does not have, or
// says that the cost passes what an amount can be.
func costOf(m *catalog.Meter, c Charge) (int64, error) {
	var faults []Fault
	var sum wide // in millionths of a unit
	for _, pool := range slices.Sorted(maps.Keys(c.Pools)) {
		weight, known := m.Weights[pool]
		if !known {
			faults = append(faults, Fault{c.field("pools." + pool), "must be a pool of meter " + m.Name})
			continue
		}
		sum = sum.plus(product(uint64(c.Pools[pool]), uint64(weight)))
	}
	cost, ok := sum.ceilDiv(uint64(catalog.WeightOne))
	if len(faults) == 0 && (!ok || cost > catalog.UnitsMax) {
		faults = []Fault{{c.field("pools"), "must cost at most 999999999999999 units"}}
	}
	if len(faults) > 0 {
		return 0, &Error{Code: CodeInvalidRequest, Faults: faults}
	}
	return int64(cost), nil
}
