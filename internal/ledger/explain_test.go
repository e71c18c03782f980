package ledger

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/pgtest"
)

// indexes returns the index of the whole table by the name of each partition's, or of
// the index itself.
func (w *world) indexes(t *testing.T) map[string]string {
	t.Helper()
	rows, err := w.db.Owner(t).Query(t.Context(), `select c.relname, coalesce(p.relname, c.relname)
		from pg_class c
		left join pg_inherits i on i.inhrelid = c.oid
		left join pg_class p on p.oid = i.inhparent
		where c.relkind in ('i', 'I') and c.relnamespace = 'quotad'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	whole := make(map[string]string)
	var name, parent string
	_, err = pgx.ForEachRow(rows, []any{&name, &parent}, func() error {
		whole[name] = parent
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// windowEntries is what the window of the busy tenant holds, from windowStart on, one
// every 40 seconds; a rare subject has the one before the last.
const windowEntries = 20_000

var windowStart = time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)

// fill makes tables of a few thousand rows, and one busy tenant, whose id it returns.
func (w *world) fill(t *testing.T) (busy int64) {
	t.Helper()
	busy = w.journal(t, "busy").account.TenantID
	for _, sql := range []string{
		`insert into quotad.account (tenant, plan, head_hash)
			select 'tenant-' || n, 'pro', sha256('x') from generate_series(1, 3000) n`,
		`insert into quotad.subject (tenant_id, subject_id, subject, salt, digest)
			select a.tenant_id, n, (array['common', 'rare'])[n], 'salt', sha256('x')
			from quotad.account a cross join generate_series(1, 2) n
			where a.tenant <> 'first'`,
		`insert into quotad.meter_total (tenant_id, meter_id, subject_id, units, last_at)
			select a.tenant_id, m.meter_id, n, 5, '2026-03-20'
			from quotad.account a cross join quotad.meter m cross join generate_series(0, 2) n
			where a.tenant <> 'first'`,
	} {
		w.db.Exec(t, sql)
	}
	const entries = `insert into quotad.entry (tenant_id, seq, at, effective_at, kind, meter_id, subject_id, units, held,
			total, subject_total, request_id, batch_id, ref_seq, plan_version_id, limits_used, hash)
		select a.tenant_id, n, u.at, u.at, 'consume', $1, u.subject_id, 1, 0, n, n,
			gen_random_uuid(), gen_random_uuid(), 0, $2, '{1,2}', sha256('x')`
	w.db.Exec(t, entries+`
		from quotad.account a
		cross join generate_series(1, $4::bigint) n
		cross join lateral (select $3::timestamptz + (n - 1) * interval '40 seconds' as at,
			case n when $4 - 1 then 2 else 1 end as subject_id) u
		where a.tenant = 'busy'`, w.meters["calls"], w.versionID, windowStart, windowEntries)
	w.db.Exec(t, entries+`
		from quotad.account a
		cross join generate_series(1, 40) n
		cross join lateral (select timestamptz '2026-02-10' + n * interval '2 days' as at, 1 as subject_id) u
		where a.tenant_id % 30 = 0 and a.tenant <> 'busy'`, w.meters["calls"], w.versionID)
	w.db.Exec(t, `insert into quotad.entry_dims (tenant_id, seq, at, salt, dims)
		select e.tenant_id, e.seq, e.at, 'salt', '{}' from quotad.entry e where e.seq % 2 = 0`)
	return busy
}

// A hotStatement is one that a batch runs, with literals that make it work.
type hotStatement struct {
	name     string
	sql      string
	literals []string
	indexes  []string // all that are used
}

func hotStatements(busy int64, calls int32) []hotStatement {
	const (
		two     = "'{0,1}'"
		texts   = "'{busy,tenant-30}'"
		hashes  = `array[sha256('x'), sha256('y')]`
		instant = "'{2026-05-21,2026-05-22}'"
		uuids   = "array[gen_random_uuid(), gen_random_uuid()]"
	)
	both := func(v any) string { return fmt.Sprintf("'{%[1]v,%[1]v}'", v) }
	tenants, meters := fmt.Sprintf("'{%d,30}'", busy), both(calls)
	return []hotStatement{
		{"lock_skipping", lockSkipSQL, []string{texts}, []string{"account_tenant_unique"}},
		{"lock_waiting", lockWaitSQL, []string{"'{busy}'"}, []string{"account_tenant_unique"}},
		{"totals", totalsSQL, []string{two, tenants, meters, "'{\"\",rare}'"}, []string{"meter_total_pkey", "subject_unique"}},
		{
			"edges", edgesSQL,
			[]string{"'2026-03-20'", two, tenants, meters, "'{\"\",rare}'", "'{2026-03-12,null}'", "'{0,864000000000}'"},
			[]string{"account_pkey", "catalog_version_pkey", "entry_correction", "entry_subject_window", "entry_window", "subject_unique"},
		},
		{
			"crossings", crossingsSQL,
			[]string{
				two, both(busy), meters, "'{0,2}'", both(march.UnixMicro()), both(april.UnixMicro()), both(april.UnixMicro()),
				both(50000), two, "'{13333,19999}'", "'{\"{}\",\"{1,2}\"}'", "'{\"{}\",\"{3,4}\"}'",
			},
			[]string{"entry_correction", "entry_subject_window", "entry_window"},
		},
		{"accounts", updateAccountsSQL, []string{tenants, two, instant, hashes, two, two}, []string{"account_pkey"}},
		{"subjects", insertSubjectsSQL, []string{tenants, "'{8,9}'", "'{x,y}'", hashes, hashes}, nil},
		{"totals_upserted", upsertTotalsSQL, []string{tenants, meters, two, two, two, two, two, instant, "array['{}', null]::json[]"}, nil},
		{"totals_updated", updateTotalsSQL, []string{tenants, meters, two, two, two, two, two, instant, "array['{}', null]::json[]"}, []string{"meter_total_pkey"}},
		{"entries", insertEntriesSQL, []string{
			tenants, "'{50000,50001}'", instant, instant, "'{consume,consume}'", meters, two, two, two, two, two, uuids, two, two,
			"'{\"{}\",\"{1,2}\"}'", "gen_random_uuid()", hashes, hashes, two, "'{null,\"{1,2}\"}'",
		}, nil},
		{"dims", insertDimsSQL, []string{tenants, two, instant, hashes, "'{1,2}'"}, nil},
		{"lock_to_resolve", lockForResolveSQL, []string{"30"}, []string{"account_pkey"}},
		{"existing", existingSQL, []string{texts}, []string{"account_tenant_unique"}},
	}
}

// Plans are made once for a session: those made while tables were small, too, must not
// scan them later.
func TestHotStatementsAreDescentsOfTheirIndexes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.journal(t, "first").write(t, draft{at: march, meter: "calls", subject: "user-1", units: 1})
	w.db.Exec(t, "analyze") // says that a scan of each table is one page
	for _, c := range hotStatements(0, 0) {
		pgtest.RunSQL(t, w.session, "prepare "+c.name+" as "+c.sql)
		pgtest.RunSQL(t, w.session, "explain execute "+c.name+"("+strings.Join(c.literals, ", ")+")") // makes the plan
	}
	busy := w.fill(t)
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			w.db.Exec(t, "analyze")
		}
		for _, c := range hotStatements(busy, w.meters["calls"]) {
			w.checkDescents(t, c, pgtest.ExplainPrepared(t, w.session, c.name, c.literals...))
		}
	}
}

func (w *world) checkDescents(t *testing.T, c hotStatement, plan pgtest.PlanNode) {
	t.Helper()
	whole := w.indexes(t)
	var used []string
	for _, n := range plan.All() {
		switch n.Type {
		case "Seq Scan", "Hash Join", "Merge Join", "Sort", "Incremental Sort":
			if n.Relation != "catalog_version" { // it has one row
				t.Errorf("%s: the plan has a %s on %q:\n%v", c.name, n.Type, n.Relation, plan)
			}
		}
		if n.Index == "" {
			continue
		}
		used = append(used, whole[n.Index])
		if n.Filter != "" && whole[n.Index] != "entry_correction" { // which holds next to nothing
			t.Errorf("%s: what %s finds is filtered by %s:\n%v", c.name, n.Index, n.Filter, plan)
		}
	}
	slices.Sort(used)
	if diff := cmp.Diff(c.indexes, slices.Compact(used)); diff != "" {
		t.Errorf("%s: indexes (-want +used):\n%s\n%v", c.name, diff, plan)
	}
}

// Whatever a window holds, finding its edge is one descent of an index in one partition.
func TestAnEdgeIsOneDescentWhateverItsWindowHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pgtest.RunSQL(t, w.session, "prepare edges as "+edgesSQL)
	busy := w.fill(t)
	whole := w.indexes(t)
	// The clock's statement, the account, the subject, and the entry: three or four
	// pages of an index or table each.
	const buffersMax = 20
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			w.db.Exec(t, "analyze")
		}
		for _, subject := range []string{"", "common", "rare", "never seen"} {
			for _, start := range []string{"'{2026-03-10}'", "'{2026-03-14 12:00:00}'", "null"} {
				plan := pgtest.ExplainPrepared(t, w.session, "edges", "'2026-03-31'", "'{0}'", fmt.Sprintf("'{%d}'", busy),
					fmt.Sprintf("'{%d}'", w.meters["calls"]), fmt.Sprintf("'{%q}'", subject), start,
					fmt.Sprintf("'{%d}'", (25*24*time.Hour).Microseconds()))
				if got := plan.Buffers(); got > buffersMax {
					t.Errorf("subject %q from %s, analyzed %t: %d buffers, want at most %d:\n%v",
						subject, start, analyzed, got, buffersMax, plan)
				}
				checkWindow(t, whole, plan, "entry_20260301")
			}
		}
	}
}

// checkWindow checks that entries are found by the instants of the window, in the one
// partition that holds them.
func checkWindow(t *testing.T, whole map[string]string, plan pgtest.PlanNode, partition string) {
	t.Helper()
	scans := 0
	for _, n := range plan.All() {
		if !strings.HasPrefix(n.Relation, "entry_") {
			continue
		}
		scans++
		index := whole[n.Index]
		if index != "entry_window" && index != "entry_subject_window" && index != "entry_correction" {
			t.Errorf("entries are found by %q", n.Index)
		}
		filtered := n.Filter != "" && index != "entry_correction" // which holds next to nothing
		if !strings.Contains(n.Cond, "(at >") || !strings.Contains(n.Cond, "(at <= ") || filtered {
			t.Errorf("entries are found by %s, then filtered by %q", n.Cond, n.Filter)
		}
		if n.Loops > 0 && n.Relation != partition {
			t.Errorf("partition %s was read, the window lies in %s", n.Relation, partition)
		}
	}
	if scans < 4 {
		t.Errorf("the plan has %d scans of partitions, want one of each:\n%v", scans, plan)
	}
}

// A crossing is found by halving: some fifty descents, whatever the window holds.
func TestACrossingIsALogarithmicSearch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	busy := w.fill(t)
	w.db.Exec(t, "analyze")
	whole := w.indexes(t)
	for subjectID, target := range []int{windowEntries * 2 / 3, windowEntries * 2 / 3, windowEntries - 1} {
		plan := pgtest.Explain(t, w.session, crossingsSQL, "'{0}'", fmt.Sprintf("'{%d}'", busy), fmt.Sprintf("'{%d}'", w.meters["calls"]),
			fmt.Sprintf("'{%d}'", subjectID), fmt.Sprintf("'{%d}'", march.UnixMicro()), fmt.Sprintf("'{%d}'", april.UnixMicro()-1),
			fmt.Sprintf("'{%d}'", april.UnixMicro()-1), "'{50000}'", "'{0}'", fmt.Sprintf("'{%d}'", target), "'{\"{}\"}'", "'{\"{}\"}'")
		// log2 of the microseconds of a month is 42; each descent is three or four pages,
		// and one more looks for corrections.
		if got := plan.Buffers(); got > 42*5 {
			t.Errorf("subject %d: %d buffers, want at most %d:\n%v", subjectID, got, 42*5, plan)
		}
		checkWindow(t, whole, plan, "entry_20260301")
	}
}

// An auditor pages through ledgers of any size: a page must read its own entries, not
// sort all there are.
func TestAPageReadsNoMoreThanAPage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	busy := fmt.Sprint(w.fill(t))
	w.db.Exec(t, "analyze")
	conn, err := w.store.db.(*pgxpool.Pool).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const (
		pageSize = 100
		newest   = ", 20000, "
		all      = "'', '', '', '', null, null, null, 100"
	)
	for _, c := range []struct {
		name     string
		sql      string
		literals string
		prepared bool // and so run with a plan for any tenant
	}{
		{"first page", ascendingSQL, busy + ", 1" + newest + all, false},
		{"a later page", ascendingSQL, busy + ", 15000" + newest + all, false},
		{"newest page", descendingSQL, busy + ", 1" + newest + all, false},
		{"an older page", descendingSQL, busy + ", 1, 5000, " + all, false},
		{"of a meter and a subject", descendingSQL, busy + ", 1" + newest + "'calls', 'common', 'consume', '', null, null, null, 100", false},
		{"of a month", ascendingSQL, busy + ", 1" + newest + "'', '', '', '', null, '2026-03-01', '2026-04-01', 100", false},
		{"of a small tenant", ascendingSQL, "30, 1, 40, " + all, false},
		{"one entry", entrySQL, busy + ", 15000", true},
		{"a chunk to verify", verifyEntriesSQL, busy + ", 15000, '2026-01-01', 100", false},
	} {
		modes := []string{"force_custom_plan"}
		if c.prepared {
			modes = append(modes, "force_generic_plan")
		}
		for _, mode := range modes {
			pgtest.RunSQL(t, conn, "set plan_cache_mode = "+mode)
			plan := pgtest.Explain(t, conn, c.sql, c.literals)
			for _, n := range plan.All() {
				// One more may be read to merge partitions.
				if read := n.Loops * (n.Rows + n.Dropped); strings.HasPrefix(n.Relation, "entry_") && read > pageSize+1 {
					t.Errorf("%s, %s: %.0f rows of %s were read, want at most %d:\n%v", c.name, mode, read, n.Relation, pageSize, plan)
				}
			}
		}
	}
}

// Where a range of instants begins and ends in a ledger of any size is found by a few
// descents, and a page through a filter that lets nothing pass ends.
func TestALookIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	busy := fmt.Sprint(w.fill(t))
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			w.db.Exec(t, "analyze")
		}
		conn, err := w.db.Service(t).Acquire(t.Context()) // a fresh session each time
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		pgtest.RunSQL(t, conn, "set plan_cache_mode = force_custom_plan")
		for _, ends := range []string{"null, null", "'2026-03-14', null", "null, '2026-03-14'", "'2026-03-12', '2026-03-14'", "'2026-04-01', '2026-05-01'"} {
			plan := pgtest.Explain(t, conn, entryListSQL, "'busy'", ends)
			// The account, and for each of two meters a total and at most one descent of
			// each of six partitions, for either end.
			if got := plan.Buffers(); got > 100 {
				t.Errorf("list of %s, analyzed %t: %d buffers:\n%v", ends, analyzed, got, plan)
			}
		}
		for _, filter := range []string{"'tokens', '', '', '', null", "'', '', 'hold', '', null", "'', '', '', 'none', null", "'', '', '', '', gen_random_uuid()"} {
			plan := pgtest.Explain(t, conn, ascendingSQL, busy, "5001", "7000", filter, "null, null, 100")
			for _, n := range plan.All() {
				if read := n.Loops * (n.Rows + n.Dropped); strings.HasPrefix(n.Relation, "entry_") && read > 2000 {
					t.Errorf("filter %s, analyzed %t: %.0f rows of %s were read:\n%v", filter, analyzed, read, n.Relation, plan)
				}
			}
		}
	}
}

// A prepared page would soon be planned for any tenant.
func TestPagesArePlannedForTheirTenant(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.filled(t)
	conn, err := w.store.db.(*pgxpool.Pool).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := NewStore(conn).Entries(t.Context(), EntryQuery{Tenant: "acme", Limit: 10}); err != nil {
		t.Fatal(err)
	}
	var prepared int
	err = conn.QueryRow(t.Context(), "select count(*) from pg_prepared_statements where statement = $1", ascendingSQL).Scan(&prepared)
	if err != nil || prepared != 0 {
		t.Errorf("%d prepared statements read entries, %v, want none", prepared, err)
	}
}
