package pg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrCommitUnknown says that a commit was sent and nobody knows whether it happened.
var ErrCommitUnknown = errors.New("commit was sent, its outcome is unknown")

var errNoCancel = errors.New("a decision session never sends a cancel")

// A Session is one connection for transactions whose commit must never be in doubt
// longer than needed. It differs from a pooled connection in this: a bound that ends
// closes the socket and sends no cancel request, because a cancel ends the wait for
// synchronous replication and so exposes rows that no standby has.
//
// A Session is not safe for concurrent use. After any error but a refusal by the
// server it is closed; open a new one.
type Session struct {
	// Heard, if it is set, is called whenever the server has answered a round trip.
	Heard func()

	conn   *pgx.Conn
	buffer sendBuffer
	pooled bool // through a pooler in transaction mode
	closed bool
}

// Connect opens a session with config, which it copies. Its statements are prepared,
// but for a config that asks for QueryExecModeCacheDescribe, as a pooler that does not
// follow prepared statements needs it.
func Connect(ctx context.Context, config *pgx.ConnConfig) (*Session, error) {
	return connect(ctx, WithSettings(config), &Session{})
}

// ConnectPooled opens a session through a pooler in transaction mode. Nothing is asked
// of the session when it starts: the login has its settings (see [LoginSettings]), and
// each transaction sets what is for decisions alone.
func ConnectPooled(ctx context.Context, config *pgx.ConnConfig) (*Session, error) {
	return connect(ctx, WithoutSettings(config), &Session{pooled: true})
}

// connect opens s with config, which is its own.
func connect(ctx context.Context, config *pgx.ConnConfig, s *Session) (*Session, error) {
	var connected atomic.Bool
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		// Once connected, pgconn dials again only to send a cancel request.
		if connected.Load() {
			return nil, errNoCancel
		}
		return dial(ctx, network, addr)
	}
	HearWarnings(config)
	if config.DefaultQueryExecMode != pgx.QueryExecModeCacheDescribe {
		config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect to the database: %w", err)
	}
	connected.Store(true)
	sendArrays(conn.TypeMap())
	s.conn, s.buffer = conn, make(sendBuffer, bufferBytes)
	return s, nil
}

const beginSQL = "begin isolation level read committed"

// Begin queues the start of a transaction; it must come first in a batch.
func Begin(b *pgx.Batch) { b.Queue(beginSQL) }

// setPlans makes a transaction that begins in b set what it needs. It is in the same
// round trip: a pooler gives the session away when the transaction ends.
func setPlans(b *pgx.Batch) {
	if len(b.QueuedQueries) == 0 || b.QueuedQueries[0].SQL != beginSQL {
		return
	}
	var local pgx.Batch
	local.Queue(localPlanSQL())
	b.QueuedQueries = slices.Insert(b.QueuedQueries, 1, local.QueuedQueries...)
}

// Send runs the queued statements in one pipelined round trip, callbacks included,
// and waits at most timeout for the whole of it. When an error is a refusal (see
// [Refused]) the session lives on in a failed transaction: call [Session.Rollback].
func (s *Session) Send(ctx context.Context, b *pgx.Batch, timeout time.Duration) error {
	stop := s.closeAfter(timeout)
	defer stop()
	if s.pooled {
		setPlans(b)
	}
	s.conn.PgConn().Frontend().Send(s.buffer)
	err := s.conn.SendBatch(context.WithoutCancel(ctx), b).Close()
	if s.Heard != nil && (err == nil || Refused(err)) {
		s.Heard()
	}
	return err
}

// Commit queues a commit behind the statements in b and runs them in one round trip.
// It returns nil only if the server acknowledged a commit that is durable as
// configured. An error that wraps [ErrCommitUnknown] means that nobody knows; any
// other one that nothing was committed.
func (s *Session) Commit(ctx context.Context, b *pgx.Batch, timeout time.Duration) error {
	warned := listen(s.conn.PgConn())
	var tag pgconn.CommandTag
	b.Queue("commit").Exec(func(ct pgconn.CommandTag) error {
		tag = ct
		return nil
	})
	err := s.Send(ctx, b, timeout)
	switch {
	case err == nil && tag.String() == "COMMIT" && !warned.Load():
		return nil
	case err == nil && warned.Load():
		// The commit is on this server, but the wait for its standby was cut short.
		s.Close()
		return fmt.Errorf("%w: replication was not waited for", ErrCommitUnknown)
	case err == nil:
		return fmt.Errorf("commit ended in %q", tag)
	case s.Closed() || !Refused(err):
		s.Close()
		return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	default:
		return err
	}
}

// Rollback ends a transaction that is not to be kept. If it fails the session is
// closed, which ends the transaction too.
func (s *Session) Rollback(ctx context.Context, timeout time.Duration) {
	if s.Closed() || s.conn.PgConn().TxStatus() == 'I' {
		return
	}
	stop := s.closeAfter(timeout)
	defer stop()
	if _, err := s.conn.Exec(context.WithoutCancel(ctx), "rollback"); err != nil {
		s.Close()
	}
}

// Query runs one statement outside of a batch, for a querier such as the catalog's.
// The session's bound does not apply: ctx must carry a deadline, and its end closes
// the session.
func (s *Session) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return s.conn.Query(ctx, sql, args...)
}

// Closed reports whether the session can no longer be used.
func (s *Session) Closed() bool { return s.closed || s.conn.IsClosed() }

// Close closes the socket at once. The server ends an open transaction when it
// notices.
func (s *Session) Close() {
	s.closed = true
	_ = s.conn.PgConn().Conn().Close()
}

// closeAfter closes the socket when timeout ends. The returned function calls it off.
func (s *Session) closeAfter(timeout time.Duration) (stop func()) {
	socket := s.conn.PgConn().Conn()
	timer := time.AfterFunc(timeout, func() { _ = socket.Close() })
	return func() { timer.Stop() }
}
