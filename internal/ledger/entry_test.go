package ledger

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// golden is an entry with every field set, each to something else.
func golden() Entry {
	return Entry{
		Tenant:        "acme",
		Seq:           42,
		At:            time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC),
		EffectiveAt:   time.Date(2026, 2, 28, 23, 59, 59, 999_999_000, time.UTC),
		Kind:          KindConsume,
		Meter:         "llm.tokens",
		Subject:       "user-1",
		SubjectID:     7,
		Units:         4848,
		Held:          -3,
		Total:         999_999_999_999_999,
		SubjectTotal:  5000,
		RequestID:     uuid.MustParse("0195a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"),
		BatchID:       uuid.MustParse("00112233-4455-4677-8899-aabbccddeeff"),
		RefSeq:        41,
		PlanVersionID: 9,
		Plan:          "pro",
		PlanVersion:   3,
		SpecDigest:    [32]byte(bytes.Repeat([]byte{0xcc}, 32)),
		OverrideSetID: 7,
		LimitsUsed:    []int64{100, 0, 4},
		LimitsHeld:    []int64{0, 0, 3},
		Dims:          map[string]string{"region": "eu"},
		SubjectDigest: bytes.Repeat([]byte{0xaa}, 32),
		DimsDigest:    bytes.Repeat([]byte{0xbb}, 32),
	}
}

// A changed byte here would break the chain of every ledger there is: another layout
// needs another version in front.
func TestCanonicalBytesAreTheDocumentedOnes(t *testing.T) {
	t.Parallel()
	want := strings.Join([]string{
		"0000000f" + "71756f7461642f656e7472792f7631",                             // quotad/entry/v1
		"00000008" + "000000000000002a",                                           // seq
		"00000008" + "00064bf535b0f240",                                           // at
		"00000008" + "00064beb26c35fff",                                           // effective_at
		"00000007" + "636f6e73756d65",                                             // kind
		"0000000a" + "6c6c6d2e746f6b656e73",                                       // meter
		"00000020" + strings.Repeat("aa", 32),                                     // subject's digest
		"00000008" + "00000000000012f0",                                           // units
		"00000008" + "fffffffffffffffd",                                           // held
		"00000008" + "00038d7ea4c67fff",                                           // total
		"00000008" + "0000000000001388",                                           // subject's total
		"00000010" + "0195a1b2c3d47e5f8a9b0c1d2e3f4a5b",                           // request
		"00000010" + "00112233445546778899aabbccddeeff",                           // batch
		"00000008" + "0000000000000029",                                           // the entry it answers
		"00000008" + "0000000000000009",                                           // plan version
		"00000008" + "0000000000000007",                                           // override set
		"00000020" + strings.Repeat("cc", 32),                                     // digest of its rules
		"00000018" + "0000000000000064" + "0000000000000000" + "0000000000000004", // limits used
		"00000018" + "0000000000000000" + "0000000000000000" + "0000000000000003", // limits held
		"00000020" + strings.Repeat("bb", 32),                                     // dims' digest
	}, "")
	e := golden()
	if diff := cmp.Diff(want, hex.EncodeToString(e.appendCanonical(nil))); diff != "" {
		t.Errorf("canonical bytes (-want +got):\n%s", diff)
	}
	previous := sha256.Sum256([]byte("the entry before"))
	hash := e.ChainHash(previous)
	const wantHash = "89ed90c2ac70c090618f19202d5003ce1d1f233a699fde90d11437b9d60b56f8"
	if got := hex.EncodeToString(hash[:]); got != wantHash {
		t.Errorf("ChainHash = %s, want %s", got, wantHash)
	}
}

func TestTheHashCoversThePreviousOne(t *testing.T) {
	t.Parallel()
	e := golden()
	if e.ChainHash([32]byte{}) == e.ChainHash([32]byte{31: 1}) {
		t.Error("two previous hashes lead to one")
	}
}

