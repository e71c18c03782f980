package ledger

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"
)

// FuzzCanonical holds what the chain covers to this: two entries that differ in any
// field have different bytes, whatever their texts are, since these can be taken apart
// again.
func FuzzCanonical(f *testing.F) {
	f.Add(int64(1), int64(0), "consume", "api.calls", []byte("s"), []byte("d"), int64(1), int64(-1), byte(2))
	f.Add(int64(-1), int64(1<<62), "", "\x00\x00\x00\x08", []byte{}, []byte(nil), int64(0), int64(0), byte(0))
	f.Fuzz(func(t *testing.T, seq, at int64, kind, meter string, subject, dims []byte, units, total int64, limits byte) {
		e := Entry{
			Seq: seq, At: time.UnixMicro(at), EffectiveAt: time.UnixMicro(at), Kind: Kind(kind), Meter: meter, SubjectDigest: subject,
			DimsDigest: dims, Units: units, Total: total, LimitsUsed: make([]int64, limits%17), LimitsHeld: make([]int64, limits%3),
		}
		want := [][]byte{
			[]byte(canonicalVersion), number(seq), number(at), number(at), []byte(kind), []byte(meter), subject,
			number(units), number(0), number(total), number(0), e.RequestID[:], e.BatchID[:], number(0), number(0), number(0), e.SpecDigest[:],
			make([]byte, 8*int(limits%17)), make([]byte, 8*int(limits%3)), dims,
		}
		rest := e.appendCanonical(nil)
		for i, field := range want {
			length := binary.BigEndian.Uint32(rest)
			if got := rest[4 : 4+length]; !bytes.Equal(got, field) {
				t.Fatalf("field %d of %+v = %q, want %q", i, e, got, field)
			}
			rest = rest[4+length:]
		}
		if len(rest) != 0 {
			t.Fatalf("%q follows the last field of %+v", rest, e)
		}
		edited := e
		edited.Units ^= 1
		if e.ChainHash([32]byte{}) == edited.ChainHash([32]byte{}) || e.ChainHash([32]byte{}) == e.ChainHash([32]byte{1}) {
			t.Fatal("the hash covers neither all of the entry nor what was before it")
		}
	})
}

func number(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
