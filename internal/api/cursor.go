package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
)

// A cursor is where a list goes on, opaque to its holder: a version, a digest of the
// list it belongs to (operation, tenant, filters, order), and the place. It is no
// secret and no permission: the next page is authorized as the first one was.
const (
	cursorVersion     = 1
	cursorDigestBytes = 12
	cursorPlaceMax    = 256 // bytes: a place is a sequence number or a name
	cursorRule        = "must be the next_cursor of a page of this same list"
)

// listDigest identifies a list by the values that make it; length prefixes keep
// ("ab", "c") apart from ("a", "bc").
func listDigest(parts ...string) [cursorDigestBytes]byte {
	hash := sha256.New()
	var length [8]byte
	for _, part := range parts {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		hash.Write(length[:])
		hash.Write([]byte(part))
	}
	var sum [sha256.Size]byte
	return [cursorDigestBytes]byte(hash.Sum(sum[:0]))
}

// encodeCursor makes the cursor of a place in a list.
func encodeCursor(list [cursorDigestBytes]byte, place []byte) string {
	b := make([]byte, 0, 1+len(list)+len(place))
	b = append(b, cursorVersion)
	b = append(b, list[:]...)
	b = append(b, place...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// decodeCursor returns the place that a cursor of this list holds.
func decodeCursor(list [cursorDigestBytes]byte, cursor string) (place []byte, ok bool) {
	const head = 1 + cursorDigestBytes
	if len(cursor) > base64.RawURLEncoding.EncodedLen(head+cursorPlaceMax) {
		return nil, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(b) <= head || b[0] != cursorVersion || [cursorDigestBytes]byte(b[1:head]) != list {
		return nil, false
	}
	return b[head:], true
}

// encodeSeqCursor makes the cursor of a list behind its item seq, an entry or a subject.
func encodeSeqCursor(list [cursorDigestBytes]byte, seq int64) string {
	return encodeCursor(list, binary.BigEndian.AppendUint64(nil, uint64(seq)))
}

// decodeSeqCursor reverses encodeSeqCursor.
func decodeSeqCursor(list [cursorDigestBytes]byte, cursor string) (seq int64, ok bool) {
	place, ok := decodeCursor(list, cursor)
	if !ok || len(place) != 8 {
		return 0, false
	}
	seq = int64(binary.BigEndian.Uint64(place))
	return seq, seq > 0
}
