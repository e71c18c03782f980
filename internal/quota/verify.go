package quota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// A Verifier checks tenants one after another: what [ledger.VerifyTenant] checks, every
// kept level against a replay of the entries, and every kept answer against the entry it
// speaks of. It changes nothing and is not safe for concurrent use.
type Verifier struct {
	catalog *catalog.Store
	rules   map[int64]*rules // by plan version; nil for one that does not exist
}

// NewVerifier returns a verifier that finds plan versions in store.
func NewVerifier(store *catalog.Store) *Verifier {
	return &Verifier{catalog: store, rules: make(map[int64]*rules)}
}

// Verify checks one tenant as db sees it, which should be one repeatable-read
// transaction. progress, if not nil, is called for each entry. An unknown tenant is
// [ledger.ErrNotFound].
func (v *Verifier) Verify(ctx context.Context, db ledger.Querier, tenant string, progress func()) (ledger.Verification, error) {
	replayed := make(map[levelKey]level)
	result, err := ledger.VerifyTenant(ctx, db, tenant, catalog.GenesisHash(tenant), func(e *ledger.Entry) (string, error) {
		if progress != nil {
			progress()
		}
		return v.replay(ctx, db, replayed, e)
	})
	if err != nil {
		return result, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	if len(result.Findings) > 0 {
		return result, nil // what levels and answers should be is not known
	}
	levels, err := checkLevels(ctx, db, result.TenantID, replayed)
	if err != nil {
		return result, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	answers, err := checkAnswers(ctx, db, result.TenantID)
	if err != nil {
		return result, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	for _, detail := range append(levels, answers...) {
		result.Findings = append(result.Findings, ledger.Finding{Tenant: tenant, Detail: detail})
	}
	return result, nil
}

// rulesOf returns the rules of a plan version; nil if there is no such version.
func (v *Verifier) rulesOf(ctx context.Context, db ledger.Querier, versionID int64) (*rules, error) {
	if r, known := v.rules[versionID]; known {
		return r, nil
	}
	plan, err := v.catalog.PlanVersion(ctx, db, versionID)
	switch {
	case errors.Is(err, catalog.ErrNotFound):
		v.rules[versionID] = nil
	case err != nil:
		return nil, err
	default:
		v.rules[versionID] = compilePlan(plan, &Calendar{}) // levels follow no calendar
	}
	return v.rules[versionID], nil
}

// levelKey names a kept level as its table does.
type levelKey struct {
	limit     string
	subjectID int64
}

// replay takes an entry from the levels, by the rules of the plan version it names. It
// returns what is wrong with the entry, or "".
func (v *Verifier) replay(ctx context.Context, db ledger.Querier, levels map[levelKey]level, e *ledger.Entry) (string, error) {
	r, err := v.rulesOf(ctx, db, e.PlanVersionID)
	if err != nil {
		return "", err
	}
	if r == nil {
		return fmt.Sprintf("names plan version %d, which does not exist", e.PlanVersionID), nil
	}
	for _, l := range r.byMeter[e.Meter] {
		if e.Units == 0 || !l.Algorithm.KeepsLevel() {
			continue
		}
		key := levelKey{limit: l.Name}
		if l.Scope == catalog.ScopeSubject {
			key.subjectID = e.SubjectID
		}
		have := levels[key]
		view := View{NowMicros: e.At.UnixMicro(), State: have.stateFor(l, r.plan.Name)}
		if l.Mode == catalog.ModeShadow && !l.admits(l.rule.Used(view), 0, e.Units) {
			continue
		}
		levels[key] = level{
			State: l.rule.Take(view, e.Units), algorithm: l.Algorithm, plan: r.plan.Name, since: l.Since,
		}
	}
	return "", nil
}

// index: level_pkey. lock: none.
const verifyLevelsSQL = `
select l.limit_name, l.subject_id, l.algorithm, l.plan, l.since, l.units, l.remainder, l.denominator, l.at
from quotad.level l
where l.tenant_id = $1`

// checkLevels compares the kept levels of a tenant with the replayed ones.
func checkLevels(ctx context.Context, db ledger.Querier, tenantID int64, want map[levelKey]level) ([]string, error) {
	rows, err := db.Query(ctx, verifyLevelsSQL, tenantID)
	if err != nil {
		return nil, fmt.Errorf("read levels: %w", err)
	}
	var details []string
	var key levelKey
	var have level
	var at time.Time
	_, err = pgx.ForEachRow(rows, []any{
		&key.limit, &key.subjectID, &have.algorithm, &have.plan, &have.since,
		&have.Units, &have.Remainder, &have.Denominator, &at,
	}, func() error {
		have.AtMicros = at.UnixMicro()
		if expected, known := want[key]; !known {
			details = append(details, fmt.Sprintf("the level of limit %q is kept without an entry", key.limit))
		} else if expected != have {
			details = append(details, fmt.Sprintf("the level of limit %q is %d+%d/%d; the entries say %d+%d/%d", key.limit,
				have.Units, have.Remainder, have.Denominator, expected.Units, expected.Remainder, expected.Denominator))
		}
		delete(want, key)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read levels: %w", err)
	}
	for key := range want {
		details = append(details, fmt.Sprintf("the level of limit %q is missing", key.limit))
	}
	slices.Sort(details)
	return details, nil
}

// index: idempotency_pkey by tenant, entry_pkey. lock: none.
const verifyAnswersSQL = `
select i.key
from quotad.idempotency i
left join quotad.entry e on e.tenant_id = i.tenant_id and e.seq = i.first_seq and e.at = i.created_at
where i.tenant_id = $1
  and (e.request_id is null
    or e.request_id::text is distinct from convert_from(i.answer, 'UTF8')::json ->> 'request_id')
order by i.key
limit 10`

// checkAnswers finds kept answers that speak of no entry, or of another request's.
func checkAnswers(ctx context.Context, db ledger.Querier, tenantID int64) ([]string, error) {
	rows, err := db.Query(ctx, verifyAnswersSQL, tenantID)
	if err != nil {
		return nil, fmt.Errorf("read kept answers: %w", err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read kept answers: %w", err)
	}
	var details []string
	for _, key := range keys {
		details = append(details, fmt.Sprintf("the answer kept for idempotency key %q speaks of no entry", key))
	}
	return details, nil
}
