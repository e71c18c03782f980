package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/pgtest"
)

// Whatever a bucket holds, its usage is two descents, of the tenant and of a subject
// alike, by plans that a pooled connection makes before and after statistics are there.
func TestABucketIsTwoDescentsWhateverItHolds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.journal(t, "first").write(t, draft{at: march, meter: "calls", subject: "user-1", units: 1})
	w.db.Exec(t, "analyze")
	busy := w.fill(t)
	conn, err := w.store.db.(*pgxpool.Pool).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	const days = 12
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			w.db.Exec(t, "analyze")
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			pgtest.RunSQL(t, conn, "set plan_cache_mode = "+mode)
			for subjectID := range 3 {
				var n, subjects, froms, tos, seqs, edges []string
				for day := range days {
					n, subjects = append(n, fmt.Sprint(day)), append(subjects, fmt.Sprint(subjectID))
					froms = append(froms, windowStart.AddDate(0, 0, day/2).Format(time.DateOnly))
					tos = append(tos, windowStart.AddDate(0, 0, day/2+1).Format(time.DateOnly))
					seqs, edges = append(seqs, "19000"), append(edges, []string{"null", "2026-03-12"}[day%2])
				}
				list := func(items []string) string { return "'{" + strings.Join(items, ",") + "}'" }
				repeated := func(item any) string {
					return list(strings.Split(strings.Repeat(fmt.Sprint(item)+",", days-1)+fmt.Sprint(item), ","))
				}
				plan := pgtest.Explain(t, conn, usageSQL, fmt.Sprint(busy), fmt.Sprint(w.meters["calls"]), list(n), list(subjects), list(froms), list(tos))
				checkBuffers(t, fmt.Sprintf("usage of subject %d, analyzed %t, %s", subjectID, analyzed, mode), plan, days*2*6+20)
				plan = pgtest.Explain(t, conn, totalsBeforeSQL, list(n), repeated(busy), repeated("calls"), list(subjects), list(tos), list(seqs), list(edges))
				checkBuffers(t, fmt.Sprintf("past of subject %d, analyzed %t, %s", subjectID, analyzed, mode), plan, days*2*8+20)
			}
		}
	}
}

func checkBuffers(t *testing.T, what string, plan pgtest.PlanNode, buffersMax int) {
	t.Helper()
	if got := int(plan.Buffers()); got > buffersMax {
		t.Errorf("%s: %d buffers, want at most %d:\n%v", what, got, buffersMax, plan)
	}
}

// The past of a busy meter is read backwards for as many entries as are asked for,
// wherever it lies; the newest use is passed on the way.
func TestThePastIsReadBackwards(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	busy := w.fill(t)
	conn, err := w.store.db.(*pgxpool.Pool).Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			w.db.Exec(t, "analyze")
		}
		for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
			pgtest.RunSQL(t, conn, "set plan_cache_mode = "+mode)
			for name, c := range map[string]struct{ sql, subject string }{
				"tenant": {pastOfTenantSQL, ""}, "subject": {pastOfSubjectSQL, ", 1"}, "nobody": {pastOfSubjectSQL, ", -1"},
			} {
				for _, at := range []string{"2026-03-12", "2026-05-01"} {
					plan := pgtest.Explain(t, conn, c.sql, fmt.Sprint(busy), "'calls'", "'"+at+"'", "99999", "100"+c.subject)
					// A page per entry at most, three per descent of a partition.
					checkBuffers(t, fmt.Sprintf("past of %s at %s, analyzed %t, %s", name, at, analyzed, mode), plan, 100+2*3*6+20)
				}
			}
		}
	}
}
