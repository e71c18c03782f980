package pg

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/internal/pgtest"
)

// What an error means decides whether a batch runs again whole, in parts, or not at all.
func TestErrorsMeanWhatTheServerMeant(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Exec(t, "create table public.part (n integer not null) partition by range (n)")
	db.Exec(t, "create table public.row (n integer not null unique, m smallint, constraint row_small check (n < 1000))")
	db.Exec(t, "insert into public.row values (0)")
	for _, c := range []struct {
		name        string
		sql         string
		code        string
		oneRows     bool
		noPartition bool
	}{
		{"no partition", "insert into public.part values (10)", "23514", true, true},
		{"check", "insert into public.row values (1000)", "23514", true, false},
		{"unique", "insert into public.row values (0)", "23505", true, false},
		{"not null", "insert into public.row values (null)", "23502", true, false},
		{"overflow", "insert into public.row values (1, 40000)", "22003", true, false},
		{"bad text", "select 'x'::integer", "22P02", true, false},
		{"no such table", "select from public.nothing", "42P01", false, false},
		{"no right", "do $$ begin raise insufficient_privilege; end $$", "42501", false, false},
		{"deadlock", "do $$ begin raise deadlock_detected; end $$", "40P01", false, false},
		{"out of memory", "do $$ begin raise out_of_memory; end $$", "53200", false, false},
	} {
		_, err := db.Owner(t).Exec(t.Context(), c.sql)
		for _, err := range []error{err, fmt.Errorf("write a batch: %w", err)} {
			if got := Code(err); got != c.code {
				t.Errorf("%s: Code(%v) = %q, want %q", c.name, err, got, c.code)
			}
			if got := OneRowsFault(err); got != c.oneRows {
				t.Errorf("%s: OneRowsFault(%v) = %t, want %t", c.name, err, got, c.oneRows)
			}
			if got := NoPartition(err); got != c.noPartition {
				t.Errorf("%s: NoPartition(%v) = %t, want %t", c.name, err, got, c.noPartition)
			}
			if !Refused(err) {
				t.Errorf("%s: Refused(%v) = false, want true", c.name, err)
			}
		}
	}
	for _, err := range []error{nil, io.ErrUnexpectedEOF, errors.New("23505")} {
		if Code(err) != "" || OneRowsFault(err) || NoPartition(err) || Refused(err) {
			t.Errorf("%v is taken for an error of the server", err)
		}
	}
}

// Who says no until someone mends it is not waited for.
func TestAServerIsUnwillingOrItPasses(t *testing.T) {
	t.Parallel()
	fatal := func(code string) error {
		return fmt.Errorf("connect: %w", &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: code})
	}
	refused := func(code string) error { return &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: code} }
	for _, c := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("28P01"), false},
		{io.ErrUnexpectedEOF, false},
		{fatal("57P03"), false}, // it starts
		{fatal("53300"), false}, // too many clients
		{refused("53100"), false},
		{refused(CodeLockNotAvailable), false},
		{refused("25006"), false},
		{refused("40001"), false},
		{fatal("28P01"), true},
		{fatal("3D000"), true},
		{fatal("55000"), true},
		{refused("42501"), true},
		{refused("42703"), true},
	} {
		if got := Unwilling(c.err); got != c.want {
			t.Errorf("Unwilling(%v) = %t, want %t", c.err, got, c.want)
		}
	}
}