// coverage says of every field whether the canonical bytes hold it. Those that they do
// not are covered otherwise: the tenant through the first hash, texts through their
// digests, plan and version through the version's id and the digest of its rules.
var coverage = map[string]bool{
	"Tenant": false, "Seq": true, "At": true, "EffectiveAt": true, "Kind": true, "Meter": true,
	"Subject": false, "SubjectID": false, "Units": true, "Held": true, "Total": true, "SubjectTotal": true,
	"RequestID": true, "BatchID": true, "RefSeq": true, "PlanVersionID": true, "OverrideSetID": true, "Plan": false, "PlanVersion": false,
	"SpecDigest": true, "LimitsUsed": true, "LimitsHeld": true, "Dims": false, "SubjectDigest": true, "DimsDigest": true, "Hash": false,
}

func TestChangingAFieldChangesTheHash(t *testing.T) {
	t.Parallel()
	fields := reflect.VisibleFields(reflect.TypeFor[Entry]())
	if len(fields) != len(coverage) {
		t.Fatalf("an entry has %d fields, the table %d: say whether the chain covers the new one", len(fields), len(coverage))
	}
	rapid.Check(t, func(t *rapid.T) {
		e, other := drawEntry(t, "entry"), drawEntry(t, "other")
		for _, field := range fields {
			covered, known := coverage[field.Name]
			if !known {
				t.Fatalf("field %s is not in the table", field.Name)
			}
			changed := e
			reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index).Set(reflect.ValueOf(other).FieldByIndex(field.Index))
			same := cmp.Equal(e, changed)
			if got := e.ChainHash(e.Hash) == changed.ChainHash(e.Hash); got != (same || !covered) {
				t.Errorf("%s from %v to %v: hashes are equal = %t", field.Name,
					reflect.ValueOf(e).FieldByIndex(field.Index), reflect.ValueOf(changed).FieldByIndex(field.Index), got)
			}
		}
	})
}

// What can be read back can belong to one entry only.
func TestCanonicalBytesBelongToOneEntry(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		e := drawEntry(t, "entry")
		got, err := decodeCanonical(e.appendCanonical(nil))
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range reflect.VisibleFields(reflect.TypeFor[Entry]()) {
			if !coverage[field.Name] {
				reflect.ValueOf(&e).Elem().FieldByIndex(field.Index).SetZero()
			}
		}
		if diff := cmp.Diff(e, got); diff != "" {
			t.Fatalf("read back (-written +read):\n%s", diff)
		}
	})
}

func TestFieldsDoNotRunIntoEachOther(t *testing.T) {
	t.Parallel()
	digest := bytes.Repeat([]byte{1}, 8)
	for _, c := range []struct{ one, two Entry }{
		{Entry{Kind: "ab", Meter: "c"}, Entry{Kind: "a", Meter: "bc"}},
		{Entry{Meter: "c", SubjectDigest: digest}, Entry{Meter: "c" + string(digest)}},
		{Entry{LimitsUsed: []int64{0x0101010101010101}}, Entry{DimsDigest: digest}},
		{Entry{LimitsUsed: []int64{0}}, Entry{}},
		{Entry{SubjectDigest: digest}, Entry{DimsDigest: digest}},
	} {
		if bytes.Equal(c.one.appendCanonical(nil), c.two.appendCanonical(nil)) {
			t.Errorf("%+v and %+v share their canonical bytes", c.one, c.two)
		}
	}
}

// Hashing is under the account's lock, so the longest entry must not cost an allocation.
func TestHashingAllocatesNothing(t *testing.T) { // alone, as allocations are counted for the whole process
	e := golden()
	e.Meter = strings.Repeat("m", 64)
	e.LimitsUsed, e.LimitsHeld = make([]int64, 16), make([]int64, 16)
	if n := testing.AllocsPerRun(100, func() { e.Hash = e.ChainHash(e.Hash) }); n != 0 {
		t.Errorf("hashing allocates %v times, want 0", n)
	}
}

func TestDigestsAreSalted(t *testing.T) {
	t.Parallel()
	want := sha256.Sum256([]byte("saltuser-1"))
	if got := Digest([]byte("salt"), []byte("user-1")); !bytes.Equal(got, want[:]) {
		t.Errorf("Digest = %x, want %x", got, want)
	}
}

