package api

import (
	"encoding/base64"
	"net/url"
	"testing"
)

// decodeSeqCursor reverses encodeSeqCursor as a list's handler does.
func decodeSeqCursor(list [cursorDigestBytes]byte, cursor string) (seq int64, ok bool) {
	f := filter{values: url.Values{"cursor": {cursor}}}
	seq = f.seqCursor(list)
	return seq, len(f.faults) == 0
}

func TestCursorComesBack(t *testing.T) {
	list := listDigest("entries", "acme", "")
	for _, seq := range []int64{1, 42, 999_999_999_999_999} {
		got, ok := decodeSeqCursor(list, encodeSeqCursor(list, seq))
		if !ok || got != seq {
			t.Errorf("decodeSeqCursor(encodeSeqCursor(%d)) = %d, %v", seq, got, ok)
		}
	}
}

// A cursor of another tenant's list, or of other filters, would skip or repeat entries
// without anyone noticing.
func TestCursorFitsItsOwnListOnly(t *testing.T) {
	mine := listDigest("entries", "acme", "api.calls")
	cursor := encodeSeqCursor(mine, 7)
	for _, other := range [][cursorDigestBytes]byte{
		listDigest("entries", "acme", ""),
		listDigest("entries", "globex", "api.calls"),
		listDigest("entries", "acmeapi.calls", ""),
		listDigest("entries", "acme", "api", ".calls"),
		listDigest("tenants", "acme", "api.calls"),
	} {
		if _, ok := decodeSeqCursor(other, cursor); ok {
			t.Errorf("a cursor of list %x fits list %x", mine, other)
		}
	}
	for _, broken := range []string{
		"", "!", "AA", cursor[1:], cursor + "A", cursor + "=",
		base64.RawURLEncoding.EncodeToString(append([]byte{2}, mine[:]...)),
		encodeCursor(mine, []byte("name")),
		encodeSeqCursor(mine, 0), encodeSeqCursor(mine, -1), encodeSeqCursor(mine, 1_000_000_000_000_000),
	} {
		if seq, ok := decodeSeqCursor(mine, broken); ok {
			t.Errorf("decodeSeqCursor(%q) = %d, want a refusal", broken, seq)
		}
	}
}
