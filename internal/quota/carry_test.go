package quota

import (
	"testing"
	"time"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
)

// A plan's version is dated before it is committed, but a decision may find it committed
// and have an earlier instant: the instant was read first. It cannot have been in force
// before, so a hold that has ended meanwhile does not let levels fill at its rate, and
// what a replay of the entries makes of them stays the same.
func TestAVersionThatIsDatedAfterADecisionIsInForceFromThereOnly(t *testing.T) {
	t.Parallel()
	const second = 1_000_000
	plan := func(id int64, refill int64) *catalog.Plan {
		l := bucketLimit("pool", "calls", 100, catalog.Rate{Units: refill, PerMicros: second})
		l.Scope, l.Since = catalog.ScopeTenant, 1
		return &catalog.Plan{Name: "p", Version: int32(id), VersionID: id, Limits: []catalog.Limit{l}}
	}
	before, now := plan(1, 1), plan(2, 10)
	timeline := catalog.NewTimeline([]catalog.Terms{{Plan: "p"}}, []catalog.PlanVersion{
		{Plan: *before, CreatedAt: time.UnixMicro(0)},
		{Plan: *now, CreatedAt: time.UnixMicro(21 * second)},
	}, nil)
	b := newBook(compilePlan(now, &calendar.Calendar{}), nil)
	b.nowMicros = 20 * second
	b.holds = []*hold{{expiresMicros: 15 * second}}
	l := b.rules.byMeter["calls"][0]
	kept := level{State: State{Units: 5, Denominator: second, AtMicros: 10 * second}, versionID: 1}
	b.levels[limitKey{limit: l}] = &kept
	alone := kept
	if err := alone.carry(timeline, "pool", b.inForce()); err != nil {
		t.Fatal(err)
	}
	if err := b.carry(timeline); err != nil {
		t.Fatal(err)
	}
	have, want := l.rule.Used(View{NowMicros: b.nowMicros, State: kept.State}), l.rule.Used(View{NowMicros: b.nowMicros, State: alone.State})
	if have != want || want != 100-15 {
		t.Errorf("the level has used %d beside a hold that ended and %d without one, want 85: ten seconds at one a second", have, want)
	}
	if ended := b.endedAt(b.holds[0]); ended != b.nowMicros {
		t.Errorf("the expiry is dated %d, under a version that was not in force then; want %d", ended, b.nowMicros)
	}
}
