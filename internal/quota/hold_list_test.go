package quota

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/pgtest"
)

// fillHoldLists gives a tenant as many open holds as it may have and many more that have
// ended, among those of other tenants. It returns the number of the tenant.
func (w *world) fillHoldLists(t *testing.T, ended int) (tenantID int64) {
	t.Helper()
	const first, others = 1000, 400
	w.db.Exec(t, `insert into quotad.account (tenant_id, tenant, plan, head_hash) overriding system value
		select n, 'many-' || n, 'small', sha256('x') from generate_series($1::bigint, $1::bigint + $2::bigint) n`, first, others)
	fill := func(from, to, open, ended int) {
		w.db.Exec(t, `insert into quotad.hold (tenant_id, hold_id, subject_id, state, meter_ids, units, first_seq, started_at, expires_at,
			  resolved_at, resolution_hash, answer)
			select t, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, n % 7,
			       case when open then 'open' else 'released' end, '{1}', '{5}', n, '2026-03-19', '2026-03-20'::timestamptz + n * interval '1 ms',
			       case when open then null else '2026-03-19'::timestamptz end, case when open then null else sha256('x') end,
			       case when open then null else '{"charges":[{"meter":"calls","cost":0}]}'::bytea end
			from generate_series($1::bigint, $2::bigint) t, generate_series(1, $3::bigint + $4::bigint) n,
			     lateral (select n > $4::bigint as open) o`, from, to, open, ended)
	}
	fill(first, first, HoldsOpenMax, ended)
	fill(first+1, first+others, 10, 30)
	w.db.Exec(t, "analyze")
	return first
}

// A page of holds is a bounded walk of an index, however many the tenant ever had.
func TestHoldListsAreWalksOfTheirIndexes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	w.fillHoldLists(t, 9000)
	w.db.SetClock(t, time.Date(2026, 3, 19, 0, 0, 0, 0, time.UTC))
	session := w.session(t)
	const last = "'ffffffff-ffff-ffff-ffff-ffffffffffff'"
	for _, c := range []struct {
		name       string
		sql        string
		literals   []string
		index      string
		buffersMax int64
	}{
		{"tenant", holdTenantSQL, []string{"'many-1000'"}, "account_tenant_unique", 40},
		{"one", holdSQL, []string{"1000", last}, "hold_pkey", 10},
		{"open", openHoldsSQL, []string{"1000", "'2026-03-20'", last, "0", "101"}, "hold_open", 900},
		{"open of a subject", openHoldsSQL, []string{"1000", "'2026-03-20'", last, "3", "101"}, "hold_open", 1500},
		{"looked at", holdsLookedSQL, []string{"1000", last, "4999"}, "hold_pkey", 6000},
		{"ended", endedHoldsSQL, []string{"1000", last, "'00000000-0000-0000-0000-000000000000'", "'released'", "'2026-03-21'", "0", "101"}, "hold_pkey", 2500},
	} {
		plan := pgtest.Explain(t, session, c.sql, c.literals...)
		used := false
		for _, n := range plan.All() {
			if n.Type == "Seq Scan" && n.Relation == "hold" {
				t.Errorf("%s: the plan reads all holds:\n%v", c.name, plan)
			}
			used = used || n.Index == c.index
		}
		if got := plan.Buffers(); !used || got > c.buffersMax {
			t.Errorf("%s: %d buffers, want at most %d by %s:\n%v", c.name, got, c.buffersMax, c.index, plan)
		}
	}
}

// A page that finds little has looked at a bounded number of holds all the same, and says
// where the next one goes on: walking on finds every one, once.
func TestAPageOfEndedHoldsLooksAtABoundedNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	tenantID := w.fillHoldLists(t, 2*endedHoldsLooked)
	w.db.SetClock(t, time.Date(2026, 3, 19, 0, 0, 0, 0, time.UTC))
	w.db.Exec(t, `update quotad.hold set state = 'expired', resolution_hash = null, answer = null, charged = '{0}', expired_seq = 1
		where tenant_id = $1 and hold_id in (select hold_id from quotad.hold where tenant_id = $1 and state = 'released' order by hold_id limit 3)`, tenantID)
	reader := NewReader(w.db.Service(t), w.catalog)
	q := HoldQuery{Tenant: "many-1000", State: HoldExpired, Limit: 2}
	var pages []int
	found := map[uuid.UUID]bool{}
	for {
		page, err := reader.Holds(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, len(page.Holds))
		for _, h := range page.Holds {
			found[h.ID] = true
		}
		if page.Next == nil {
			break
		}
		q.After = *page.Next
	}
	if len(found) != 3 || len(pages) < 3 || pages[0] != 0 {
		t.Errorf("%d holds on pages of %v, want 3, and none on the first", len(found), pages)
	}
}
