package loadgen

import (
	"math"
	"math/rand/v2"
	"slices"
)

// A picker chooses among n: the nth as often as 1/n to the power of the skew (Zipf's
// law). The generator of math/rand knows no powers up to 1, and those are what traffic
// is like.
type picker struct {
	n     int
	until []float64 // sums of shares; nil when all are alike
}

func newPicker(n int, skew float64) picker {
	p := picker{n: n}
	if skew == 0 {
		return p
	}
	sum := 0.0
	for i := range n {
		sum += math.Pow(float64(i+1), -skew)
		p.until = append(p.until, sum)
	}
	return p
}

func (p picker) pick(random *rand.Rand) int {
	if p.until == nil {
		return random.IntN(p.n)
	}
	i, _ := slices.BinarySearch(p.until, random.Float64()*p.until[p.n-1])
	return min(i, p.n-1)
}
