package quota

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/pgtest"
)

// fillHolds makes holds of many tenants, 40 each of which two are open.
func (w *world) fillHolds(t *testing.T) {
	t.Helper()
	w.db.Exec(t, `insert into quotad.account (tenant_id, tenant, plan, head_hash) overriding system value
		select n, 'many-' || n, 'agent', sha256('x') from generate_series(1000, 2000) n`)
	w.db.Exec(t, `insert into quotad.hold (tenant_id, hold_id, subject_id, state, meter_ids, units, first_seq, started_at, expires_at,
		  resolved_at, resolution_hash, answer)
		select n, ('00000000-0000-7000-8000-' || lpad(to_hex(n * 100 + h), 12, '0'))::uuid, 0,
		       case when h < 3 then 'open' else 'released' end, '{1}', '{5}', h,
		       timestamptz '2026-03-01' - h * interval '1 day', timestamptz '2026-03-02' - h * interval '1 day' + n * interval '1 ms',
		       case when h < 3 then null else timestamptz '2026-03-02' - h * interval '1 day' end,
		       case when h < 3 then null else sha256('x') end, case when h < 3 then null else 'x'::bytea end
		from generate_series(1000, 2000) n cross join generate_series(1, 40) h`)
	w.db.Exec(t, "analyze")
}

// Holds are read with every batch of a tenant that has some: however many were resolved,
// only its open ones and those that calls name are looked at.
func TestHoldsAreFoundByTheirIndexes(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, holdNoon, holdConfig)
	w.fillHolds(t)
	session := w.session(t)
	named := fmt.Sprintf("array['00000000-0000-7000-8000-%012x']::uuid[]", 1500*100+17)
	for _, c := range []struct {
		name       string
		sql        string
		literals   []string
		indexes    string
		buffersMax int64
	}{
		{"open and named", holdsSQL, []string{"'{1400,1401}'", "'{1500}'", named}, "hold_open hold_pkey", 40},
		{"expiring", strings.ReplaceAll(expiringSQL, "quotad.decision_clock()", "timestamptz '2026-03-01'"), []string{"10"}, "hold_expiring", 60},
		{"purged", purgeHoldsSQL, []string{"10"}, "hold_pkey hold_resolved_at", 120},
		{"originals", originalsSQL, []string{"'{0}'", "'{1400}'", "'{7}'"}, "hold_pkey", 80},
	} {
		plan := pgtest.Explain(t, session, c.sql, c.literals...)
		for _, n := range plan.All() {
			if n.Type == "Seq Scan" && n.Relation != "meter" && n.Relation != "clock" { // a handful of rows
				t.Errorf("%s: the plan has a %s on %q:\n%v", c.name, n.Type, n.Relation, plan)
			}
			if strings.HasPrefix(n.Index, "hold_") && !strings.Contains(c.indexes, n.Index) {
				t.Errorf("%s: holds are found by %s, want %s", c.name, n.Index, c.indexes)
			}
		}
		if got := plan.Buffers(); got > c.buffersMax {
			t.Errorf("%s: %d buffers, want at most %d:\n%v", c.name, got, c.buffersMax, plan)
		}
	}
}
