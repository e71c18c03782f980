package catalog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// defaultPlanActor is who the history says has made a tenant of the default plan.
const defaultPlanActor = "default_plan"

// ErrNoDefaultPlan says that an unknown tenant stays unknown.
var ErrNoDefaultPlan = errors.New("there is no default plan")

// A CreationLimitedError says that the default plan has made as many tenants as it may
// within this minute.
type CreationLimitedError struct {
	RetryAfter time.Duration // until the next minute
}

// Error says when there is room again.
func (e *CreationLimitedError) Error() string {
	return fmt.Sprintf("the default plan may make no more tenants for %s", e.RetryAfter)
}

// account_tenant_unique finds the row; the others are one row each. No lock: a flood
// of unknown tenants beyond the bound must not queue for the lock that changes need.
const creationSQL = `
select exists (
    select
    from quotad.account
    where tenant = $1),
  coalesce(s.default_plan, ''), s.default_plan_rate,
  case when c.minute = date_trunc('minute', now.at, 'UTC') then c.made else 0 end,
  date_trunc('minute', now.at, 'UTC'),
  now.at
from quotad.setting s
cross join quotad.tenant_creation c
cross join (
  select quotad.decision_clock() as at
  offset 0
) now`

// The one row, no index; it is locked by the lock of lockVersionSQL already.
const countCreationSQL = `
update quotad.tenant_creation
set minute = $1, made = $2`

// creation is what decides whether the default plan makes a tenant.
type creation struct {
	exists   bool
	settings Settings
	made     int // in this minute
	minute   time.Time
	at       time.Time
}

func readCreation(ctx context.Context, q Querier, tenant string) (creation, error) {
	return one(ctx, q, func(row pgx.CollectableRow) (c creation, err error) {
		err = row.Scan(&c.exists, &c.settings.DefaultPlan, &c.settings.DefaultPlanRate, &c.made, &c.minute, &c.at)
		return c, err
	}, creationSQL, tenant)
}

// refusal is why no account is to be made; nil if one is, or if it is there already.
func (c creation) refusal() error {
	switch {
	case c.exists:
		return nil
	case c.settings.DefaultPlan == "":
		return ErrNoDefaultPlan
	case c.made >= c.settings.DefaultPlanRate:
		return &CreationLimitedError{RetryAfter: c.minute.Add(time.Minute).Sub(c.at)}
	}
	return nil
}

// CreateByDefault makes the account of a tenant that has none, with the default plan,
// and does nothing if the tenant has one. It is serial with all changes of the
// configuration, so of callers at the same time, anywhere, one makes the account and
// the others find it; and what it counts against its bound is exact. It raises no
// version: no instance has anything to learn. It returns [ErrNoDefaultPlan], or a
// *[CreationLimitedError] once the bound of this minute is met.
func (s *Store) CreateByDefault(ctx context.Context, tenant string) error {
	seen, err := readCreation(ctx, s.pool, tenant)
	if err == nil && !seen.exists && seen.refusal() == nil {
		err = s.inTurn(ctx, func(tx pgx.Tx, _ int64) (keep bool, err error) {
			if seen, err = readCreation(ctx, tx, tenant); err != nil || seen.exists || seen.refusal() != nil {
				return false, err
			}
			return true, create(ctx, tx, tenant, seen)
		})
	}
	if err != nil {
		return fmt.Errorf("create tenant %q: %w", tenant, err)
	}
	return seen.refusal()
}

func create(ctx context.Context, tx pgx.Tx, tenant string, c creation) error {
	fresh := Tenant{
		Name: tenant, Plan: c.settings.DefaultPlan, Status: StatusActive, Timezone: "UTC", BillingAnchor: 1,
	}
	batch := &pgx.Batch{}
	batch.Queue(countCreationSQL, c.minute, c.made+1)
	made := accounts{termsOf: []string{tenant}}
	made.fresh.add(fresh, nil, true)
	made.queue(batch, defaultPlanActor, c.at)
	queueChanges(batch, c.at, defaultPlanActor, []Change{specChange(ObjectTenant, tenant, nil, fresh.Spec())})
	return tx.SendBatch(ctx, batch).Close()
}
