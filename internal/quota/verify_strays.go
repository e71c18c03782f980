package quota

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

// Reads every row once; the tables' keys begin with the tenant. lock: none.
const straysSQL = `
select x.name, x.tenant_id, x.rows
from (
  select 'entry' as name, e.tenant_id, count(*) as rows from quotad.entry e group by e.tenant_id
  union all
  select 'meter_total', t.tenant_id, count(*) from quotad.meter_total t group by t.tenant_id
  union all
  select 'subject', s.tenant_id, count(*) from quotad.subject s group by s.tenant_id
  union all
  select 'hold', h.tenant_id, count(*) from quotad.hold h group by h.tenant_id
  union all
  select 'idempotency', i.tenant_id, count(*) from quotad.idempotency i group by i.tenant_id
) x
where not exists (select from quotad.account a where a.tenant_id = x.tenant_id)
order by x.tenant_id, x.name
limit 100`

// Strays finds rows of tenants that have no account: no tenant's verification would
// look at them. At most 100 findings.
func (v *Verifier) Strays(ctx context.Context, db ledger.Querier) ([]ledger.Finding, error) {
	rows, err := db.Query(ctx, straysSQL)
	if err != nil {
		return nil, fmt.Errorf("look for rows without an account: %w", err)
	}
	var findings []ledger.Finding
	var table string
	var tenantID, count int64
	_, err = pgx.ForEachRow(rows, []any{&table, &tenantID, &count}, func() error {
		findings = append(findings, ledger.Finding{Detail: fmt.Sprintf(
			"table %s has %d rows of tenant number %d, which has no account", table, count, tenantID)})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for rows without an account: %w", err)
	}
	return findings, nil
}
