package pgtest

import (
	"context"
	"encoding/binary"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"
)

// A Proxy stands between a process and its server and loses commits: what [Faults] does
// for connections of this process. It is safe for concurrent use.
type Proxy struct {
	// URL is the database's, by way of the proxy.
	URL string

	network, address string // of the server
	listener         net.Listener
	running          errgroup.Group

	slow atomic.Int64 // how long each answer takes longer, in ns

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	closed  bool
	every   int // lose each n-th commit; 0 for none
	commits int // since LoseCommits
	replies int // lost
	sends   int // lost
}

// NewProxy starts a proxy to the server of databaseURL. It ends with the test.
func NewProxy(t testing.TB, databaseURL string) *Proxy {
	t.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	var listen net.ListenConfig
	p := &Proxy{conns: make(map[net.Conn]struct{})}
	p.network, p.address = pgconn.NetworkAddress(config.Host, config.Port)
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

// LoseCommits makes the proxy cut a connection at each n-th commit that is sent, by
// turns in place of delivering the server's reply, when the commit is done, and in
// place of passing it on, when it is not. 0 ends it.
func (p *Proxy) LoseCommits(every int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.every, p.commits = every, 0
}

// Slow makes each piece of what the server answers take longer by d.
func (p *Proxy) Slow(d time.Duration) { p.slow.Store(int64(d)) }

// Lost returns how many replies to a commit that was done, and how many commits before
// they arrived, were lost.
func (p *Proxy) Lost() (replies, sends int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.replies, p.sends
}

// A loss is what happens to a commit.
type loss int

const (
	lossNone loss = iota + 1
	lossReply
	lossSend
)

// lose counts a commit that is being sent and says what happens to it.
func (p *Proxy) lose() loss {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.commits++
	switch {
	case p.every == 0 || p.commits%p.every != 0:
		return lossNone
	case p.commits/p.every%2 == 1:
		return lossReply
	default:
		p.sends++
		return lossSend
	}
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
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, p.network, p.address)
	if err != nil {
		return
	}
	defer server.Close()
	if !p.register(client, server) {
		return
	}
	defer p.forget(client, server)
	losing := make(chan struct{}, 1) // one: the next COMMIT that comes back is lost
	var directions errgroup.Group
	directions.Go(func() error {
		defer server.Close()
		p.forward(client, server, losing)
		return nil
	})
	directions.Go(func() error {
		defer client.Close()
		p.deliver(server, client, losing)
		return nil
	})
	_ = directions.Wait()
}

// forward carries what the client asks for.
func (p *Proxy) forward(client, server net.Conn, losing chan<- struct{}) {
	asked := requests{messages: messages{untyped: true}, prepared: map[string]string{}}
	buffer := make([]byte, swallowBytes)
	for {
		n, err := client.Read(buffer)
		if slices.Contains(asked.feed(buffer[:n]), "commit") {
			switch p.lose() {
			case lossSend:
				return
			case lossReply:
				select {
				case losing <- struct{}{}:
				default: // the commit before ended otherwise: this one is lost in its place
				}
			}
		}
		if _, failed := server.Write(buffer[:n]); failed != nil || err != nil {
			return
		}
	}
}

// deliver carries what the server answers, message by message.
func (p *Proxy) deliver(server, client net.Conn, losing <-chan struct{}) {
	var answered messages
	buffer := make([]byte, swallowBytes)
	for {
		n, err := server.Read(buffer)
		if slow := time.Duration(p.slow.Load()); slow > 0 {
			<-time.After(slow)
		}
		var pass []byte
		lost := false
		answered.feed(buffer[:n], func(kind byte, body []byte) {
			if text, _ := cutText(body); kind == 'C' && text == "COMMIT" {
				select {
				case <-losing:
					lost = true
				default:
				}
			}
			if !lost {
				pass = append(pass, kind)
				pass = binary.BigEndian.AppendUint32(pass, uint32(lengthBytes+len(body)))
				pass = append(pass, body...)
			}
		})
		if lost {
			p.mu.Lock()
			p.replies++
			p.mu.Unlock()
		}
		if _, failed := client.Write(pass); failed != nil || lost || err != nil {
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
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for side := range p.conns {
		side.Close()
	}
	p.mu.Unlock()
	_ = p.running.Wait()
}
