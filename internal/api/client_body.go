package api

import "fmt"

// forwardedLinesMax bounds the header lines of one request; proxies make one or two.
const forwardedLinesMax = 32

// decodeClient reads where a request came from, {peer, forwarded_for?}, and returns the
// subject that this makes.
func decodeClient(b *bodyReader) (subject string) {
	if !b.object("client") {
		return ""
	}
	var peer string
	var lines []string
	given, faults := false, len(b.faults)
	b.prefix = "client"
	for b.member() {
		switch string(b.name) {
		case "peer":
			given = true
			peer = b.string("peer")
		case "forwarded_for":
			lines = decodeLines(b)
		default:
			b.unknown()
		}
	}
	b.prefix = ""
	switch {
	case b.broken:
		return ""
	case !given:
		b.fault("client.peer", "is required")
	}
	if len(b.faults) > faults {
		return ""
	}
	subject, err := b.clients.Subject(peer, lines)
	if err != nil {
		b.fault("client.peer", "must be an IP address, with or without a port")
	}
	return subject
}

// decodeLines reads the values of a header.
func decodeLines(b *bodyReader) (lines []string) {
	if !b.array("forwarded_for") {
		return nil
	}
	for i := 0; b.more(); i++ {
		lines = append(lines, b.string(fmt.Sprintf("forwarded_for[%d]", i)))
	}
	if len(lines) > forwardedLinesMax {
		b.fault("client.forwarded_for", fmt.Sprintf("must hold at most %d values", forwardedLinesMax))
	}
	return lines
}
