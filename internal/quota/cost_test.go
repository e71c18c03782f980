package quota

import (
	"errors"
	"math/big"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/catalog"
)

func TestCostIsTheWeightedSumRoundedUpOnce(t *testing.T) {
	t.Parallel()
	meter := &catalog.Meter{Name: "llm.tokens", Weights: map[string]catalog.Weight{
		"input_tokens": catalog.WeightOne, "output_tokens": 4 * catalog.WeightOne, "cached": 100_000, "tiny": 1, "free": 0,
	}}
	for _, row := range []struct {
		pools map[string]int64
		want  int64
	}{
		{map[string]int64{"input_tokens": 4808, "output_tokens": 10}, 4848},
		{map[string]int64{"input_tokens": 0}, 0},
		{map[string]int64{"free": 1000}, 0},
		{map[string]int64{"cached": 10}, 1},
		{map[string]int64{"cached": 11}, 2},
		{map[string]int64{"tiny": 1}, 1},
		{map[string]int64{"cached": 9, "tiny": 100_000}, 1}, // 0.9 + 0.1, once
		{map[string]int64{"cached": 9, "tiny": 100_001}, 2},
		{map[string]int64{"input_tokens": catalog.UnitsMax}, catalog.UnitsMax},
		{map[string]int64{"tiny": catalog.UnitsMax}, 1_000_000_000},
	} {
		got, err := costOf(meter, Charge{Meter: "llm.tokens", Pools: row.pools})
		if got != row.want || err != nil {
			t.Errorf("costOf(%v) = %d, %v, want %d", row.pools, got, err, row.want)
		}
	}
}

func TestCostNamesEveryFault(t *testing.T) {
	t.Parallel()
	meter := &catalog.Meter{Name: "llm.tokens", Weights: map[string]catalog.Weight{
		"input_tokens": catalog.WeightOne, "heavy": 1<<63 - 1,
	}}
	for _, row := range []struct {
		pools map[string]int64
		want  []Fault
	}{
		{
			map[string]int64{"output": 1, "input_tokens": 1, "cached": 1},
			[]Fault{
				{"charges[1].pools.cached", "must be a pool of meter llm.tokens"},
				{"charges[1].pools.output", "must be a pool of meter llm.tokens"},
			},
		},
		{
			map[string]int64{"input_tokens": catalog.UnitsMax, "heavy": catalog.UnitsMax},
			[]Fault{{"charges[1].pools", "must cost at most 999999999999999 units"}},
		},
		{
			map[string]int64{"heavy": 109}, // 1e15 + ε
			[]Fault{{"charges[1].pools", "must cost at most 999999999999999 units"}},
		},
	} {
		_, err := costOf(meter, Charge{Pools: row.pools, Path: "charges[1]"})
		var fault *Error
		if !errors.As(err, &fault) || fault.Code != CodeInvalidRequest {
			t.Fatalf("costOf(%v): error %v, want invalid_request", row.pools, err)
		}
		if diff := cmp.Diff(row.want, fault.Faults); diff != "" {
			t.Errorf("costOf(%v): faults (-want +got):\n%s", row.pools, diff)
		}
	}
}

func TestCostEqualsTheRationalSum(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		meter := &catalog.Meter{Name: "m", Weights: map[string]catalog.Weight{}}
		pools := map[string]int64{}
		sum := new(big.Rat)
		for i := range rapid.IntRange(1, PoolsMax).Draw(t, "pools") {
			name := "p" + strconv.Itoa(i)
			weight := rapid.OneOf(rapid.Int64Range(0, 3_000_000), rapid.Int64Range(0, 1<<63-1)).Draw(t, "weight")
			amount := rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64Range(0, catalog.UnitsMax)).Draw(t, "amount")
			meter.Weights[name], pools[name] = catalog.Weight(weight), amount
			term := new(big.Rat).SetFrac64(weight, 1_000_000)
			sum.Add(sum, term.Mul(term, new(big.Rat).SetInt64(amount)))
		}
		want := ceilRat(sum)
		got, err := costOf(meter, Charge{Pools: pools})
		if fits := want.Cmp(big.NewInt(catalog.UnitsMax)) <= 0; fits != (err == nil) || fits && got != want.Int64() {
			t.Fatalf("costOf(%v) with %v = %d, %v, want %v", pools, meter.Weights, got, err, want)
		}
	})
}

// floorRat returns ⌊r⌋.
func floorRat(r *big.Rat) *big.Int {
	quotient, rest := new(big.Int).QuoRem(r.Num(), r.Denom(), new(big.Int))
	if rest.Sign() < 0 {
		quotient.Sub(quotient, big.NewInt(1))
	}
	return quotient
}

// ceilRat returns ⌈r⌉.
func ceilRat(r *big.Rat) *big.Int {
	down := floorRat(new(big.Rat).Neg(r))
	return down.Neg(down)
}
