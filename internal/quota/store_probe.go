package quota

import (
	"github.com/jackc/pgx/v5"
)

// commitWaitMin is how long a commit waits for its standby when decisions cannot go on.
const commitWaitMin = "1 second"

// A view of the server's processes, no index. A login sees its own; those of other
// instances tell the same.
const commitsWaitSQL = `
select exists (
  select from pg_catalog.pg_stat_activity a
  where a.usename = current_user and a.wait_event = 'SyncRep'
    and a.state_change < pg_catalog.clock_timestamp() - interval '` + commitWaitMin + `')`

// queueCommitsWait queues asking whether commits of this login wait for a standby.
func queueCommitsWait(b *pgx.Batch, waiting *bool) {
	b.Queue(commitsWaitSQL).QueryRow(func(row pgx.Row) error { return row.Scan(waiting) })
}

// Locks the one row of catalog_version, no index, as lightly as it can: that needs a
// server that takes writes, and makes a commit that has to reach its disk and its
// standby. A change of the configuration may hold the row; then nothing is waited for.
const probeSQL = `
select
from quotad.catalog_version
for key share skip locked`

func queueProbe(b *pgx.Batch) { b.Queue(probeSQL) }

// Reads nothing, no index, no lock: a server that is there answers it at once.
const pingSQL = `select`

func queuePing(b *pgx.Batch) { b.Queue(pingSQL) }
