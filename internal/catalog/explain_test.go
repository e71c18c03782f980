package catalog

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

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
		{keysSQL, []any{"id", 10}, []string{"api_key_pkey"}},
		{tenantSQL, []any{"t"}, []string{"account_tenant_unique"}},
		{tenantsSQL, []any{"t", 10}, []string{"account_tenant_unique"}},
		{stateTenantsSQL, []any{[]string{"t"}}, []string{"account_tenant_unique"}},
		{lockAccountsSQL, []any{[]int64{1}}, []string{"account_pkey"}},
		{calendarsSQL, []any{[]int64{1}}, []string{"account_pkey"}},
		{plansUsedSQL, []any{[]string{"p"}}, []string{"account_plan"}},
		{recordsSQL, []any{int64(9), 10}, []string{"config_change_pkey"}},
	} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), "set local enable_seqscan = off"); err != nil {
			t.Fatal(err)
		}
		lines, err := collect(t.Context(), tx, pgx.RowTo[string], "explain "+test.sql, test.args...)
		if err != nil {
			t.Fatalf("explain %s: %v", test.sql, err)
		}
		plan := strings.Join(lines, "\n")
		for _, index := range test.indexes {
			if !strings.Contains(plan, index) {
				t.Errorf("the plan does not use %s:\n%s\n%s", index, test.sql, plan)
			}
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
