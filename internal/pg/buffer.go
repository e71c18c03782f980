package pg

// bufferBytes is enough for what a batch of a few hundred rows sends in one round trip.
const bufferBytes = 64 << 10

// A sendBuffer is the memory that a session's round trips are written into. The library
// lets go of its own after each one that is larger than 1 KB, and grows the next from
// there. To it this is a message, one of no bytes, that leaves what follows in the buffer.
type sendBuffer []byte

// Frontend implements [pgproto3.FrontendMessage].
func (sendBuffer) Frontend() {}

// Encode implements [pgproto3.FrontendMessage].
func (s sendBuffer) Encode(b []byte) ([]byte, error) { return append(s[:0], b...), nil }

// Decode implements [pgproto3.FrontendMessage]. There is nothing to decode.
func (sendBuffer) Decode([]byte) error { return nil }
