package quota

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/ledger"
)

// A kept answer is found by this value weeks after it was written: a changed byte here
// would refuse every retry as another request.
func TestFingerprintsStayTheSame(t *testing.T) {
	t.Parallel()
	r := Request{
		Tenant: "acme", Subject: "user-1", Key: "order-1",
		Charges: []Charge{
			{Meter: "calls", Cost: 3},
			{Meter: "tokens", Pools: map[string]int64{"output": 10, "input": 4808}, Path: "charges[1]"},
		},
		Dims: map[string]string{"region": "eu", "model": "m"},
	}
	const want = "ab2c4463f11231c876c4644baafab35d63a4b061c605209e6c1c5b4ec475b0e5"
	got := r.fingerprint()
	if hex.EncodeToString(got[:]) != want {
		t.Errorf("fingerprint = %x, want %s", got, want)
	}
}

// Where the key is scoped to, and how the request was written, do not make it another.
func TestFingerprintsLeaveOutWhatDoesNotChangeARequest(t *testing.T) {
	t.Parallel()
	plain := Request{Tenant: "acme", Charges: []Charge{{Meter: "calls", Cost: 1}, {Meter: "tokens", Pools: map[string]int64{"a": 1}}}}
	other := Request{
		Tenant: "globex", Key: "k", DryRun: true, Dims: map[string]string{},
		Charges: []Charge{{Meter: "calls", Cost: 1, Path: "charges[0]"}, {Meter: "tokens", Cost: 9, Pools: map[string]int64{"a": 1}}},
	}
	if plain.fingerprint() != other.fingerprint() {
		t.Error("the fingerprints differ")
	}
}

func TestFieldsOfAFingerprintDoNotRunIntoEachOther(t *testing.T) {
	t.Parallel()
	seen := make(map[[32]byte]int)
	for i, r := range []Request{
		{},
		{Subject: "a"},
		{Charges: []Charge{{}}},
		{Charges: []Charge{{Meter: "a"}}},
		{Subject: "a", Charges: []Charge{{}}},
		{Charges: []Charge{{Cost: 1}}},
		{Charges: []Charge{{Cost: -1}}},
		{Charges: []Charge{{}, {}}},
		{Charges: []Charge{{Meter: "ab"}, {Meter: "c"}}},
		{Charges: []Charge{{Meter: "a"}, {Meter: "bc"}}},
		{Charges: []Charge{{Meter: "bc"}, {Meter: "a"}}},
		{Charges: []Charge{{Pools: map[string]int64{"a": 1}}}},
		{Charges: []Charge{{Pools: map[string]int64{"a": 2}}}},
		{Charges: []Charge{{Pools: map[string]int64{"b": 1}}}},
		{Charges: []Charge{{Pools: map[string]int64{"a": 1, "b": 1}}}},
		{Charges: []Charge{{Pools: map[string]int64{"a": 1}}, {Pools: map[string]int64{"b": 1}}}},
		{Dims: map[string]string{"a": ""}},
		{Dims: map[string]string{"": "a"}},
		{Dims: map[string]string{"ab": "c"}},
		{Dims: map[string]string{"a": "bc"}},
		{Dims: map[string]string{"a": "b", "c": ""}},
	} {
		if first, taken := seen[r.fingerprint()]; taken {
			t.Errorf("requests %d and %d share a fingerprint", first, i)
		}
		seen[r.fingerprint()] = i
	}
}

func TestFingerprintsAreEqualWhereRequestsAre(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one, two := drawKeyed(t), drawKeyed(t)
		if equal := cmp.Equal(one, two); (one.fingerprint() == two.fingerprint()) != equal {
			t.Fatalf("%+v and %+v are equal: %t, their fingerprints say the opposite", one, two, equal)
		}
		first := one.fingerprint()
		if again := one.fingerprint(); again != first { // maps are walked in another order each time
			t.Fatalf("%+v has two fingerprints", one)
		}
	})
}

// drawKeyed draws one of so few requests that two are often equal, or nearly.
func drawKeyed(t *rapid.T) Request {
	text := rapid.SampledFrom([]string{"", "a", "b", "ab"})
	number := rapid.Int64Range(0, 1)
	r := Request{Subject: text.Draw(t, "subject")}
	if r.Kind = rapid.SampledFrom([]ledger.Kind{"", "", ledger.KindHold, ledger.KindSettle}).Draw(t, "kind"); r.Kind != "" {
		r.TTL, r.Seq, r.Units = time.Duration(number.Draw(t, "ttl")), number.Draw(t, "seq"), number.Draw(t, "units")
		r.Hold[15] = byte(number.Draw(t, "hold"))
	}
	for range rapid.IntRange(1, 2).Draw(t, "charges") {
		c := Charge{Meter: text.Draw(t, "meter")}
		if rapid.Bool().Draw(t, "pooled") {
			c.Pools = rapid.MapOfN(text, number, 1, 2).Draw(t, "pools")
		} else {
			c.Cost = number.Draw(t, "cost")
		}
		r.Charges = append(r.Charges, c)
	}
	if rapid.Bool().Draw(t, "has dims") {
		r.Dims = rapid.MapOfN(text, text, 1, 2).Draw(t, "dims")
	}
	return r
}
