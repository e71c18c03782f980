package pgtest

import (
	"context"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// Fault is what goes wrong once, on the first connection that meets its condition.
// Exactly one of OnStatement, AfterSentBytes and AfterReadBytes is set.
type Fault struct {
	// OnStatement strikes at the write that makes the server run a statement with this
	// text in it, prepared or not: "commit", "insert into quotad.entry". Preparing it
	// is not running it.
	OnStatement string
	// AfterSentBytes and AfterReadBytes strike once a connection has sent or received
	// that many bytes; the bytes before the mark still pass.
	AfterSentBytes int
	AfterReadBytes int

	// Deliver lets the write that strikes reach the server and waits until the server
	// has answered all of it: it has been done, and only the reply is lost. It goes
	// with OnStatement.
	Deliver bool
	// Hang leaves the connection open and silent until the client closes it or its
	// deadline passes. Else the client sees a reset.
	Hang bool
}

// Faults makes connections that fail as told. The zero value works and fails nothing.
// It is safe for concurrent use.
type Faults struct {
	mu      sync.Mutex
	armed   []*armed
	refused error
	conns   map[*faultConn]struct{}

	dials   atomic.Int64
	cancels atomic.Int64
}

type armed struct {
	Fault
	struck chan struct{}
}

// Attach makes config dial through f, in the clear: encrypted bytes show no
// statements. Give it &config.ConnConfig.Config of a pool.
func (f *Faults) Attach(config *pgconn.Config) {
	config.DialFunc = f.Dial
	config.TLSConfig = nil
	type server struct {
		host string
		port uint16
	}
	seen := map[server]bool{{config.Host, config.Port}: true}
	var others []*pgconn.FallbackConfig
	for _, fallback := range config.Fallbacks {
		at := server{fallback.Host, fallback.Port}
		if seen[at] {
			continue // the same server without TLS, or with
		}
		seen[at] = true
		others = append(others, &pgconn.FallbackConfig{Host: fallback.Host, Port: fallback.Port})
	}
	config.Fallbacks = others
}

// Arm adds a fault and returns a channel that is closed when it has struck. Faults
// are tried in the order they were armed.
func (f *Faults) Arm(fault Fault) <-chan struct{} {
	conditions := 0
	for _, set := range []bool{fault.OnStatement != "", fault.AfterSentBytes > 0, fault.AfterReadBytes > 0} {
		if set {
			conditions++
		}
	}
	if conditions != 1 || (fault.Deliver && fault.OnStatement == "") {
		panic("pgtest: a fault has one condition, and Deliver goes with OnStatement")
	}
	a := &armed{Fault: fault, struck: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = append(f.armed, a)
	return a.struck
}

// Disarm forgets the faults that have not struck.
func (f *Faults) Disarm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.armed = nil
}

// Refuse makes every new connection fail with err, until it is called with nil.
func (f *Faults) Refuse(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = err
}

// CutAll resets every open connection now.
func (f *Faults) CutAll() {
	f.mu.Lock()
	conns := slices.Collect(maps.Keys(f.conns))
	f.mu.Unlock()
	for _, c := range conns {
		c.cut()
	}
}

// Dials returns how many connections were asked for, refused ones and those that only
// carry a cancel request included.
func (f *Faults) Dials() int { return int(f.dials.Load()) }

// Cancels returns how many cancel requests were sent.
func (f *Faults) Cancels() int { return int(f.cancels.Load()) }

// Dial is a [pgconn.DialFunc].
func (f *Faults) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.dials.Add(1)
	f.mu.Lock()
	refused := f.refused
	f.mu.Unlock()
	if refused != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: refused}
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := newFaultConn(f, conn)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.conns == nil {
		f.conns = map[*faultConn]struct{}{}
	}
	f.conns[c] = struct{}{}
	return c, nil
}

// forget drops a closed connection.
func (f *Faults) forget(c *faultConn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, c)
}

// strike returns the first armed fault whose condition holds, disarmed; nil if none.
func (f *Faults) strike(holds func(Fault) bool) *armed {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.armed, func(a *armed) bool { return holds(a.Fault) })
	if i < 0 {
		return nil
	}
	a := f.armed[i]
	f.armed = slices.Delete(f.armed, i, i+1)
	return a
}
