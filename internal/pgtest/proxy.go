package pgtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// A Proxy stands between a process and its server and breaks connections: what [Faults]
// does for those of this process. It is safe for concurrent use.
type Proxy struct {
	// URL is the database's, by way of the proxy.
	URL string

	listener net.Listener
	running  errgroup.Group

	slow atomic.Int64 // how long each answer takes longer, in ns

	mu     sync.Mutex
	server route
	conns  map[net.Conn]struct{}
	closed bool
	broken Break
	healed chan struct{} // closed when the break has ended
	seen   int           // times that its statement was sent
	struck [breaksEnd]int
}

// A Break says where a [Proxy] breaks connections, and how: by turns in place of
// delivering the reply, when all that was asked for is done; in place of passing the
// statement on, and whatever is sent with it; and in the middle of that.
type Break struct {
	On    string // the beginning of the statement
	Every int    // strikes each n-th time that it is sent; 0 never
	// Hang leaves the connection open on both sides, silent, until [Proxy.Heal]; else it
	// is cut.
	Hang bool
}

// NewProxy starts a proxy to the server of databaseURL. It ends with the test.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	var err error
	var listen net.ListenConfig
	p := &Proxy{conns: make(map[net.Conn]struct{})}
	p.Redirect(t, databaseURL)
	if p.listener, err = listen.Listen(t.Context(), "tcp", "127.0.0.1:0"); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if p.URL, err = urlAt(databaseURL, p.listener.Addr().String()); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	ctx := t.Context()
	p.running.Go(func() error { return p.accept(ctx) })
	t.Cleanup(p.close)
	return p
}

// urlAt is a database's URL at another address, in the clear: a proxy reads along.
func urlAt(databaseURL, address string) (string, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return "", err
	}
	query := u.Query()
	query.Del("host")
	query.Del("port")
	query.Set("sslmode", "disable")
	u.Host, u.RawQuery = address, query.Encode()
	return u.String(), nil
}

// Break breaks connections until [Proxy.Heal].
func (p *Proxy) Break(b Break) {
	p.Heal()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken, p.healed, p.seen = b, make(chan struct{}), 0
}

// Heal ends the break. Connections that hang are cut.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.healed != nil {
		close(p.healed)
	}
	p.broken, p.healed = Break{}, nil
}

// Slow makes each piece of what the server answers take longer by d.
func (p *Proxy) Slow(d time.Duration) { p.slow.Store(int64(d)) }

// Struck returns how many connections were broken so far: before a reply, before a
// statement, and in the middle of one.
func (p *Proxy) Struck() (replies, sends, halves int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.struck[breakReply], p.struck[breakSend], p.struck[breakHalf]
}

// A breaking is what happens to one statement that is sent.
type breaking int

const (
	breakNone breaking = iota
	breakReply
	breakSend
	breakHalf
	breaksEnd
)

// breakAt counts statements that are being sent and says what happens to them, and what ends
// it; nil if the connection is cut.
func (p *Proxy) breakAt(statements []string) (breaking, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	isIt := func(text string) bool { return strings.HasPrefix(strings.TrimSpace(text), p.broken.On) }
	if p.broken.Every == 0 || !slices.ContainsFunc(statements, isIt) {
		return breakNone, nil
	}
	if p.seen++; p.seen%p.broken.Every != 0 {
		return breakNone, nil
	}
	how := breakReply + breaking(p.seen/p.broken.Every-1)%(breaksEnd-breakReply)
	p.struck[how]++
	if p.broken.Hang {
		return how, p.healed
	}
	return how, nil
}

func (p *Proxy) accept(ctx context.Context) error {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return nil //nolint:nilerr // it was closed
		}
		p.running.Go(func() error {
			p.carry(ctx, client)
			return nil
		})
	}
}

// carry carries one connection until either side or a loss ends it.
func (p *Proxy) carry(ctx context.Context, client net.Conn) {
	defer client.Close()
	server, err := p.dial(ctx)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.register(client, server) {
		return
	}
	defer p.forget(client, server)
	c := &carried{client: client, server: server}
	var directions errgroup.Group
	directions.Go(func() error {
		defer server.Close()
		p.forward(c)
		return nil
	})
	directions.Go(func() error {
		defer client.Close()
		p.deliver(c)
		return nil
	})
	_ = directions.Wait()
}

// A carried is one connection by way of the proxy.
type carried struct {
	client, server net.Conn
	losing         atomic.Bool // the reply that the server owes is lost, to its end
	hung           atomic.Pointer[<-chan struct{}]
}

// hang keeps the connection, silent, until what it waits for; not at all if that is nil.
func (c *carried) hang(healed <-chan struct{}) {
	if healed != nil {
		c.losing.Store(true)
		c.hung.Store(&healed)
		<-healed
	}
}

// forward carries what the client asks for.
func (p *Proxy) forward(c *carried) {
	asked := requests{messages: messages{untyped: true}, prepared: map[string]string{}}
	buffer := make([]byte, swallowBytes)
	var hanging <-chan struct{} // once all that is asked for has passed
	for {
		n, err := c.client.Read(buffer)
		how, healed := p.breakAt(asked.feed(buffer[:n]))
		switch how {
		case breakSend:
			c.hang(healed)
			return
		case breakHalf:
			_, _ = c.server.Write(buffer[:n/2]) // broken either way
			c.hang(healed)
			return
		case breakReply:
			c.losing.Store(true)
			if hanging = healed; healed != nil {
				c.hung.Store(&healed)
			}
		case breakNone, breaksEnd:
		}
		if _, failed := c.server.Write(buffer[:n]); failed != nil || err != nil {
			if hung := c.hung.Load(); hung != nil {
				<-*hung // the client has given up, and the server does not learn of it
			}
			return
		}
		if hanging != nil && (buffer[0] == 'Q' || bytes.HasSuffix(buffer[:n], []byte(syncMessage))) {
			<-hanging
			return
		}
	}
}

// syncMessage ends what a client asks for in the extended protocol.
const syncMessage = "S\x00\x00\x00\x04"

// deliver carries what the server answers, message by message.
func (p *Proxy) deliver(c *carried) {
	var answered messages
	buffer := make([]byte, swallowBytes)
	for {
		n, err := c.server.Read(buffer)
		if slow := time.Duration(p.slow.Load()); slow > 0 {
			<-time.After(slow)
		}
		var pass []byte
		ended := false
		answered.feed(buffer[:n], func(kind byte, body []byte) {
			switch {
			case c.losing.Load():
				ended = ended || kind == 'Z' // ready for the next: the reply ends here
			default:
				pass = append(pass, kind)
				pass = binary.BigEndian.AppendUint32(pass, uint32(lengthBytes+len(body)))
				pass = append(pass, body...)
			}
		})
		if hung := c.hung.Load(); hung != nil && (ended || err != nil) {
			<-*hung
			return
		}
		if _, failed := c.client.Write(pass); failed != nil || ended || err != nil {
			return
		}
	}
}

// register notes the sides of a connection; false when the proxy has ended.
func (p *Proxy) register(sides ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, side := range sides {
		p.conns[side] = struct{}{}
	}
	return !p.closed
}

func (p *Proxy) forget(sides ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, side := range sides {
		delete(p.conns, side)
	}
}

func (p *Proxy) close() {
	p.Heal()
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.CutAll()
	_ = p.running.Wait()
}
