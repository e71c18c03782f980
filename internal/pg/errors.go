package pg

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// SQLSTATEs that quotad acts on.
const (
	CodeLockNotAvailable = "55P03" // lock_timeout
	CodeCheckViolation   = "23514" // also: no partition for a row
	CodeDeadlock         = "40P01"
	CodeUniqueViolation  = "23505"

	codeNoSuchStatement    = "26000"
	codeDuplicateStatement = "42P05"
)

// Code returns the SQLSTATE of err, or "" if err did not come from the server.
func Code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// Refused reports whether err is the server's word that a statement failed and its
// transaction with it: severity ERROR on a connection that goes on.
func Refused(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.SeverityUnlocalized == "ERROR"
}

// Disconnected reports whether err is about a connection and not about a statement: none
// could be had, or it has ended. Another one may do.
func Disconnected(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.SeverityUnlocalized != "ERROR"
	}
	var netErr net.Error
	var closed interface{ SafeToRetry() bool } // the driver's, of a connection found closed
	return errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &closed)
}

// Answered reports whether an attempt that ended in err, which may be nil, shows a server
// that is there: it refused a statement, or a connection for a reason of its own. One that
// starts, recovers or shuts down is not there yet, or any more.
func Answered(err error) bool {
	if err == nil || Refused(err) {
		return true
	}
	code := Code(err)
	return len(code) == 5 && code[:3] != "57P" && code[:2] != "08"
}

// Unwilling reports whether err is the word of a server that is there and will say the same
// until someone changes it: a login that may not connect, a database or a table that is not
// there, a privilege that is missing. Connection trouble, too many clients, a full disk, a
// shutdown, a lock or a failover may pass by themselves.
func Unwilling(err error) bool {
	passing := []string{"08", "53", "57", "58", CodeLockNotAvailable, "25006", "40"}
	code := Code(err)
	return code != "" && !slices.ContainsFunc(passing, func(p string) bool { return strings.HasPrefix(code, p) })
}

// OneRowsFault reports whether err is about the content of a row (a constraint, an
// overflow, a bad value), so that other rows of the same statement may be fine.
func OneRowsFault(err error) bool {
	code := Code(err)
	return len(code) == 5 && (code[:2] == "22" || code[:2] == "23")
}

// NoPartition reports whether err says that no partition takes the row.
func NoPartition(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == CodeCheckViolation && pgErr.ConstraintName == ""
}
