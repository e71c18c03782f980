package catalog

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// A list is a statement made of the conditions that its filters ask for, each an SQL
// constant with the text "$n" where its value goes: so that a filter that is not given
// is not in the statement, and the planner knows which index serves it.
type list struct {
	sql  strings.Builder
	args []any
}

func (l *list) add(sql string, args ...any) {
	for _, arg := range args {
		l.args = append(l.args, arg)
		sql = strings.Replace(sql, "$n", fmt.Sprintf("$%d", len(l.args)), 1)
	}
	l.sql.WriteString(sql)
}

// when adds a condition if its filter is given.
func (l *list) when(given bool, sql string, args ...any) {
	if given {
		l.add(sql, args...)
	}
}

func collectList[T any](ctx context.Context, q Querier, scan pgx.RowToFunc[T], l *list) ([]T, error) {
	return collect(ctx, q, scan, l.sql.String(), l.args...)
}

// A TenantQuery selects tenants. Zero fields select everything.
type TenantQuery struct {
	Page
	Plan   string
	Status Status
	Prefix string // of the name
}

// Matches reports whether the query selects t, on whatever page.
func (q TenantQuery) Matches(t Tenant) bool {
	return (q.Plan == "" || q.Plan == t.Plan) && (q.Status == "" || q.Status == t.Status) &&
		strings.HasPrefix(t.Name, q.Prefix)
}

// Walked in the order of names, from the cursor, or from where names with the prefix
// begin, to where they end: account_tenant_unique, or account_of_status with a status; with
// a plan, account_of_plan and account_of_next_plan side by side, for tenants whose plan it
// is, and for those whose next plan it was until its time came. No lock.
const (
	tenantsSQL = tenantRows + `
where true`
	tenantsWithPlanSQL = `
with now as materialized (
  select quotad.decision_clock() as at
)` + tenantColumns + `
from (
  (select a.*
  from quotad.account a, now
  where a.plan = $n and a.tenant_id > 0 and (a.next_plan_at is null or a.next_plan_at > greatest(now.at, a.last_at))`
	tenantsWithNextPlanSQL = `
  order by a.tenant)
  union all
  (select a.*
  from quotad.account a, now
  where a.next_plan = $n and a.next_plan_at <= greatest(now.at, a.last_at)`
	tenantsOfPlanSQL = `
  order by a.tenant)
) a` + tenantOverrides
	tenantsOfStatusSQL = ` and a.status = $n and a.tenant_id > 0`
	tenantsAfterSQL    = ` and a.tenant > $n`
	tenantsFromSQL     = ` and a.tenant >= $n`
	tenantsBelowSQL    = ` and a.tenant < $n`
	tenantsPageSQL     = `
order by a.tenant
limit $n`
)

func (q TenantQuery) list() *list {
	l := &list{}
	if q.Plan == "" {
		l.add(tenantsSQL)
		q.conditions(l)
	} else {
		l.add(tenantsWithPlanSQL, q.Plan)
		q.conditions(l)
		l.add(tenantsWithNextPlanSQL, q.Plan)
		q.conditions(l)
		l.add(tenantsOfPlanSQL)
	}
	l.add(tenantsPageSQL, q.limit()+1)
	return l
}

// conditions adds those that any list of tenants is filtered by.
func (q TenantQuery) conditions(l *list) {
	l.add(tenantsAfterSQL, q.After)
	l.when(q.Status != "", tenantsOfStatusSQL, string(q.Status))
	l.when(q.Prefix > q.After, tenantsFromSQL, q.Prefix)
	if beyond := beyondPrefix(q.Prefix); beyond != "" {
		l.add(tenantsBelowSQL, beyond)
	}
}

// beyondPrefix returns the first text after all that begin with prefix, in the order of
// bytes, which is that of code points; "" if there is no such text.
func beyondPrefix(prefix string) string {
	runes := []rune(prefix)
	for i, r := range slices.Backward(runes) {
		if r++; r >= 0xD800 && r <= 0xDFFF {
			r = 0xE000 // surrogates are in no text
		}
		if r <= utf8.MaxRune {
			return string(append(runes[:i], r))
		}
	}
	return ""
}

// Tenants returns tenants in the order of their names, and the cursor of the next
// page; "" if this is the last.
func (s *Store) Tenants(ctx context.Context, q TenantQuery) (tenants []Tenant, next string, err error) {
	tenants, err = collectList(ctx, s.pool, scanTenant, q.list())
	if err != nil {
		return nil, "", fmt.Errorf("list tenants: %w", err)
	}
	tenants, next = cut(tenants, q.Page, func(t Tenant) string { return t.Name })
	return tenants, next, nil
}

// A KeyQuery selects keys. Zero fields select everything.
type KeyQuery struct {
	Page
	Tenant  string
	Scope   KeyScope // one of those that the key names
	Revoked *bool
}

// Walked in the order of ids from the cursor: api_key_pkey, or by what is asked for
// api_key_tenant, api_key_good, api_key_revoked, or the index of the scope. No lock.
const (
	keysSQL = `
select key_id, env, secret_hash, scopes, coalesce(tenant, ''), name,
  created_at, created_by, revoked_at, coalesce(revoked_by, '')
from quotad.api_key
where key_id > $n`
	keysOfTenantSQL = ` and tenant = $n`
	keysGoodSQL     = ` and revoked_at is null`
	keysRevokedSQL  = ` and revoked_at is not null`
	keysDecideSQL   = ` and scopes @> array['decide']`
	keysReadSQL     = ` and scopes @> array['read']`
	keysAuditSQL    = ` and scopes @> array['audit']`
	keysAdminSQL    = ` and scopes @> array['admin']`
	keysPageSQL     = `
order by key_id
limit $n`
)

func (q KeyQuery) list() *list {
	l := &list{}
	l.add(keysSQL, q.After)
	l.when(q.Tenant != "", keysOfTenantSQL, q.Tenant)
	l.when(q.Revoked != nil && !*q.Revoked, keysGoodSQL)
	l.when(q.Revoked != nil && *q.Revoked, keysRevokedSQL)
	switch q.Scope { // each has an index of its own, which only a constant finds
	case KeyDecide:
		l.add(keysDecideSQL)
	case KeyRead:
		l.add(keysReadSQL)
	case KeyAudit:
		l.add(keysAuditSQL)
	case KeyAdmin:
		l.add(keysAdminSQL)
	}
	l.add(keysPageSQL, q.limit()+1)
	return l
}

// Keys returns keys in the order of their ids, revoked ones too, and the cursor of
// the next page; "" if this is the last.
func (s *Store) Keys(ctx context.Context, q KeyQuery) (keys []Key, next string, err error) {
	stored, err := collectList(ctx, s.pool, scanKey, q.list())
	if err != nil {
		return nil, "", fmt.Errorf("list keys: %w", err)
	}
	stored, next = cut(stored, q.Page, func(k storedKey) string { return k.ID })
	for _, k := range stored {
		keys = append(keys, k.Key)
	}
	return keys, next, nil
}
