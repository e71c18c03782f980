package quota

import "math/bits"

// A wide is an unsigned 128-bit integer: what a product of two amounts, durations or
// instants needs before it is divided. Results that could pass 128 bits do not
// occur: units are below 2^50, durations below 2^49, instants below 2^58.
type wide struct {
	hi, lo uint64
}

// product returns a·b.
func product(a, b uint64) wide {
	hi, lo := bits.Mul64(a, b)
	return wide{hi, lo}
}

// plus returns w + x.
func (w wide) plus(x wide) wide {
	lo, carry := bits.Add64(w.lo, x.lo, 0)
	hi, _ := bits.Add64(w.hi, x.hi, carry)
	return wide{hi, lo}
}

// minus returns w − x, which is 0 or more.
func (w wide) minus(x wide) wide {
	lo, borrow := bits.Sub64(w.lo, x.lo, 0)
	hi, _ := bits.Sub64(w.hi, x.hi, borrow)
	return wide{hi, lo}
}

// less reports whether w < x.
func (w wide) less(x wide) bool {
	return w.hi < x.hi || (w.hi == x.hi && w.lo < x.lo)
}

// floorDiv returns ⌊w/d⌋ and the rest. ok is false when the quotient passes 64 bits.
func (w wide) floorDiv(d uint64) (quotient, rest uint64, ok bool) {
	if w.hi >= d {
		return 0, 0, false
	}
	quotient, rest = bits.Div64(w.hi, w.lo, d)
	return quotient, rest, true
}

// ceilDiv returns ⌈w/d⌉. ok is false when it passes 64 bits.
func (w wide) ceilDiv(d uint64) (quotient uint64, ok bool) {
	quotient, rest, ok := w.floorDiv(d)
	if rest > 0 {
		quotient++
	}
	return quotient, ok && !(rest > 0 && quotient == 0)
}

// gcd returns the greatest common divisor of a and b; gcd(a, 0) is a.
func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
