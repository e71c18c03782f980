package migrations_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/migrations"
)

// upTo brings a blank database to an older schema.
func upTo(t *testing.T, db *pgtest.DB, version int64) {
	t.Helper()
	config, err := pgx.ParseConfig(db.OwnerURL)
	if err != nil {
		t.Fatal(err)
	}
	sqlDB := stdlib.OpenDB(*config)
	defer sqlDB.Close()
	provider, err := goose.NewProvider(goose.DialectPostgres, sqlDB, migrations.FS())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := provider.UpTo(t.Context(), version); err != nil {
		t.Fatal(err)
	}
}

// A level that is lost opens a limit, and one on another meter is another's. What speaks of
// no limit that there was is left out.
func TestLevelsMoveIntoTheRowsThatTheyCountBy(t *testing.T) {
	t.Parallel()
	db := pgtest.Blank(t)
	upTo(t, db, 15)
	for _, sql := range []string{
		`insert into quotad.meter (meter_id, meter, unit, catalog_version) overriding system value
		 values (1, 'calls', 'call', 1), (2, 'tokens', 'token', 1)`,
		`insert into quotad.plan_version (plan_version_id, plan, version, spec, created_by) overriding system value values
		 (1, 'pro', 1, '{"limits": [{"name": "fast", "meter": "calls"}, {"name": "slow", "meter": "calls"}, {"name": "moved", "meter": "calls"}]}', 'test'),
		 (2, 'pro', 2, '{"limits": [{"name": "fast", "meter": "calls"}, {"name": "moved", "meter": "tokens"}]}', 'test')`,
		`insert into quotad.meter_total (tenant_id, meter_id, subject_id, units, last_at) values
		 (1, 1, 0, 5, now()), (1, 1, 7, 5, now()), (1, 2, 0, 5, now()), (2, 1, 0, 5, now()), (3, 1, 0, 5, now())`,
		`insert into quotad.level (tenant_id, limit_name, subject_id, plan_version_id, override_set_id, units, remainder, denominator, at) values
		 (1, 'slow', 0, 1, 3, -9, 2, 3, '2026-05-31 12:00:00.000001Z'), (1, 'fast', 0, 2, 0, 999999999999999, 0, 1, '9999-12-31 23:59:59.999999Z'),
		 (1, 'fast', 7, 1, 0, 4, 0, 1, '1970-01-01Z'), (1, 'moved', 0, 2, 0, 1, 0, 1, '1970-01-01Z'),
		 (2, 'gone', 0, 2, 0, 1, 0, 1, '1970-01-01Z'), (3, 'fast', 0, 9, 0, 1, 0, 1, '1970-01-01Z')`,
	} {
		if _, err := db.Owner(t).Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	up(t, db.OwnerURL)
	rows, err := db.Owner(t).Query(t.Context(), `
		select format('%s/%s/%s', tenant_id, meter_id, subject_id), coalesce(levels::jsonb::text, '')
		from quotad.meter_total`)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	var row, levels string
	if _, err := pgx.ForEachRow(rows, []any{&row, &levels}, func() error { got[row] = levels; return nil }); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"1/1/0": `{"fast": [2, 0, 999999999999999, 0, 1, 253402300799999999], "slow": [1, 3, -9, 2, 3, 1780228800000001]}`,
		"1/1/7": `{"fast": [1, 0, 4, 0, 1, 0]}`,
		"1/2/0": `{"moved": [2, 0, 1, 0, 1, 0]}`,
		"2/1/0": "", "3/1/0": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
}
