package catalog

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/pgtest"
)

// Statements that run with a request or grow with the number of tenants must have an
// index to go by, whatever a planner prefers while tables are small.
func TestStatementsHaveTheIndexTheirCommentNames(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Owner(t)
	for _, test := range []struct {
		sql     string
		args    []any
		indexes []string
	}{
		{snapshotSQL, []any{int64(7)}, []string{"meter_catalog_version", "plan_catalog_version"}},
		{planVersionSQL, []any{int64(7)}, []string{"plan_version_pkey"}},
		{keySQL, []any{"id"}, []string{"api_key_pkey"}},
		{planVersionOfSQL, []any{"p", int32(7)}, []string{"plan_version_unique"}},
		{planVersionsOfSQL, []any{"p", int32(7), 10}, []string{"plan_version_unique"}},
		{creationSQL, []any{"t"}, []string{"account_tenant_unique"}},
		{tenantSQL, []any{"t"}, []string{"account_tenant_unique"}},
		{stateTenantsSQL, []any{[]string{"t"}}, []string{"account_tenant_unique"}},
		{lockAccountsSQL, []any{[]int64{1}}, []string{"account_pkey"}},
		{calendarsSQL, []any{[]int64{1}}, []string{"account_pkey"}},
		{planAtSQL, []any{"p", time.Unix(1_800_000_000, 0)}, []string{"plan_version_unique"}},
		{plansUsedSQL, []any{[]string{"p"}}, []string{"account_plan", "account_of_next_plan"}},
		{overrideSetsSQL, []any{[]int64{1}}, []string{"override_set_pkey"}},
		{timelineTermsSQL, []any{[]int32{0}, []int64{1}, []time.Time{time.Unix(1_800_000_000, 0)}}, []string{"terms_of_tenant"}},
		{timelineVersionsSQL, []any{[]string{"p"}, time.Unix(1_800_000_000, 0), []int64{1}}, []string{"plan_version_unique", "plan_version_pkey"}},
		{updateAccountsSQL, []any{
			time.Unix(1_800_000_000, 0),
			[]string{"t"},
			[]string{"p"},
			[]string{"active"},
			[]string{"UTC"},
			[]int16{1},
			[]*string{nil},
			[]*time.Time{nil},
			[]int64{0},
			[]*string{nil},
			[]bool{true},
		}, []string{"account_tenant_unique"}},
		{insertTermsSQL, []any{[]string{"t"}}, []string{"account_tenant_unique"}},
		{settleSwitchesSQL, []any{[]string{"p"}, time.Unix(1_800_000_000, 0)}, []string{"account_plan", "account_pkey"}},
	} {
		plan := explain(t, conn, test.sql, test.args...)
		for _, index := range test.indexes {
			if !strings.Contains(plan, index) {
				t.Errorf("the plan does not use %s:\n%s\n%s", index, test.sql, plan)
			}
		}
	}
}

// Every list reads its page in the order of an index, whatever it is filtered by: it
// sorts nothing, and a filter has an index of its own.
func TestListsAreReadInTheOrderOfAnIndex(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Owner(t)
	yes, no := true, false
	at := time.Unix(1_800_000_000, 0)
	page := Page{After: "b", Limit: 10}
	for _, test := range []struct {
		list  *list
		index string
	}{
		{TenantQuery{Page: page}.list(), "account_tenant_unique"},
		{TenantQuery{Page: page, Prefix: "c"}.list(), "account_tenant_unique"},
		{TenantQuery{Page: page, Plan: "p"}.list(), "account_of_plan"},
		{TenantQuery{Page: page, Plan: "p", Prefix: "c"}.list(), "account_of_plan"},
		{TenantQuery{Page: page, Plan: "p", Prefix: "c"}.list(), "account_of_next_plan"},
		{TenantQuery{Page: page, Status: StatusClosed}.list(), "account_of_status"},
		{KeyQuery{Page: page}.list(), "api_key_pkey"},
		{KeyQuery{Page: page, Tenant: "t"}.list(), "api_key_tenant"},
		{KeyQuery{Page: page, Revoked: &no}.list(), "api_key_good"},
		{KeyQuery{Page: page, Revoked: &yes}.list(), "api_key_revoked"},
		{KeyQuery{Page: page, Scope: KeyDecide}.list(), "api_key_decide"},
		{KeyQuery{Page: page, Scope: KeyRead}.list(), "api_key_read"},
		{KeyQuery{Page: page, Scope: KeyAudit}.list(), "api_key_audit"},
		{KeyQuery{Page: page, Scope: KeyAdmin}.list(), "api_key_admin"},
		{RecordQuery{}.list(), "config_change_at"},
		{RecordQuery{From: at, To: at.Add(1), AfterAt: at, AfterID: 7}.list(), "config_change_at"},
		{RecordQuery{Ascending: true, AfterAt: at, AfterID: 7}.list(), "config_change_at"},
		{RecordQuery{Object: ObjectPlan, AfterAt: at, AfterID: 7}.list(), "config_change_object"},
		{RecordQuery{Name: "p", AfterAt: at, AfterID: 7, Ascending: true}.list(), "config_change_name"},
		{RecordQuery{By: "b", From: at}.list(), "config_change_by"},
	} {
		plan := explain(t, conn, test.list.sql.String(), test.list.args...)
		if !strings.Contains(plan, test.index) || strings.Contains(plan, "Sort  (") {
			t.Errorf("the plan sorts or does not use %s:\n%s\n%s", test.index, test.list.sql.String(), plan)
		}
	}
}

