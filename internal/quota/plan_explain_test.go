package quota

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
)

// session opens a session as the engine has them.
func (w *world) session(t *testing.T) *pg.Session {
	t.Helper()
	config, err := pgx.ParseConfig(w.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	session, err := pg.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

const (
	firstKeys = "2026-01-01" // the oldest of many tenants' keys, one a day
	lastKeys  = "2026-03-20"
	levelMany = 3000 // tenants with levels and keys
)

// fillKept makes levels and kept answers of many tenants, over weeks.
func (w *world) fillKept(t *testing.T) {
	t.Helper()
	w.db.Exec(t, "select quotad.ensure_partitions($1::text::timestamptz, $2::text::timestamptz)", firstKeys, lastKeys)
	w.db.Exec(t, `insert into quotad.account (tenant_id, tenant, plan, head_hash) overriding system value
		select n, 'many-' || n, 'small', sha256('x') from generate_series(1000, $1::bigint + 1000) n`, levelMany)
	w.db.Exec(t, `insert into quotad.subject (tenant_id, subject_id, subject, salt, digest)
		select n, 1, 'ann', 'salt', sha256('x') from generate_series(1000, $1::bigint + 1000) n`, levelMany)
	w.db.Exec(t, `insert into quotad.meter_total (tenant_id, meter_id, subject_id, last_at, levels)
		select n, l, s, '2026-03-20', '{"limit-1":[1,0,5,0,1,0]}'
		from generate_series(1000, $1::bigint + 1000) n cross join generate_series(1, 3) l cross join generate_series(0, 1) s`, levelMany)
	w.db.Exec(t, `insert into quotad.idempotency (tenant_id, key, created_at, request_hash, first_seq, answer)
		select 1000 + n % 100, 'key-' || n, at, sha256('x'), n, '{}'
		from generate_series($1::text::timestamptz, $2::text::timestamptz, interval '20 minutes') with ordinality as g(at, n)`,
		firstKeys, lastKeys)
	w.db.Exec(t, "analyze")
}

// Levels and kept answers are read and written with every batch: each row is one
// descent, and answers past their time are not looked for.
func TestKeptStatementsAreDescentsOfTheirIndexes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.fillKept(t)
	w.db.SetClock(t, time.Date(2026, 3, 19, 0, 0, 0, 0, time.UTC))
	session := w.session(t)
	const (
		two     = "'{0,1}'"
		tenants = "'{1000,1001}'"
		instant = "'{2026-03-19,2026-03-19}'"
		hashes  = "array[sha256('x'), sha256('y')]"
	)
	for _, c := range []struct {
		name       string
		sql        string
		literals   []string
		indexes    []string // all that are used
		buffersMax int64
	}{
		// Five or six weeks of 35 days, three pages each, and the clock that the test set.
		{"keys", keysSQL, []string{two, tenants, "'{key-5600,never}'"}, []string{"account_pkey", "idempotency_pkey"}, 100},
		{
			"looked through", idleCandidatesSQL,
			[]string{"1500", "1", "0", "10", "interval '1 day'"},
			[]string{"account_pkey", "meter_pkey", "meter_total_pkey"},
			80,
		},
		{"idle levels", levelsOfSQL, []string{tenants, "'{1,2}'", "'{0,1}'"}, []string{"meter_total_pkey"}, 20},
		{"levels left", setLevelsSQL, []string{tenants, "'{1,2}'", "'{0,1}'", "array['{}', null]::json[]"}, []string{"meter_total_pkey"}, 40},
		{"new keys", insertKeysSQL, []string{tenants, "'{x,y}'", instant, hashes, two, "'{a,b}'"}, nil, 40},
	} {
		plan := pgtest.Explain(t, session, c.sql, c.literals...)
		checkDescents(t, c.name, plan, c.indexes)
		if got := plan.Buffers(); got > c.buffersMax {
			t.Errorf("%s: %d buffers, want at most %d:\n%v", c.name, got, c.buffersMax, plan)
		}
	}
}

func checkDescents(t *testing.T, name string, plan pgtest.PlanNode, indexes []string) {
	t.Helper()
	var used []string
	for _, n := range plan.All() {
		switch n.Type {
		case "Seq Scan", "Hash Join", "Merge Join", "Sort", "Incremental Sort":
			if n.Relation != "clock" { // it has the one row that a test set
				t.Errorf("%s: the plan has a %s on %q:\n%v", name, n.Type, n.Relation, plan)
			}
		}
		if n.Index == "" {
			continue
		}
		index := n.Index
		if week, partition := strings.CutPrefix(n.Index, "idempotency_2"); partition {
			index = "idempotency_pkey"
			if !strings.Contains(n.Cond, "(created_at > ") {
				t.Errorf("%s: keys are found by %s alone", name, n.Cond)
			}
			// 35 days before 2026-03-19 is the 12th of February, in the week of the 9th.
			if n.Loops > 0 && "2"+week < "20260209" {
				t.Errorf("%s: %s was read, its keys are past their time", name, n.Index)
			}
			if n.Loops > 0 && "2"+week > "20260317" {
				t.Errorf("%s: %s was read, its week is to come", name, n.Index)
			}
		}
		used = append(used, index)
		if n.Filter != "" {
			t.Errorf("%s: what %s finds is filtered by %s:\n%v", name, n.Index, n.Filter, plan)
		}
	}
	slices.Sort(used)
	if diff := cmp.Diff(indexes, slices.Compact(used)); diff != "" {
		t.Errorf("%s: indexes (-want +used):\n%s\n%v", name, diff, plan)
	}
}
