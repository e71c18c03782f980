package pg

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pgtest"
)

// Whoever keeps each client's statements apart is not refused, and PostgreSQL itself
// does.
func TestCheckPoolerFindsNothingAmissWithoutAPooler(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := CheckPooler(t.Context(), config); err != nil {
		t.Errorf("CheckPooler = %v, want nil", err)
	}
}

// A client that is given another one's session finds its statements gone, or their
// names taken.
func TestStatementsThatAreElsewhereAreLost(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	var sessions [2]*Session
	for i := range sessions {
		if sessions[i], err = ConnectPooled(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		defer sessions[i].Close()
	}
	asked, other := sessions[0], sessions[1]
	if err := transact(t.Context(), asked); err != nil {
		t.Fatalf("a transaction = %v, want nil", err)
	}
	rows, err := asked.conn.Query(t.Context(), "select name from pg_prepared_statements", pgx.QueryExecModeExec)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		t.Fatalf("prepared statements = %q, %v; want some", names, err)
	}
	change := func(s *Session, sql string) {
		t.Helper()
		if _, err := s.conn.PgConn().Exec(t.Context(), sql).ReadAll(); err != nil {
			t.Fatal(err)
		}
	}
	change(asked, "deallocate all")
	for _, name := range names {
		change(other, "prepare "+name+" as select 1")
	}
	for what, s := range map[string]*Session{"gone": asked, "taken": other} {
		if err := transact(t.Context(), s); !errors.Is(err, ErrStatementsLost) {
			t.Errorf("a transaction whose statements are %s = %v, want %v", what, err, ErrStatementsLost)
		}
	}
}
