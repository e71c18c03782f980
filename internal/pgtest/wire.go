package pgtest

import (
	"bytes"
	"encoding/binary"
)

const (
	// cancelRequestCode is what the first message of a connection holds, after its
	// length, when it asks to cancel another connection's statement.
	cancelRequestCode = 80877102

	lengthBytes = 4 // it counts itself
	kindBytes   = 1
)

// messages cuts one direction of a connection into protocol messages.
type messages struct {
	untyped bool   // the next message is the first from a client, which has no kind
	rest    []byte // the beginning of a message that is not complete
}

// feed takes bytes as they pass and calls on for each message they complete; the
// body is only valid in the call. The kind of an untyped message is 0.
func (m *messages) feed(p []byte, on func(kind byte, body []byte)) {
	m.rest = append(m.rest, p...)
	for {
		header := kindBytes + lengthBytes
		if m.untyped {
			header = lengthBytes
		}
		if len(m.rest) < header {
			return
		}
		size := header - lengthBytes + int(binary.BigEndian.Uint32(m.rest[header-lengthBytes:]))
		if len(m.rest) < size {
			return
		}
		var kind byte
		if !m.untyped {
			kind = m.rest[0]
		}
		on(kind, m.rest[header:size])
		m.untyped = false
		m.rest = bytes.Clone(m.rest[size:])
	}
}

// cutText returns the zero-terminated text that body begins with, and what follows.
func cutText(body []byte) (string, []byte) {
	text, rest, _ := bytes.Cut(body, []byte{0})
	return string(text), rest
}

// requests follows what a client asks for.
type requests struct {
	messages
	prepared  map[string]string // statement name to its text
	unready   int               // replies the server owes, each ended by ReadyForQuery
	cancelled bool              // this connection carries a cancel request
}

// feed returns the texts of the statements that p makes the server run.
func (r *requests) feed(p []byte) (statements []string) {
	r.messages.feed(p, func(kind byte, body []byte) {
		switch kind {
		case 0: // startup
			r.cancelled = len(body) >= 4 && binary.BigEndian.Uint32(body) == cancelRequestCode
			r.unready++
		case 'Q': // query
			text, _ := cutText(body)
			statements = append(statements, text)
			r.unready++
		case 'P': // parse
			name, rest := cutText(body)
			r.prepared[name], _ = cutText(rest)
		case 'B': // bind
			_, rest := cutText(body)
			name, _ := cutText(rest)
			statements = append(statements, r.prepared[name])
		case 'S': // sync
			r.unready++
		}
	})
	return statements
}
