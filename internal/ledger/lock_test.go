package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
)

// A batch must not wait for one tenant while it holds the lock of another: that is how
// deadlocks begin.
func TestAccountsLockedElsewhereAreLeftOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.db.SetClock(t, march)
	j := w.journal(t, "acme")
	j.write(t, draft{at: march, meter: "calls", subject: "user-1", units: 3})
	w.db.Exec(t, `update quotad.account set status = 'suspended', timezone = 'Asia/Jakarta', billing_anchor = 31,
		next_plan = 'max', next_plan_at = '2026-04-01', override_set_id = 7, terms_at = '2026-03-01', calendar_past = '[{"until": "2026-01-01T00:00:00Z"}]' where tenant = 'acme'`)
	w.journal(t, "busy")
	w.journal(t, "globex")
	w.journal(t, "not asked for")
	w.db.Hold(t, "busy")
	var got []Account
	send(t, w.session, func(b *pgx.Batch) {
		QueueLock(b, []string{"globex", "busy", "nobody", "acme"}, false, func(a Account) {
			a.LastAt, a.NextPlanAt, a.TermsAt = a.LastAt.UTC(), a.NextPlanAt.UTC(), a.TermsAt.UTC()
			got = append(got, a)
		})
	})
	slices.SortFunc(got, func(a, b Account) int { return int(a.TenantID - b.TenantID) })
	acme := j.account
	acme.Plan, acme.Status, acme.Timezone, acme.BillingAnchor = "pro", "suspended", "Asia/Jakarta", 31
	acme.CalendarPast = []byte(`[{"until": "2026-01-01T00:00:00Z"}]`)
	acme.NextPlan, acme.NextPlanAt = "max", time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	acme.OverrideSetID, acme.TermsAt = 7, time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	globex := Account{
		TenantID: acme.TenantID + 2, Tenant: "globex", Plan: "pro", Status: "active", Timezone: "UTC", BillingAnchor: 1,
		NextPlanAt: epoch(), TermsAt: epoch(), LastAt: epoch(), HeadHash: genesis("globex"),
	}
	if diff := cmp.Diff([]Account{acme, globex}, got); diff != "" {
		t.Errorf("accounts (-want +got):\n%s", diff)
	}
}

// What a batch locked, a second one skips until the first has ended.
func TestALockLastsUntilItsTransactionEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.journal(t, "acme")
	second := w.connect(t)
	lock := func(b *pgx.Batch) (locked *int) {
		pg.Begin(b)
		locked = new(int)
		QueueLock(b, []string{"acme"}, false, func(Account) { *locked++ })
		return locked
	}
	var queries pgx.Batch
	first := lock(&queries)
	if err := w.session.Send(t.Context(), &queries, bound); err != nil || *first != 1 {
		t.Fatalf("the first got %d, %v, want 1", *first, err)
	}
	for _, want := range []int{0, 1} {
		var queries pgx.Batch
		got := lock(&queries)
		if err := second.Commit(t.Context(), &queries, bound); err != nil || *got != want {
			t.Errorf("the second got %d, %v, want %d", *got, err, want)
		}
		w.session.Rollback(t.Context(), bound)
	}
}

// Who waited for a lock sees what its holder committed: sequence and head of the chain
// must be the newest ones, or two entries would share a number.
func TestWaitingForALockSeesWhatItsHolderCommitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.journal(t, "acme")
	outsider := w.db.Hold(t, "acme")
	if _, err := outsider.Exec(t.Context(), "update quotad.account set seq = 5, head_hash = sha256('x') where tenant = 'acme'"); err != nil {
		t.Fatal(err)
	}
	waiter := w.connect(t)
	var got []Account
	var versions []int64
	locked := make(chan error, 1)
	go func() {
		var queries pgx.Batch
		pg.Begin(&queries)
		queries.Queue("set local lock_timeout = '30s'") // a loaded machine must not end the wait
		QueueLock(&queries, []string{"acme"}, true, func(a Account) { got = append(got, a) })
		QueueEdges(&queries, nil, nil, func(c Clock) { versions = append(versions, c.CatalogVersion) }, nil)
		locked <- waiter.Commit(context.WithoutCancel(t.Context()), &queries, bound)
	}()
	pgtest.AwaitWaiter(t, w.db, locked)
	w.db.Exec(t, "update quotad.catalog_version set version = 9")
	if err := outsider.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-locked; err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0].Seq != 5 || got[0].HeadHash != genesis("x") {
		t.Errorf("accounts = %+v, want one with seq 5 and the new head", got)
	}
	if diff := cmp.Diff([]int64{9}, versions); diff != "" {
		t.Errorf("the catalog's version, read after the lock (-want +got):\n%s", diff)
	}
}

func TestWaitingForALockEndsInItsTimeout(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.journal(t, "acme")
	w.db.Hold(t, "acme")
	var queries pgx.Batch
	pg.Begin(&queries)
	QueueLock(&queries, []string{"acme"}, true, func(a Account) { t.Errorf("locked %+v", a) })
	err := w.session.Send(t.Context(), &queries, bound)
	if pg.Code(err) != pg.CodeLockNotAvailable || w.session.Closed() {
		t.Errorf("Send: %v, closed = %t, want code %s on an open session", err, w.session.Closed(), pg.CodeLockNotAvailable)
	}
}

func TestExistingTenantsAreNamedWithoutTheirLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.journal(t, "acme")
	w.journal(t, "globex")
	w.db.Hold(t, "acme")
	var got []string
	send(t, w.session, func(b *pgx.Batch) {
		QueueExisting(b, []string{"acme", "nobody"}, func(tenant string) { got = append(got, tenant) })
	})
	if diff := cmp.Diff([]string{"acme"}, got); diff != "" {
		t.Errorf("tenants (-want +got):\n%s", diff)
	}
}

// A decision takes its instant some time before others can see it. What is read of the
// past waits for that, unless the newest entry says that nothing older can come.
func TestThePastIsSettledBeforeItIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := w.journal(t, "acme")
	j.write(t, draft{at: march, meter: "calls", units: 1})
	outsider := w.db.Hold(t, "acme")
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	if _, err := w.store.Settle(ctx, "acme", march.Add(-1)); err != nil {
		t.Errorf("the past before the newest entry: %v, want no wait", err)
	}
	settled := make(chan error, 1)
	go func() {
		now, err := w.store.Settle(t.Context(), "acme", march)
		if err == nil && now.Before(april) {
			err = fmt.Errorf("now is %v, want that of the decision that was waited for, %v, or later", now, april)
		}
		settled <- err
	}()
	pgtest.AwaitWaiter(t, w.db, settled)
	if _, err := outsider.Exec(t.Context(), "update quotad.account set last_at = $1 where tenant = 'acme'", april); err != nil {
		t.Fatal(err)
	}
	if err := outsider.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-settled; err != nil {
		t.Error(err)
	}
	if _, err := w.store.Settle(t.Context(), "nobody", time.Time{}); !errors.Is(err, ErrNotFound) {
		t.Errorf("Settle of no tenant = %v, want ErrNotFound", err)
	}
}
