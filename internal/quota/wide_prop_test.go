package quota

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

func (w wide) big() *big.Int {
	n := new(big.Int).SetUint64(w.hi)
	return n.Lsh(n, 64).Add(n, new(big.Int).SetUint64(w.lo))
}

func TestWideEqualsBigIntegers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		half := rapid.Uint64Range(0, 1<<63-1)
		a := product(half.Draw(t, "a"), rapid.Uint64().Draw(t, "b"))
		b := product(half.Draw(t, "c"), rapid.Uint64().Draw(t, "d"))
		d := rapid.Uint64Range(1, 1<<64-1).Draw(t, "divisor")

		if got, want := a.plus(b).big(), new(big.Int).Add(a.big(), b.big()); got.Cmp(want) != 0 {
			t.Fatalf("%v + %v = %v, want %v", a.big(), b.big(), got, want)
		}
		if got, want := a.less(b), a.big().Cmp(b.big()) < 0; got != want {
			t.Fatalf("%v < %v = %v, want %v", a.big(), b.big(), got, want)
		}
		if b.less(a) {
			if got, want := a.minus(b).big(), new(big.Int).Sub(a.big(), b.big()); got.Cmp(want) != 0 {
				t.Fatalf("%v - %v = %v, want %v", a.big(), b.big(), got, want)
			}
		}
		wantQuotient, wantRest := new(big.Int).QuoRem(a.big(), new(big.Int).SetUint64(d), new(big.Int))
		quotient, rest, ok := a.floorDiv(d)
		if ok != wantQuotient.IsUint64() || ok && (quotient != wantQuotient.Uint64() || rest != wantRest.Uint64()) {
			t.Fatalf("floorDiv(%v, %d) = %d, %d, %v, want %v, %v", a.big(), d, quotient, rest, ok, wantQuotient, wantRest)
		}
		if wantRest.Sign() > 0 {
			wantQuotient.Add(wantQuotient, big.NewInt(1))
		}
		quotient, ok = a.ceilDiv(d)
		if ok != wantQuotient.IsUint64() || ok && quotient != wantQuotient.Uint64() {
			t.Fatalf("ceilDiv(%v, %d) = %d, %v, want %v", a.big(), d, quotient, ok, wantQuotient)
		}
	})
}

func TestWideDivisionSaysWhenItDoesNotFit(t *testing.T) {
	t.Parallel()
	most := wide{hi: 1<<64 - 1, lo: 1<<64 - 1}
	if _, _, ok := most.floorDiv(1); ok {
		t.Errorf("floorDiv(2^128-1, 1) fits, want not")
	}
	if _, _, ok := (wide{hi: 3}).floorDiv(3); ok { // 2^64 exactly
		t.Errorf("floorDiv(3·2^64, 3) fits, want not")
	}
	// ⌊w/d⌋ is 2^64−1 with a rest, so only the rounding up passes 64 bits.
	w := product(1<<64-1, 3).plus(wide{lo: 2})
	if q, rest, ok := w.floorDiv(3); q != 1<<64-1 || rest != 2 || !ok {
		t.Errorf("floorDiv = %d, %d, %v, want 2^64-1, 2, true", q, rest, ok)
	}
	if q, ok := w.ceilDiv(3); ok {
		t.Errorf("ceilDiv = %d, want that it does not fit", q)
	}
}
