package pg

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// warnedData is what a connection keeps once a warning 01000 has arrived on it: the wait
// of a commit for its standby was cut short.
const warnedData = "quotad.warned"

// HearWarnings makes connections of config keep the warnings that [CommitTx] asks for.
func HearWarnings(config *pgx.ConnConfig) {
	config.OnNotice = func(conn *pgconn.PgConn, notice *pgconn.Notice) {
		if notice.Code == "01000" {
			conn.CustomData()[warnedData] = true
		}
	}
}

// CommitTx commits a transaction of a connection that was opened after [HearWarnings]. An
// error that wraps [ErrCommitUnknown] means that the commit is on this server, and that no
// standby is known to have it.
func CommitTx(ctx context.Context, tx pgx.Tx) error {
	data := tx.Conn().PgConn().CustomData()
	delete(data, warnedData)
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	if data[warnedData] != nil {
		return fmt.Errorf("%w: replication was not waited for", ErrCommitUnknown)
	}
	return nil
}
