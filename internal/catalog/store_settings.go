package catalog

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The one row, no index; no lock.
const settingsSQL = `
select coalesce(default_plan, ''), default_plan_rate
from quotad.setting`

// The one row, no index. Waits for nobody, since changes are serial.
const updateSettingsSQL = `
update quotad.setting
set default_plan = nullif($1, ''), default_plan_rate = $2, catalog_version = $3`

// Settings returns what holds for the whole database.
func (s *Store) Settings(ctx context.Context) (Settings, error) { return readSettings(ctx, s.pool) }

func readSettings(ctx context.Context, q Querier) (Settings, error) {
	settings, err := one(ctx, q, scanSettings, settingsSQL)
	if err != nil {
		return Settings{}, fmt.Errorf("read the settings: %w", err)
	}
	return settings, nil
}

func scanSettings(row pgx.CollectableRow) (Settings, error) {
	var s Settings
	err := row.Scan(&s.DefaultPlan, &s.DefaultPlanRate)
	return s, err
}
