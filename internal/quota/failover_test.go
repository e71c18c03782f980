package quota

import (
	"testing"

	"github.com/quotad/quotad/internal/pgtest"
)

// A failover to a standby that lacks the last change of the configuration takes it back, and
// the next change gets its numbers: those of versions, of plans and of overrides. An
// instance that has seen the lost one decides by the one there is.
func TestAChangeThatAFailoverTookBackIsForgotten(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, termsStart, bucketConfig(5, "1/1s"))
	w.tenant(t, "plan: pro")
	faults := &pgtest.Faults{}
	e := w.faulty(t, faults)
	wantSize := func(when string, want int64) {
		t.Helper()
		if d := mustDecide(t, e, tokens(0)); d.Limits[0].Limit != want {
			t.Errorf("%s the limit is %d, want %d", when, d.Limits[0].Limit, want)
		}
	}
	wantSize("at first", 5)
	w.apply(t, bucketConfig(100, "1/1s"))
	wantSize("after the change", 100)
	w.db.Exec(t, `
begin;
set local session_replication_role = replica;
delete from quotad.entry where plan_version_id = 2;
update quotad.account set seq = 1, head_hash = (select hash from quotad.entry where seq = 1);
update quotad.meter_total set calls = calls - 1;
update quotad.plan set plan_version_id = 1, catalog_version = catalog_version - 1;
delete from quotad.plan_version where plan_version_id = 2;
update quotad.catalog_version set version = version - 1;
alter table quotad.plan_version alter column plan_version_id restart with 2;
commit`)
	faults.CutAll()
	w.apply(t, bucketConfig(7, "1/1s"))
	wantSize("after a failover and another change", 7)
	w.verify(t)
}