// explain returns the plan of a statement where an index is used if there is one.
func explain(t *testing.T, conn *pgxpool.Pool, sql string, args ...any) string {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // it wrote nothing
	if _, err := tx.Exec(t.Context(), "set local enable_seqscan = off; set local enable_bitmapscan = off"); err != nil {
		t.Fatal(err)
	}
	lines, err := collect(t.Context(), tx, pgx.RowTo[string], "explain "+sql, args...)
	if err != nil {
		t.Fatalf("explain %s: %v", sql, err)
	}
	return strings.Join(lines, "\n")
}

// changedTenants makes a database of 10,000 changes of tenants: a third of them of t0, the
// others of hundreds.
func changedTenants(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	db.Exec(t, `insert into quotad.config_change (changed_at, changed_by, object, name, after)
		select '2026-01-01'::timestamptz + n * interval '1 minute', 'test', 'tenant', 't' || n % 500 * (n % 3), '{"plan": "p"}'
		from generate_series(1, 10000) n`)
	db.Exec(t, "analyze quotad.config_change")
	return db
}

// A tenant of the past is one descent, however many changes there were, of it and of
// others.
func TestATenantOfThePastIsOneDescent(t *testing.T) {
	t.Parallel()
	db := changedTenants(t)
	conn, err := db.Service(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		pgtest.RunSQL(t, conn, "set plan_cache_mode = "+mode)
		for _, name := range []string{"t0", "t7", "nobody"} {
			plan := pgtest.Explain(t, conn, tenantAtSQL, "'"+name+"'", "'2026-01-03'")
			if got := plan.Buffers(); got > 12 {
				t.Errorf("%s, %s: %d buffers:\n%v", name, mode, got, plan)
			}
		}
	}
}

// Which plans a tenant had is read from its own changes alone, however many there were of
// others, and the plan that it has needs none of them.
func TestPlansOfATenantAreReadFromItsOwnChanges(t *testing.T) {
	t.Parallel()
	db := changedTenants(t)
	db.Exec(t, `insert into quotad.account (tenant, plan, status, timezone, billing_anchor, head_hash, created_at)
		values ('t0', 'q', 'active', 'UTC', 1, sha256('t0'), now())`)
	conn, err := db.Service(t).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
		pgtest.RunSQL(t, conn, "set plan_cache_mode = "+mode)
		for _, test := range []struct {
			sql  string
			args []string
		}{
			{hadPlanSQL, []string{"'t7'", "'p'"}},
			{hadPlanSQL, []string{"'t7'", "'other'"}},
			{hadPlanSQL, []string{"'nobody'", "'p'"}},
			{hadPlanSQL, []string{"'t0'", "'q'"}},
			{plansOfTenantSQL, []string{"''", "10", "'t7'"}},
			{plansOfTenantSQL, []string{"''", "10", "'nobody'"}},
		} {
			plan := pgtest.Explain(t, conn, test.sql, test.args...)
			if got := plan.Buffers(); got > 40 {
				t.Errorf("%s, %v: %d buffers:\n%v", mode, test.args, got, plan)
			}
		}
	}
}
