package pg

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// warnedData is where a connection has what its commit under way hears warnings with.
const warnedData = "quotad.warned"

// HearWarnings makes connections of config tell commits of the warning 01000: the wait of
// one for its standby was cut short.
func HearWarnings(config *pgx.ConnConfig) {
	config.OnNotice = func(conn *pgconn.PgConn, notice *pgconn.Notice) {
		if warned, ok := conn.CustomData()[warnedData].(*atomic.Bool); ok && notice.Code == "01000" {
			warned.Store(true)
		}
	}
}

// listen returns what becomes true if conn hears a warning from now on. It is the commit's own:
// once that has ended, a connection of a pool is someone else's.
func listen(conn *pgconn.PgConn) (warned *atomic.Bool) {
	warned = new(atomic.Bool)
	conn.CustomData()[warnedData] = warned
	return warned
}

// CommitTx commits a transaction of a connection that was opened after [HearWarnings]. An
// error that wraps [ErrCommitUnknown] means that the commit is on this server, and that no
// standby is known to have it.
func CommitTx(ctx context.Context, tx pgx.Tx) error {
	warned := listen(tx.Conn().PgConn())
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if warned.Load() {
		return fmt.Errorf("%w: replication was not waited for", ErrCommitUnknown)
	}
	return nil
}
