package pg

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrStatementsLost says that a pooler hands sessions from client to client and leaves
// the prepared statements behind.
var ErrStatementsLost = errors.New("the pooler does not follow prepared statements")

const (
	// poolerRounds is how often each of two clients is given a session. A pooler at rest
	// lends one session to both, and the first round tells; where it is busy, neither
	// gets the session that it had so many times in a row.
	poolerRounds  = 8
	poolerTripMax = 5 * time.Second // one round trip
)

// CheckPooler finds out whether decisions can work through a pooler: two pooled sessions
// make empty transactions of two round trips by turns. It returns [ErrStatementsLost] if
// they miss their statements, and what the pooler said if it allows no transactions.
func CheckPooler(ctx context.Context, config *pgx.ConnConfig) error {
	var sessions [2]*Session
	for i := range sessions {
		s, err := ConnectPooled(ctx, config)
		if err != nil {
			return err
		}
		defer s.Close()
		sessions[i] = s
	}
	for range poolerRounds {
		for _, s := range sessions {
			if err := transact(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

func transact(ctx context.Context, s *Session) error {
	var first, second pgx.Batch
	Begin(&first)
	first.Queue("select pg_catalog.pg_backend_pid()")
	err := s.Send(ctx, &first, poolerTripMax)
	if err == nil {
		err = s.Commit(ctx, &second, poolerTripMax)
	}
	switch Code(err) {
	case codeNoSuchStatement, codeDuplicateStatement:
		return ErrStatementsLost
	}
	return err
}
