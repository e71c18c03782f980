package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/google/uuid"
)

// A Kind says what an entry records. Its text form is stored and sent.
type Kind string

// The kinds of entries.
const (
	KindConsume Kind = "consume" // usage that a decision admitted
	KindHold    Kind = "hold"    // cost that a decision set aside
	KindExtend  Kind = "extend"  // another end of a hold
	KindSettle  Kind = "settle"  // what a hold came to: usage, whatever the limits say
	KindRelease Kind = "release" // a hold that came to nothing
	KindExpire  Kind = "expire"  // a hold that nobody resolved in time
	KindReverse Kind = "reverse" // units given back of an earlier entry
	KindAdjust  Kind = "adjust"  // usage recorded afterwards, whatever the limits say
	KindGrant   Kind = "grant"   // units granted on top
)

// Uses reports whether an entry of this kind is a call that used its meter.
func (k Kind) Uses() bool { return k == KindConsume || k == KindSettle || k == KindAdjust }

// An Entry is one row of the ledger.
type Entry struct {
	Tenant        string
	Seq           int64 // 1, 2, 3 … per tenant
	At            time.Time
	EffectiveAt   time.Time // the instant its units count from; of a hold and its extension, when the hold ends
	Kind          Kind
	Meter         string
	Subject       string // "" for none, or when erased
	SubjectID     int64  // the subject's number in its tenant; 0 for none
	Units         int64  // change of usage
	Held          int64  // change of what is set aside
	Total         int64  // running total of the tenant's meter, this entry included; corrections are in none
	SubjectTotal  int64  // running total of the subject's meter, this entry included; 0 without a subject
	RequestID     uuid.UUID
	BatchID       uuid.UUID // the transaction that wrote it
	RefSeq        int64     // the entry it answers; 0 for none
	PlanVersionID int64
	OverrideSetID int64 // the tenant's overrides; 0 for none
	Plan          string
	PlanVersion   int32
	SpecDigest    [32]byte // of the rules: SHA-256 of plan_version.spec::text; zero when read from a store
	LimitsUsed    []int64  // what each limit of the plan version on the meter had used before
	LimitsHeld    []int64  // what was set aside of each of them before; nil where nothing was
	Dims          map[string]string
	SubjectDigest []byte // SHA-256(salt, subject); nil for none
	DimsDigest    []byte // SHA-256(salt, dims); nil for none
	Hash          [32]byte
}

// canonicalVersion heads the canonical bytes, so that another layout can follow.
const canonicalVersion = "quotad/entry/v1"

// appendCanonical appends the bytes that the chain covers, defined here and nowhere
// else: every field of fixed order, each as a 4-byte big-endian length and its bytes.
// Integers are 8 bytes big-endian, instants microseconds since the Unix epoch. The
// tenant is covered through the chain's first hash, the text of subject and dims
// through their digests, and plan and its version through the version's id. The rules
// that an entry was decided under are covered by their digest: they are stored once and
// not in each entry, and the id alone would stay right when somebody changes them.
func (e *Entry) appendCanonical(b []byte) []byte {
	b = appendField(b, canonicalVersion)
	b = appendInt(b, e.Seq)
	b = appendInt(b, e.At.UnixMicro())
	b = appendInt(b, e.EffectiveAt.UnixMicro())
	b = appendField(b, string(e.Kind))
	b = appendField(b, e.Meter)
	b = appendField(b, e.SubjectDigest)
	b = appendInt(b, e.Units)
	b = appendInt(b, e.Held)
	b = appendInt(b, e.Total)
	b = appendInt(b, e.SubjectTotal)
	b = appendField(b, e.RequestID[:])
	b = appendField(b, e.BatchID[:])
	b = appendInt(b, e.RefSeq)
	b = appendInt(b, e.PlanVersionID)
	b = appendInt(b, e.OverrideSetID)
	b = appendField(b, e.SpecDigest[:])
	b = appendInts(b, e.LimitsUsed)
	b = appendInts(b, e.LimitsHeld)
	return appendField(b, e.DimsDigest)
}

func appendInts(b []byte, values []int64) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(8*len(values)))
	for _, v := range values {
		b = binary.BigEndian.AppendUint64(b, uint64(v))
	}
	return b
}

func appendField[T string | []byte](b []byte, field T) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
	return append(b, field...)
}

func appendInt(b []byte, v int64) []byte {
	b = binary.BigEndian.AppendUint32(b, 8)
	return binary.BigEndian.AppendUint64(b, uint64(v))
}

// chainBytesMax holds a hash and the canonical bytes of an entry with the longest
// meter's name and 16 limits on it, all held, which are 662, so that hashing one
// allocates nothing.
const chainBytesMax = 704

// ChainHash returns SHA-256(previous ‖ canonical bytes of e).
func (e *Entry) ChainHash(previous [32]byte) [32]byte {
	var buffer [chainBytesMax]byte
	b := append(buffer[:0], previous[:]...)
	return sha256.Sum256(e.appendCanonical(b))
}

// IsCorrection reports whether the entry gives units back: it is in no running total.
func (e *Entry) IsCorrection() bool { return e.Units < 0 }

// Digest returns SHA-256(salt ‖ text): what the chain covers of a text that may have
// to be erased.
func Digest(salt, text []byte) []byte {
	h := sha256.New()
	h.Write(salt)
	h.Write(text)
	return h.Sum(nil)
}

// SaltBytes is the length of the random salt of a digest.
const SaltBytes = 16
