package migrations_test

import (
	"bytes"
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/migrations"
)

// The golden dump is how a migration's effect shows in review.
var update = flag.Bool("update", false, "write schema.sql from the migrations")

const schemaFile = "schema.sql"

func TestMain(m *testing.M) { pgtest.Main(m) }

func up(t *testing.T, databaseURL string) []migrations.Applied {
	t.Helper()
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	applied, err := migrations.Up(t.Context(), config)
	if err != nil {
		t.Fatalf("Up: %v", err)
	}
	return applied
}

func TestUpGoesFromEmptyToHeadOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	applied := up(t, db.OwnerURL)
	head, err := migrations.Head()
	if err != nil {
		t.Fatalf("Head: %v", err)
	}
	if len(applied) == 0 || applied[len(applied)-1].Version != head {
		t.Errorf("Up applied %v, want it to end with version %d", applied, head)
	}
	if again := up(t, db.OwnerURL); len(again) != 0 {
		t.Errorf("a second Up applied %v, want nothing", again)
	}
}

// Instances start together after a release; each may migrate first.
func TestConcurrentUpsTakeTurns(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(pgtest.Blank(t).OwnerURL)
	if err != nil {
		t.Fatal(err)
	}
	const instances = 3
	type result struct {
		applied int
		err     error
	}
	results := make(chan result)
	for range instances {
		go func() {
			applied, err := migrations.Up(t.Context(), config)
			results <- result{len(applied), err}
		}()
	}
	ran := 0
	for range instances {
		r := <-results
		if r.err != nil {
			t.Errorf("Up: %v", r.err)
		}
		if r.applied > 0 {
			ran++
		}
	}
	if ran != 1 {
		t.Errorf("%d of %d instances applied migrations, want 1", ran, instances)
	}
}

func TestSchemaEqualsItsDump(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	up(t, db.OwnerURL)
	got := dump(t, db.OwnerURL)
	if *update {
		if err := os.WriteFile(schemaFile, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s is not what the migrations make; see the change, then run "+
			"`go test ./migrations -run Dump -update` (-want +got):\n%s", schemaFile, diff)
	}
}

// dump returns the schema as pg_dump writes it, less what differs between servers and
// days: versions, settings, ownership of this run, and partitions, whose names hold dates.
func dump(t *testing.T, databaseURL string) []byte {
	t.Helper()
	program := dumpProgram(t, databaseURL)
	var stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), program, "--schema-only", "--schema=quotad",
		"--no-owner", "--exclude-table=quotad.*_20[0-9][0-9][0-9][0-9][0-9][0-9]", databaseURL)
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", program, err, stderr.Bytes())
	}
	var kept []string
	for _, line := range strings.Split(string(output), "\n") {
		if !volatileLine.MatchString(line) {
			kept = append(kept, line)
		}
	}
	text := strings.TrimSpace(strings.Join(kept, "\n"))
	return []byte(blankLines.ReplaceAllString(text, "\n\n") + "\n")
}

var (
	volatileLine = regexp.MustCompile(`^(--.*|\\(un)?restrict .*|SET .*|SELECT pg_catalog\.set_config.*|ALTER INDEX .* ATTACH PARTITION .*)$`)
	blankLines   = regexp.MustCompile(`\n{3,}`)
)

// dumpProgram finds pg_dump beside the running server, else in PATH: it may not be
// older than the server.
func dumpProgram(t *testing.T, databaseURL string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var bindir string
	err = conn.QueryRow(t.Context(), "select setting from pg_config where name = 'BINDIR'").Scan(&bindir)
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{filepath.Join(bindir, "pg_dump"), "pg_dump"} {
		if path, err := exec.LookPath(program); err == nil {
			return path
		}
	}
	t.Fatal("no pg_dump: install the client programs of the test server's version")
	return ""
}

