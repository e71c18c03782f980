package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
)

// A cursor is where a list goes on, opaque to its holder: a version, a digest of the
// list it belongs to (operation, tenant, filters, order), and the place. It is no
// secret and no permission: the next page is authorized as the first one was. Nor is it
// signed, so its place is input like any other.
const (
	cursorVersion     = 1
	cursorDigestBytes = 12
	cursorPlaceMax    = 256 // bytes: the longest place is a tenant's name
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

// decodeCursor returns the place that a cursor of this list holds. The decoder passes over line
// breaks, which no cursor has.
func decodeCursor(list [cursorDigestBytes]byte, cursor string) (place []byte, ok bool) {
	const head = 1 + cursorDigestBytes
	if len(cursor) > base64.RawURLEncoding.EncodedLen(head+cursorPlaceMax) {
		return nil, false
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || strings.ContainsAny(cursor, "\r\n") || len(b) <= head || b[0] != cursorVersion || [cursorDigestBytes]byte(b[1:head]) != list {
		return nil, false
	}
	return b[head:], true
}

// encodeSeqCursor makes the cursor of a list behind its item seq, an entry or a subject.
func encodeSeqCursor(list [cursorDigestBytes]byte, seq int64) string {
	return encodeCursor(list, appendPlaceNumber(nil, seq))
}

// appendPlaceNumber appends what placeReader.number reads.
func appendPlaceNumber(place []byte, n int64) []byte {
	return binary.BigEndian.AppendUint64(place, uint64(n))
}

// appendPlaceInstant appends what placeReader.instant reads.
func appendPlaceInstant(place []byte, at time.Time) []byte {
	return binary.BigEndian.AppendUint64(place, uint64(at.UnixMicro()))
}

// appendPlaceVersion appends what placeReader.version reads.
func appendPlaceVersion(place []byte, version int32) []byte {
	return binary.BigEndian.AppendUint32(place, uint32(version))
}

// A placeReader reads a cursor's place part by part. A part that no list could have made
// damages it, as whoever holds a cursor may have changed it: what it gives otherwise is
// as good as a checked parameter.
type placeReader struct {
	rest    []byte
	damaged bool
}

// next returns the next bytes of the place; zeros if it is too short.
func (p *placeReader) next(bytes int) []byte {
	if len(p.rest) < bytes {
		p.damaged = true
		p.rest = nil
		return make([]byte, bytes)
	}
	part := p.rest[:bytes]
	p.rest = p.rest[bytes:]
	return part
}

// number reads a sequence number or an id that the database gave.
func (p *placeReader) number() int64 {
	n := int64(binary.BigEndian.Uint64(p.next(8)))
	if n < 1 || n > catalog.UnitsMax {
		p.damaged = true
	}
	return n
}

// version reads a plan's version.
func (p *placeReader) version() int32 {
	n := int32(binary.BigEndian.Uint32(p.next(4)))
	if n < 1 {
		p.damaged = true
	}
	return n
}

// instant reads an instant, within what a parameter may be.
func (p *placeReader) instant() time.Time {
	at := time.UnixMicro(int64(binary.BigEndian.Uint64(p.next(8)))).UTC()
	if !instantAllowed(at) {
		p.damaged = true
	}
	return at
}

// uuid reads an id of a request.
func (p *placeReader) uuid() uuid.UUID {
	return uuid.UUID(p.next(len(uuid.UUID{})))
}

// text reads the rest, which must satisfy rule ("" is satisfied).
func (p *placeReader) text(rule func(string) string) string {
	text := string(p.rest)
	p.rest = nil
	if rule(text) != "" {
		p.damaged = true
	}
	return text
}

// word reads up to the next space what must satisfy rule.
func (p *placeReader) word(rule func(string) string) string {
	word, rest, found := strings.Cut(string(p.rest), " ")
	p.rest = []byte(rest)
	if !found || rule(word) != "" {
		p.damaged = true
	}
	return word
}
