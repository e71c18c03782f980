package pgtest

import (
	"context"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// A route is where a server is.
type route struct{ network, address string }

// Redirect makes new connections lead to the server of databaseURL, as an address that
// follows the primary does after a failover. Open ones stay where they are.
func (p *Proxy) Redirect(t testing.TB, databaseURL string) {
	t.Helper()
	config, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server.network, p.server.address = pgconn.NetworkAddress(config.Host, config.Port)
}

// CutAll closes every open connection now.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for side := range p.conns {
		side.Close()
	}
}

func (p *Proxy) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	to := p.server
	p.mu.Unlock()
	var dialer net.Dialer
	return dialer.DialContext(ctx, to.network, to.address)
}