// appendOnly are the tables that nobody changes, with their partitions.
func appendOnly(t *testing.T, owner *pgxpool.Pool) []string {
	t.Helper()
	rows, err := owner.Query(t.Context(), `
		select format('quotad.%I', relname)
		from pg_class
		where relnamespace = 'quotad'::regnamespace
		  and relkind in ('r', 'p')
		  and (relname in ('entry', 'plan_version', 'config_change', 'override_set', 'terms') or relname ~ '^entry_\d+$')
		order by relname`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

// Loses the meaning of the ledger if it breaks: partitions are tables of their own, so
// a rule on the parent alone protects nothing.
func TestNobodyChangesTheLedger(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner, service := db.Owner(t), db.Service(t)
	before := len(appendOnly(t, owner))
	var made int
	err := service.QueryRow(t.Context(),
		"select quotad.ensure_partitions(now() + interval '1 year', now() + interval '14 months')").Scan(&made)
	if err != nil || made == 0 {
		t.Fatalf("ensure_partitions as the service made %d, %v", made, err)
	}
	fill(t, owner)
	tables := appendOnly(t, owner)
	if len(tables) <= before || before < 4 {
		t.Fatalf("append-only tables: %d, then %d; want some and then more", before, len(tables))
	}
	for _, table := range tables {
		for _, sql := range []string{
			"update " + table + " set " + column(table) + " = " + column(table),
			"delete from " + table,
			"truncate " + table + " cascade", // else a foreign key refuses it first
		} {
			refused(t, "service", service, sql)
			refused(t, "owner", owner, sql)
		}
	}
}

// fill puts a row into every partition of entry and into the other append-only
// tables: row triggers need rows.
func fill(t *testing.T, owner *pgxpool.Pool) {
	t.Helper()
	for _, sql := range []string{
		`insert into quotad.entry
		   (tenant_id, seq, at, effective_at, kind, meter_id, subject_id, units, held, total, subject_total,
		    request_id, batch_id, ref_seq, plan_version_id, limits_used, hash)
		 select 1, row_number() over (order by at), at, at, 'consume', 1, 0, 1, 0, 1, 0,
		        gen_random_uuid(), gen_random_uuid(), 0, 1, '{}', sha256('')
		 from (
		   select to_timestamp(substring(relname from '\d+$'), 'YYYYMMDD') + interval '1 day' as at
		   from pg_class
		   where relnamespace = 'quotad'::regnamespace and relkind = 'r' and relname ~ '^entry_\d+$') as partition`,
		`insert into quotad.plan_version (plan, version, spec, created_by) values ('pro', 1, '{}', 'test')`,
		`insert into quotad.config_change (changed_by, object, name) values ('test', 'plan', 'pro')`,
		`insert into quotad.override_set (tenant_id, overrides, created_at, created_by) values (1, '[]', now(), 'test')`,
		`insert into quotad.terms (tenant_id, at, plan, override_set_id) values (1, now(), 'pro', 0)`,
	} {
		if _, err := owner.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// column is one that every kind of append-only table may be asked to change.
func column(table string) string {
	switch table {
	case "quotad.plan_version", "quotad.override_set":
		return "created_by"
	case "quotad.terms":
		return "plan"
	case "quotad.config_change":
		return "changed_by"
	default:
		return "units"
	}
}

func refused(t *testing.T, who string, pool *pgxpool.Pool, sql string) {
	t.Helper()
	const insufficientPrivilege = "42501"
	if _, err := pool.Exec(t.Context(), sql); pg.Code(err) != insufficientPrivilege {
		t.Errorf("%s as the %s: %v, want SQLSTATE %s", sql, who, err, insufficientPrivilege)
	}
}

func TestServiceRoleOwnsNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows, err := db.Owner(t).Query(context.Background(), `
		select pg_describe_object(classid, objid, objsubid)
		from pg_shdepend
		where refobjid in ('quotad_service'::regrole, 'quotad_test'::regrole)
		  and deptype = 'o'
		  and dbid = (select oid from pg_database where datname = current_database())`)
	if err != nil {
		t.Fatal(err)
	}
	owned, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(owned) > 0 {
		t.Errorf("the service owns %v, %v, want nothing", owned, err)
	}
}

// A partition belongs to whoever owns its parent, not to the service that asked for it.
func TestPartitionsBelongToTheOwnerOfTheirParent(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Service(t).Exec(t.Context(),
		"select quotad.ensure_partitions(now() + interval '1 year', now() + interval '14 months')"); err != nil {
		t.Fatal(err)
	}
	var strangers int
	if err := db.Owner(t).QueryRow(t.Context(), `
		select count(*)
		from pg_inherits
		join pg_class as child on child.oid = inhrelid
		join pg_class as parent on parent.oid = inhparent
		where child.relowner <> parent.relowner`).Scan(&strangers); err != nil || strangers != 0 {
		t.Errorf("partitions with another owner = %d, %v, want 0", strangers, err)
	}
}
