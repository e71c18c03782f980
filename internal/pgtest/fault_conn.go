package pgtest

import (
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// swallowBytes is how much is read at once of what nobody gets.
const swallowBytes = 4096

type faultState int

const (
	stateOpen  faultState = iota + 1
	stateLose             // swallow what the server owes, then the armed fault falls
	stateHang             // swallow everything
	stateReset            // every call fails
)

// faultConn is one connection. It may have one writer and one reader at a time, as
// pgx has.
type faultConn struct {
	net.Conn
	faults *Faults

	mu       sync.Mutex // guards what follows; never held over I/O
	state    faultState
	requests requests
	replies  messages
	sent     int // bytes
	read     int // bytes
	losing   *armed
}

func newFaultConn(f *Faults, conn net.Conn) *faultConn {
	return &faultConn{
		Conn: conn, faults: f, state: stateOpen,
		requests: requests{messages: messages{untyped: true}, prepared: map[string]string{}},
	}
}

// Write implements [net.Conn].
func (c *faultConn) Write(p []byte) (int, error) {
	pass, state := c.beforeWrite(p)
	if pass > 0 {
		if n, err := c.Conn.Write(p[:pass]); err != nil {
			return n, err
		}
	}
	if pass == len(p) || state == stateHang {
		return len(p), nil
	}
	c.Conn.Close()
	return pass, c.reset("write")
}

// beforeWrite returns how many bytes of p reach the server, and the state in which
// the rest finds the connection.
func (c *faultConn) beforeWrite(p []byte) (int, faultState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == stateHang || c.state == stateReset {
		return 0, c.state
	}
	first := c.sent == 0
	statements := c.requests.feed(p)
	if first && c.requests.cancelled {
		c.faults.cancels.Add(1)
	}
	before := c.sent
	c.sent += len(p)
	a := c.faults.strike(func(f Fault) bool {
		return (f.AfterSentBytes > 0 && c.sent >= f.AfterSentBytes) ||
			(f.OnStatement != "" && slices.ContainsFunc(statements, func(text string) bool {
				return strings.Contains(text, f.OnStatement)
			}))
	})
	switch {
	case a == nil:
		return len(p), c.state
	case a.Deliver:
		c.state, c.losing = stateLose, a
		return len(p), c.state
	default:
		c.fall(a)
		return max(0, min(len(p), a.AfterSentBytes-before)), c.state
	}
}

// Read implements [net.Conn].
func (c *faultConn) Read(p []byte) (int, error) {
	for {
		c.mu.Lock()
		state := c.state
		c.mu.Unlock()
		buffer := p
		switch state {
		case stateReset:
			c.Conn.Close()
			return 0, c.reset("read")
		case stateHang, stateLose:
			buffer = make([]byte, swallowBytes)
		}
		// A deadline or a close ends this with its own error, in every state.
		n, err := c.Conn.Read(buffer)
		if pass := c.afterRead(buffer[:n], state); pass > 0 {
			return pass, err
		}
		if err != nil {
			return 0, err
		}
	}
}

// afterRead returns how many of the bytes just read reach the client. A write may
// have struck while the read waited: then they are its reply.
func (c *faultConn) afterRead(p []byte, found faultState) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.replies.feed(p, func(kind byte, _ []byte) {
		if kind == 'Z' { // ready for query
			c.requests.unready--
		}
	})
	if c.state == stateLose && c.requests.unready == 0 {
		c.fall(c.losing)
	}
	if c.state != stateOpen || found != stateOpen {
		return 0
	}
	before := c.read
	c.read += len(p)
	a := c.faults.strike(func(f Fault) bool { return f.AfterReadBytes > 0 && c.read >= f.AfterReadBytes })
	if a == nil {
		return len(p)
	}
	c.fall(a)
	return max(0, min(len(p), a.AfterReadBytes-before))
}

// Close implements [net.Conn].
func (c *faultConn) Close() error {
	c.faults.forget(c)
	return c.Conn.Close()
}

func (c *faultConn) cut() {
	c.mu.Lock()
	c.state = stateReset
	c.mu.Unlock()
	c.Conn.Close()
}

// fall puts the connection in the state that a asks for. The caller holds mu.
func (c *faultConn) fall(a *armed) {
	c.state = stateReset
	if a.Hang {
		c.state = stateHang
	}
	close(a.struck)
}

func (c *faultConn) reset(op string) error {
	return &net.OpError{Op: op, Net: c.RemoteAddr().Network(), Addr: c.RemoteAddr(), Err: syscall.ECONNRESET}
}
