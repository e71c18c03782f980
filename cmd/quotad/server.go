package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/api"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/identity"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/quota"
	"github.com/quotad/quotad/internal/spool"
)

// Bounds of the HTTP server. A request that trickles in, or a reader that does not
// read, must not hold a connection for ever; an answer may take as long as the engine
// needs to settle a lost commit.
const (
	readHeaderMax  = 5 * time.Second
	readMax        = 15 * time.Second
	writeMax       = 45 * time.Second
	idleMax        = 2 * time.Minute
	headerBytesMax = 16 << 10
	// Connections stay open after new ones are refused, for the requests that are on
	// their way on them: until there was none for a while, or for so long at most.
	quietMin  = 500 * time.Millisecond
	lingerMax = 5 * time.Second
)

// serverConfig is what a server is started with.
type serverConfig struct {
	Listen          string          // host:port; port 0 picks a free one
	Database        *pgx.ConnConfig // the service login
	Pooler          bool            // Database leads to a pooler in transaction mode
	Log             *slog.Logger
	Headers         api.Headers
	TLS             *tls.Config       // nil for plain HTTP
	Clients         identity.Resolver // says which subject a client is
	RememberDenials bool              // for up to a second, without the database
	Degraded        degradedFlags
	DrainDelay      time.Duration // how long /readyz is 503 before connections are refused
}

// A server is one running instance: pool, engine, HTTP. Close must be called.
type server struct {
	config  serverConfig
	url     string
	http    *http.Server
	handler *api.Handler
	pool    *pgxpool.Pool // for reads and changes of the configuration
	keyPool *pgxpool.Pool
	catalog *catalog.Store
	engine  *quota.Engine
	spool   *spool.Spool // nil for none

	listener net.Listener
	served   chan struct{} // closed when no connection is accepted any more
	refusing atomic.Bool   // the listener is closed, and connections are let go
	open     atomic.Int64  // connections
	stirred  chan struct{} // one: a request came, or the last connection closed

	running    *errgroup.Group
	failed     <-chan struct{} // closed when a part has ended with an error
	stopEngine context.CancelFunc
}

// startServer checks the database and starts an instance on it. When it returns, the
// instance listens.
func startServer(ctx context.Context, config serverConfig) (*server, error) {
	config.Database = withHostBound(pg.WithoutSettings(config.Database))
	pool, err := openServicePool(ctx, config.Database, config.Pooler)
	if err != nil {
		return nil, err
	}
	keyPool, err := newPool(ctx, config.Database, keyConnsMax)
	if err != nil {
		pool.Close()
		return nil, err
	}
	warnOfUnnamedStatements(config.Log, config.Database)
	s := &server{config: config, pool: pool, keyPool: keyPool, served: make(chan struct{}), stirred: make(chan struct{}, 1)}
	if err := s.start(ctx); err != nil {
		return nil, errors.Join(err, s.release())
	}
	return s, nil
}

// start wires the parts, bottom up.
func (s *server) start(ctx context.Context) error {
	registry := prometheus.NewRegistry()
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		if err := registry.Register(c); err != nil {
			return fmt.Errorf("serve: %w", err)
		}
	}
	s.catalog = catalog.NewStore(s.pool)
	var err error
	if s.spool, err = s.config.Degraded.open(); err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	s.engine, err = quota.NewEngine(quota.Config{
		Database: s.config.Database, Pooler: s.config.Pooler, Catalog: s.catalog, Log: s.config.Log, Metrics: registry,
		RememberDenials:  s.config.RememberDenials,
		DecisionDeadline: s.config.Degraded.Deadline, Spool: s.spool,
	})
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	keys := catalog.NewAuthenticator(catalog.NewStore(s.keyPool), time.Now)
	keys.GiveUp(s.engine, s.config.Degraded.KeyAge)
	s.handler, err = api.New(api.Config{
		Engine: s.engine, Ledger: ledger.NewStore(s.pool), Denials: quota.NewDenialStore(s.pool),
		Reader: quota.NewReader(s.pool, s.catalog), Catalog: s.catalog,
		Keys: keys, Log: s.config.Log, Metrics: registry, Headers: s.config.Headers, Clients: s.config.Clients,
	})
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", s.config.Listen)
	if err != nil {
		return fmt.Errorf("serve: %w", err)
	}
	s.listener, s.url = listener, "http://"+listener.Addr().String()
	if s.config.TLS != nil {
		s.url = "https://" + listener.Addr().String()
	}
	s.run(ctx)
	return nil
}

