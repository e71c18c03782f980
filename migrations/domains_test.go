package migrations_test

import (
	"errors"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
)

// rowsOfATenant makes a tenant with a counter and an entry.
const rowsOfATenant = `
insert into quotad.account (tenant, plan, head_hash) values ('acme', 'pro', sha256('acme'));
insert into quotad.meter_total (tenant_id, meter_id, units, last_at, levels) values (1, 1, 5, now(), '{}');
insert into quotad.entry (tenant_id, seq, at, effective_at, kind, meter_id, subject_id, units, held, total, subject_total,
  request_id, batch_id, ref_seq, plan_version_id, limits_used, hash)
values (1, 2, now(), now(), 'consume', 1, 0, 5, 0, 5, 0, gen_random_uuid(), gen_random_uuid(), 1, 1, '{}', sha256('entry'))`

// anEntry inserts another entry with one expression in place of a column's value.
func anEntry(column, value string) string {
	values := map[string]string{
		"seq": "3", "kind": "'consume'", "units": "5", "held": "0", "total": "5", "subject_total": "0",
		"ref_seq": "1", "hash": "sha256('entry')",
	}
	values[column] = value
	return `insert into quotad.entry (tenant_id, at, effective_at, meter_id, subject_id, request_id, batch_id, plan_version_id, limits_used,
		seq, kind, units, held, total, subject_total, ref_seq, hash)
		values (1, now(), now(), 1, 0, gen_random_uuid(), gen_random_uuid(), 1, '{}', ` +
		values["seq"] + ", " + values["kind"] + ", " + values["units"] + ", " + values["held"] + ", " + values["total"] + ", " +
		values["subject_total"] + ", " + values["ref_seq"] + ", " + values["hash"] + ")"
}

// What no row may say the database itself refuses, whoever writes it.
func TestRowsOfDecisionsKeepTheirRules(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	up(t, db.OwnerURL)
	db.Exec(t, rowsOfATenant)
	refused := []string{
		anEntry("seq", "1"), anEntry("ref_seq", "-1"), anEntry("kind", "'gift'"),
		anEntry("units", "1000000000000000"), anEntry("units", "-1000000000000000"),
		anEntry("held", "1000000000000000"), anEntry("held", "-1000000000000000"),
		anEntry("total", "-1"), anEntry("total", "1000000000000000"),
		anEntry("subject_total", "-1"), anEntry("subject_total", "1000000000000000"),
		anEntry("hash", `'\x00'`),
	}
	for _, set := range []string{
		"units = -1", "units = 1000000000000000", "returned = -1", "returned = 6", "held = -1",
		"held = 1000000000000000", "calls = -1", "levels = '[]'",
	} {
		refused = append(refused, "update quotad.meter_total set "+set)
	}
	for _, set := range []string{
		"seq = -1", "subject_seq = -1", `head_hash = '\x00'`, "open_holds = -1", "open_holds = 1001", "status = 'asleep'",
		"billing_anchor = 0", "billing_anchor = 32", "tenant = ''", "tenant = repeat('x', 257)", "next_plan = 'pro'",
	} {
		refused = append(refused, "update quotad.account set "+set)
	}
	for _, sql := range refused {
		_, err := db.Owner(t).Exec(t.Context(), sql)
		if pgErr := (*pgconn.PgError)(nil); !errors.As(err, &pgErr) || pgErr.Code != pg.CodeCheckViolation || pgErr.ConstraintName == "" {
			t.Errorf("%s: %v, want a violated check with its name", sql, err)
		}
	}
	db.Exec(t, anEntry("units", "-999999999999999"))
	db.Exec(t, "update quotad.meter_total set levels = null, returned = 5, held = 999999999999999")
	db.Exec(t, "update quotad.account set open_holds = 1000, status = 'closed', billing_anchor = 31")
}

// Rewriting a ledger takes long, and rewriting what decisions update packs its pages, so
// that the next updates leave them.
func TestRulesOfColumnsMoveWithoutRewritingTables(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	upTo(t, db, 17)
	db.Exec(t, rowsOfATenant)
	files := func() map[string]uint32 {
		rows, err := db.Owner(t).Query(t.Context(), `select relname, pg_relation_filenode(oid) from pg_class
			where relnamespace = 'quotad'::regnamespace and relkind = 'r' and relname ~ '^(account|meter_total|entry)(_|$)'`)
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[string]uint32)
		var table string
		var file uint32
		if _, err := pgx.ForEachRow(rows, []any{&table, &file}, func() error { found[table] = file; return nil }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	before := files()
	if len(before) < 5 {
		t.Fatalf("tables: %v, want accounts, totals and partitions", before)
	}
	up(t, db.OwnerURL)
	if after := files(); !maps.Equal(before, after) {
		t.Errorf("files of tables: %v, were %v", after, before)
	}
}
