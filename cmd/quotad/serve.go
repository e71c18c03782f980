package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/api"
	"github.com/quotad/quotad/internal/identity"
	"github.com/quotad/quotad/internal/pg"
)

// serveCmd runs one instance. Any number may run on one database.
type serveCmd struct {
	Database   databaseFlags `embed:""`
	Pooling    poolerFlags   `embed:""`
	Logging    logFlags      `embed:""`
	Listen     string        `name:"listen" default:"127.0.0.1:8080" env:"QUOTAD_LISTEN" help:"Host and port to listen on; port 0 picks a free one."`
	Headers    headerFlags   `embed:""`
	Clients    clientFlags   `embed:""`
	TLS        tlsFlags      `embed:""`
	Remember   bool          `name:"remember-denials" default:"true" negatable:"" env:"QUOTAD_REMEMBER_DENIALS" help:"Give a denial again without the database, for a second at most; what another instance gives back may be seen that much later."`
	Degraded   degradedFlags `embed:""`
	DrainDelay time.Duration `name:"drain-delay" default:"0s" env:"QUOTAD_DRAIN_DELAY" help:"How long to go on serving, with /readyz at 503, after a signal to stop."`
	DrainMax   time.Duration `name:"drain-max" default:"30s" env:"QUOTAD_DRAIN_MAX" help:"How long requests under way may take before they are cut off."`
}

// drainLongest bounds how long a stop may take: a process that nobody sends anything any
// more has to end.
const drainLongest = time.Hour

// validate refuses what would not do what its writer meant.
func (cmd serveCmd) validate() error {
	switch {
	case cmd.Listen == "":
		return errors.New("--listen must be a host and a port, like 127.0.0.1:8080; :8080 listens on every address")
	case cmd.DrainDelay < 0 || cmd.DrainDelay > drainLongest:
		return fmt.Errorf("--drain-delay must be from 0s to %s", drainLongest)
	case cmd.DrainMax <= 0 || cmd.DrainMax > drainLongest:
		return fmt.Errorf("--drain-max must be more than 0s and at most %s", drainLongest)
	}
	return cmd.Degraded.validate()
}