// run starts the goroutines. They outlive ctx: [server.Close] ends them in order.
func (s *server) run(ctx context.Context) {
	base, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stopEngine = stop
	s.http = s.newHTTP()
	group, failed := errgroup.WithContext(base)
	s.running, s.failed = group, failed.Done()
	group.Go(func() error { return s.engine.Run(base) })
	group.Go(func() error {
		defer close(s.served)
		serve := s.http.Serve
		if s.config.TLS != nil {
			serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
		}
		if err := serve(s.listener); !errors.Is(err, http.ErrServerClosed) && !s.refusing.Load() {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
}

// newHTTP makes the HTTP server, with every bound on what a connection may take.
func (s *server) newHTTP() *http.Server {
	return &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ConnState:         s.count,
		ReadHeaderTimeout: readHeaderMax,
		ReadTimeout:       readMax,
		WriteTimeout:      writeMax,
		IdleTimeout:       idleMax,
		MaxHeaderBytes:    headerBytesMax,
		TLSConfig:         s.config.TLS,
		ErrorLog:          slog.NewLogLogger(s.config.Log.Handler(), slog.LevelDebug),
	}
}

// serve answers a request. A client that was told to close its connection sends
// nothing more on it, so none of its requests is lost when that is done.
func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	if s.refusing.Load() {
		w.Header().Set("Connection", "close")
		s.stir()
	}
	s.handler.ServeHTTP(w, r)
}

// count follows how many connections are open.
func (s *server) count(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		s.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		if s.open.Add(-1) == 0 {
			s.stir()
		}
	}
}

func (s *server) stir() {
	select {
	case s.stirred <- struct{}{}:
	default:
	}
}

// refuse refuses new connections, and lets go of the open ones with their next answer.
// Those that stay idle are left to be closed.
func (s *server) refuse(ctx context.Context) {
	s.refusing.Store(true)
	s.listener.Close() //nolint:errcheck // it was open; there is nothing to lose
	<-s.served
	ctx, cancel := context.WithTimeout(ctx, lingerMax)
	defer cancel()
	quiet := time.NewTimer(quietMin)
	defer quiet.Stop()
	for s.open.Load() > 0 {
		select {
		case <-s.stirred:
			quiet.Reset(quietMin)
		case <-quiet.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// URL returns where the server listens.
func (s *server) URL() string { return s.url }

// Failed is closed when a part has failed; Close then returns why.
func (s *server) Failed() <-chan struct{} { return s.failed }

// Close stops the server: it says so on /readyz, refuses connections, answers what is
// under way, stops the engine, and closes the pool. When ctx ends first, connections
// are cut; what the engine has queued it still answers within its own bound.
func (s *server) Close(ctx context.Context) error {
	s.handler.Drain()
	if s.config.DrainDelay > 0 {
		timer := time.NewTimer(s.config.DrainDelay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		case <-s.failed:
		}
	}
	s.refuse(ctx)
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = errors.Join(fmt.Errorf("serve: requests were cut off: %w", err), s.http.Close())
	}
	s.stopEngine()
	return errors.Join(err, s.running.Wait(), s.release())
}

// release gives back what the parts have shared.
func (s *server) release() error {
	s.pool.Close()
	s.keyPool.Close()
	if s.spool == nil {
		return nil
	}
	return s.spool.Close()
}
