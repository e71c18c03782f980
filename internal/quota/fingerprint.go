package quota

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"

	"github.com/quotad/quotad/internal/ledger"
)

// fingerprint is what an idempotency key is bound to: SHA-256 over the operation and
// the decoded request, every field length-prefixed, so that only an equal request is a
// retry. The key itself and the tenant it is scoped to are left out.
func (r *Request) fingerprint() [32]byte {
	var buffer [256]byte
	b := buffer[:0]
	text := func(s string) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }

	text(string(r.kind()) + "/v1")
	if r.kind() != ledger.KindConsume {
		b = append(b, r.Hold[:]...)
		number(int64(r.TTL))
		number(r.Seq)
		number(r.Units)
	}
	text(r.Subject)
	number(int64(len(r.Charges)))
	for _, c := range r.Charges {
		text(c.Meter)
		if c.Pools == nil {
			number(-1)
			number(c.Cost)
			continue
		}
		number(int64(len(c.Pools)))
		for _, pool := range slices.Sorted(maps.Keys(c.Pools)) {
			text(pool)
			number(c.Pools[pool])
		}
	}
	number(int64(len(r.Dims)))
	for _, name := range slices.Sorted(maps.Keys(r.Dims)) {
		text(name)
		text(r.Dims[name])
	}
	return sha256.Sum256(b)
}