func drawEntry(t *rapid.T, label string) Entry {
	number := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64())
	text := rapid.SampledFrom([]string{"", "a", "ab", "b", "calls", "llm.tokens"})
	id := rapid.Custom(func(t *rapid.T) (id uuid.UUID) {
		copy(id[:], rapid.SliceOfN(rapid.Byte(), len(id), len(id)).Draw(t, "bytes"))
		return id
	})
	digest := rapid.OneOf(rapid.Just[[]byte](nil), rapid.SliceOfN(rapid.Byte(), sha256.Size, sha256.Size))
	instant := rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMicro(rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(-1<<55, 1<<55)).Draw(t, "micros")).UTC()
	})
	return rapid.Custom(func(t *rapid.T) Entry {
		e := Entry{
			Tenant: text.Draw(t, "tenant"), Seq: number.Draw(t, "seq"),
			At: instant.Draw(t, "at"), EffectiveAt: instant.Draw(t, "effective"),
			Kind: Kind(text.Draw(t, "kind")), Meter: text.Draw(t, "meter"),
			Subject: text.Draw(t, "subject"), SubjectID: number.Draw(t, "subject id"),
			Units: number.Draw(t, "units"), Held: number.Draw(t, "held"),
			Total: number.Draw(t, "total"), SubjectTotal: number.Draw(t, "subject total"),
			RequestID: id.Draw(t, "request"), BatchID: id.Draw(t, "batch"),
			RefSeq: number.Draw(t, "ref"), PlanVersionID: number.Draw(t, "version id"), OverrideSetID: number.Draw(t, "override set"),
			Plan: text.Draw(t, "plan"), PlanVersion: rapid.Int32().Draw(t, "version"),
			Dims:          map[string]string{"k": text.Draw(t, "dim")},
			SubjectDigest: digest.Draw(t, "subject digest"), DimsDigest: digest.Draw(t, "dims digest"),
			LimitsUsed: rapid.SliceOfN(number, 0, 4).Draw(t, "limits used"),
			LimitsHeld: rapid.SliceOfN(number, 0, 4).Draw(t, "limits held"),
		}
		copy(e.SpecDigest[:], digest.Draw(t, "spec digest"))
		if len(e.LimitsUsed) == 0 {
			e.LimitsUsed = nil // the two have one stored form
		}
		if len(e.LimitsHeld) == 0 {
			e.LimitsHeld = nil
		}
		return e
	}).Draw(t, label)
}

// decodeCanonical reads the documented layout: fields in order, each a 4-byte
// big-endian length and its bytes.
func decodeCanonical(b []byte) (e Entry, err error) {
	field := func() []byte {
		if len(b) < 4 || len(b)-4 < int(binary.BigEndian.Uint32(b)) {
			err = fmt.Errorf("a field is cut short")
			return make([]byte, 16)
		}
		size := 4 + int(binary.BigEndian.Uint32(b))
		content := b[4:size]
		b = b[size:]
		return content
	}
	digest := func() []byte { return append([]byte(nil), field()...) }
	number := func() int64 { return int64(binary.BigEndian.Uint64(field())) }
	if version := string(field()); version != "quotad/entry/v1" {
		return e, fmt.Errorf("version %q", version)
	}
	e.Seq = number()
	e.At, e.EffectiveAt = time.UnixMicro(number()).UTC(), time.UnixMicro(number()).UTC()
	e.Kind, e.Meter = Kind(field()), string(field())
	e.SubjectDigest = digest()
	e.Units, e.Held, e.Total, e.SubjectTotal = number(), number(), number(), number()
	e.RequestID, e.BatchID = uuid.UUID(field()), uuid.UUID(field())
	e.RefSeq, e.PlanVersionID, e.OverrideSetID = number(), number(), number()
	copy(e.SpecDigest[:], field())
	for used := field(); len(used) > 0; used = used[8:] {
		e.LimitsUsed = append(e.LimitsUsed, int64(binary.BigEndian.Uint64(used)))
	}
	for held := field(); len(held) > 0; held = held[8:] {
		e.LimitsHeld = append(e.LimitsHeld, int64(binary.BigEndian.Uint64(held)))
	}
	e.DimsDigest = digest()
	if len(b) > 0 {
		err = fmt.Errorf("%d bytes are left over", len(b))
	}
	return e, err
}