// Run serves until a signal or a failure.
func (cmd serveCmd) Run(ctx context.Context, s *streams) error {
	setHeapGrowth()
	if err := cmd.validate(); err != nil {
		return err
	}
	config, err := cmd.Database.connConfig()
	if err != nil {
		return err
	}
	log := cmd.Logging.logger(s.Err)
	tlsConfig, err := cmd.TLS.config(log, time.Now)
	if err != nil {
		return err
	}
	clients, err := cmd.Clients.resolver()
	if err != nil {
		return err
	}
	server, err := startServer(ctx, serverConfig{
		Listen: cmd.Listen, Database: config, Pooler: cmd.Pooling.Pooler, Log: log, TLS: tlsConfig, Headers: cmd.Headers.headers(),
		Clients:         clients,
		RememberDenials: cmd.Remember, DrainDelay: cmd.DrainDelay, Degraded: cmd.Degraded,
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(s.Out, "listening on", server.URL())
	select {
	case <-ctx.Done():
		log.Info("stopping")
	case <-server.Failed():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmd.DrainDelay+cmd.DrainMax)
	defer cancel()
	if err := server.Close(closing); err != nil {
		return err
	}
	log.Info("stopped")
	return nil
}

// headerFlags say which rate limit header fields answers carry.
type headerFlags struct {
	RateLimit     string `name:"ratelimit" default:"draft-11" enum:"draft-11,draft-7,off" env:"QUOTAD_RATELIMIT" help:"RateLimit and RateLimit-Policy header fields: the form of the newest draft, that of draft 7 which older clients read, or off."`
	XRateLimit    string `name:"x-ratelimit" default:"delta" enum:"delta,epoch,off" env:"QUOTAD_X_RATELIMIT" help:"X-RateLimit header fields: resets as seconds from now (delta) or since 1970 (epoch), or off."`
	OpenAIHeaders bool   `name:"openai-headers" env:"QUOTAD_OPENAI_HEADERS" help:"Also send the x-ratelimit-*-requests and -tokens fields and Retry-After-Ms that OpenAI's clients read."`
}

func (f headerFlags) headers() api.Headers {
	return api.Headers{RateLimit: api.RateLimit(f.RateLimit), XRateLimit: api.XRateLimit(f.XRateLimit), OpenAI: f.OpenAIHeaders}
}

// clientFlags say which subject a client is that a request names by its addresses.
type clientFlags struct {
	TrustedProxies []string `name:"trusted-proxies" env:"QUOTAD_TRUSTED_PROXIES" help:"Addresses and CIDR prefixes of proxies whose X-Forwarded-For is believed, separated by commas; none by default."`
	IPv4Prefix     int      `name:"ipv4-prefix" default:"32" env:"QUOTAD_IPV4_PREFIX" help:"Bits of an IPv4 address that make one subject, 1 to 32."`
	IPv6Prefix     int      `name:"ipv6-prefix" default:"64" env:"QUOTAD_IPV6_PREFIX" help:"Bits of an IPv6 address that make one subject, 1 to 128: a client can change the rest at will."`
}

func (f clientFlags) resolver() (identity.Resolver, error) {
	prefixes, err := identity.ParsePrefixes(f.TrustedProxies)
	for _, prefix := range []struct {
		flag          string
		bits, bitsMax int
	}{{"--ipv4-prefix", f.IPv4Prefix, 32}, {"--ipv6-prefix", f.IPv6Prefix, 128}} {
		if prefix.bits < 1 || prefix.bits > prefix.bitsMax {
			err = errors.Join(err, fmt.Errorf("%s: must be 1 to %d bits, not %d", prefix.flag, prefix.bitsMax, prefix.bits))
		}
	}
	if err != nil {
		return identity.Resolver{}, fmt.Errorf("serve: %w", err)
	}
	return identity.New(identity.Config{TrustedProxies: prefixes, IPv4Bits: f.IPv4Prefix, IPv6Bits: f.IPv6Prefix})
}

// hostConnectMax bounds a connection to one host of the URL, if it says nothing else:
// after a failover the old primary's address may not answer at all, and then the next
// host must have its turn before an engine's session gives up.
const hostConnectMax = 2 * time.Second

func withHostBound(config *pgx.ConnConfig) *pgx.ConnConfig {
	config = config.Copy()
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = hostConnectMax
	}
	return config
}

// openServicePool connects and refuses a database or a login that must not serve.
func openServicePool(ctx context.Context, config *pgx.ConnConfig, pooler bool) (*pgxpool.Pool, error) {
	checking, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	conn, err := connectAsSession(checking, config, pooler)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := checkServiceLogin(checking, conn); err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	if err := checkSchemaVersion(checking, conn); err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	return newPool(ctx, config, readConnsMax)
}

// Connections besides the engine's own. Keys have a few to themselves: an auditor's
// long reads must not keep callers waiting at the door.
const (
	readConnsMax = 8
	keyConnsMax  = 2
)

func newPool(ctx context.Context, config *pgx.ConnConfig, connsMax int32) (*pgxpool.Pool, error) {
	poolConfig, err := pgxpool.ParseConfig("")
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	poolConfig.ConnConfig = config.Copy()
	pg.HearWarnings(poolConfig.ConnConfig)
	poolConfig.MaxConns = connsMax
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	return pool, nil
}

// The ledger is append-only for whoever owns nothing of it: an owner can drop the
// triggers, and a superuser passes them by.
const loginPowersSQL = `
select current_user,
       (select rolsuper from pg_catalog.pg_roles where rolname = current_user),
       exists (
         select from pg_catalog.pg_namespace n
         where n.nspname = 'quotad' and pg_catalog.pg_has_role(n.nspowner, 'member'))
       or exists (
         select from pg_catalog.pg_class c
         join pg_catalog.pg_namespace n on n.oid = c.relnamespace
         where n.nspname = 'quotad' and pg_catalog.pg_has_role(c.relowner, 'member'))`

func checkServiceLogin(ctx context.Context, conn *pgx.Conn) error {
	var login string
	var super, owner bool
	if err := conn.QueryRow(ctx, loginPowersSQL).Scan(&login, &super, &owner); err != nil {
		return err
	}
	switch {
	case super:
		return fmt.Errorf("login %s is a superuser and could change the ledger; %s", login, serviceLoginAdvice)
	case owner:
		return fmt.Errorf("login %s owns the ledger's tables and could change them; %s", login, serviceLoginAdvice)
	}
	return nil
}

const serviceLoginAdvice = "make one with `quotad migrate --service-login NAME` and serve as that"
