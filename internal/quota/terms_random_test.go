package quota

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pgtest"
)

// termsConfig draws plans whose limits have few names, so that levels often go on.
func termsConfig(random *rand.Rand) string {
	var b strings.Builder
	b.WriteString("meters: {tokens: {unit: token}, calls: {unit: call}}\nplans:\n")
	for _, plan := range []string{"a", "b", "c"} {
		fmt.Fprintf(&b, "  %s:\n    limits:\n      - {name: window, meter: calls, algorithm: sliding_log, limit: %d, window: 1m}\n", plan, 20+random.IntN(40))
		for _, name := range []string{"pool", "mine"} {
			scope := map[string]string{"pool": "tenant", "mine": "subject"}[name]
			switch random.IntN(8) {
			case 0: // there is none
			case 1:
				fmt.Fprintf(&b, "      - {name: %s, meter: tokens, algorithm: leaky_bucket, rate: %d/%ds, queue: %d, scope: %s}\n", name, 1+random.IntN(9), 1+random.IntN(9), 5+random.IntN(40), scope)
			case 2:
				fmt.Fprintf(&b, "      - {name: %s, meter: tokens, algorithm: gcra, rate: %d/%ds, burst: %d, scope: %s}\n", name, 1+random.IntN(9), 1+random.IntN(9), 5+random.IntN(40), scope)
			case 3:
				fmt.Fprintf(&b, "      - {name: %s, meter: tokens, algorithm: sliding_counter, limit: %d, window: 1m, scope: %s}\n", name, 5+random.IntN(40), scope)
			default:
				mode := []string{"enforce", "enforce", "shadow", "off"}[random.IntN(4)]
				fmt.Fprintf(&b, "      - {name: %s, meter: tokens, algorithm: token_bucket, capacity: %d, refill: %d/%ds, scope: %s, mode: %s}\n", name, 5+random.IntN(40), random.IntN(9), 1+random.IntN(9), scope, mode)
			}
		}
	}
	return b.String()
}

// drawTerms draws what a tenant is to have.
func drawTerms(random *rand.Rand, now time.Time) string {
	plans := random.Perm(3)
	name := func(i int) string { return string(rune('a' + plans[i])) }
	fields := "plan: " + name(0)
	switch random.IntN(3) {
	case 0:
		fields += ", plan_from: next_period"
	case 1:
		fields += fmt.Sprintf(", next_plan: %s, next_plan_at: %s", name(1), now.Add(time.Duration(random.IntN(60_000))*time.Millisecond).Format(time.RFC3339Nano))
	}
	switch random.IntN(3) {
	case 0:
		fields += ", overrides: []"
	case 1:
		at := now.Add(time.Duration(random.IntN(60_000)-20_000) * time.Millisecond)
		fields += ", overrides: ["
		for i := range 3 {
			until := at.Add(time.Duration(1+random.IntN(20_000)) * time.Millisecond)
			fields += fmt.Sprintf("{name: window, limit: %d, from: %s, until: %s, reason: r%d}, ", random.IntN(90), at.Format(time.RFC3339Nano), until.Format(time.RFC3339Nano), i)
			at = until
		}
		fields += "]"
	}
	return fields
}

// Whatever is changed and whenever: every level, window and entry follows from the ledger,
// explanations come out, and the past of limits is what was said.
func TestEverythingFollowsAcrossChangesOfTerms(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorldAt(t, termsStart.Add(11*time.Hour+58*time.Minute), termsConfig(random))
	w.tenant(t, "plan: a")
	engines := []*Engine{w.engine(t, nil), w.engine(t, nil)}
	x := NewReader(w.db.Service(t), w.catalog)
	now := func() (at time.Time) {
		if err := w.db.Owner(t).QueryRow(t.Context(), "select quotad.decision_clock()").Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at.UTC()
	}
	var said []Decision
	for i := range pgtest.Rounds(160) {
		w.db.AdvanceClock(t, time.Duration(1+random.IntN(6_000_000))*time.Microsecond)
		switch random.IntN(6) {
		case 0:
			w.apply(t, termsConfig(random))
		case 1:
			w.tenant(t, drawTerms(random, now()))
		case 2:
			w.overrideLevels(t, random, now())
		}
		e := engines[random.IntN(2)]
		for range random.IntN(3) {
			r := Request{Tenant: "acme", Subject: fmt.Sprintf("u%d", random.IntN(2)), Charges: []Charge{
				{Meter: "calls", Cost: random.Int64N(6)}, {Meter: "tokens", Cost: random.Int64N(9)},
			}}
			mustDecide(t, e, r)
		}
		w.db.AdvanceClock(t, time.Microsecond)
		limits, err := e.Limits(t.Context(), "acme", []string{"", "u0", "u1"}[i%3])
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, limits)
		w.db.AdvanceClock(t, time.Microsecond)
	}
	w.verify(t)
	for _, e := range w.entries(t, "acme") {
		explained, err := x.ExplainEntry(t.Context(), "acme", e.Seq)
		if err != nil || !explained.Consistent {
			t.Errorf("entry %d explained: %+v, %v", e.Seq, explained, err)
		}
	}
	for _, then := range said {
		got, err := x.LimitsAt(t.Context(), "acme", then.Subject, then.DecidedAt)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(then, got); diff != "" {
			t.Errorf("limits at %s (-said then +said of it):\n%s", then.DecidedAt, diff)
		}
	}
}

// overrideLevels overrides a number of each level that the tenant's plan has now.
func (w *world) overrideLevels(t testing.TB, random *rand.Rand, now time.Time) {
	t.Helper()
	tenant, err := w.catalog.Tenant(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := w.catalog.Plan(t.Context(), tenant.Plan)
	if err != nil {
		t.Fatal(err)
	}
	fields := "plan: " + tenant.Plan + ", overrides: ["
	for _, l := range plan.Limits {
		number := map[catalog.Algorithm]string{
			catalog.TokenBucket: fmt.Sprintf("capacity: %d, refill: %d/3s", 1+random.IntN(60), random.IntN(20)),
			catalog.GCRA:        fmt.Sprintf("rate: %d/7s", 1+random.IntN(20)),
			catalog.LeakyBucket: fmt.Sprintf("queue: %d", 1+random.IntN(60)),
		}[l.Algorithm]
		if number == "" {
			continue
		}
		from := now.Add(time.Duration(random.IntN(20_000)-5_000) * time.Millisecond)
		fields += fmt.Sprintf("{name: %s, %s, from: %s, until: %s, reason: r}, ", l.Name, number, from.Format(time.RFC3339Nano),
			from.Add(time.Duration(1+random.IntN(20_000))*time.Millisecond).Format(time.RFC3339Nano))
	}
	w.tenant(t, fields+"]")
}

// Decisions go on while a change is being made, under what was before, though it is dated
// before them: every level follows from its entries all the same.
func TestLevelsFollowFromEntriesWhateverChangesMeanwhile(t *testing.T) {
	t.Parallel()
	config := func(i int) string {
		return bucketConfig(int64(1000+i%3), fmt.Sprintf("%d/7ms", 1+i%5)) + fmt.Sprintf(`
      - {name: shape, meter: tokens, algorithm: gcra, rate: %d/3ms, burst: 900}
  other: {limits: [{name: pool, meter: tokens, algorithm: token_bucket, capacity: 700, refill: %d/11ms}]}
`, 1+i%4, 1+i%6)
	}
	w := newWorldOf(t, pgtest.New(t), config(0))
	w.tenant(t, "plan: pro")
	engines := []*Engine{w.engine(t, nil), w.engine(t, nil)}
	var changes, callers errgroup.Group
	done := make(chan struct{})
	for caller := range 4 {
		callers.Go(func() error {
			for i := 0; ; i++ {
				select {
				case <-done:
					return nil
				default:
				}
				if _, err := engines[caller%2].Decide(t.Context(), tokens(int64(i%5))); err != nil {
					return err
				}
			}
		})
	}
	changes.Go(func() error {
		for i := range 120 {
			w.apply(t, config(i))
			if i%3 == 2 {
				w.tenant(t, []string{"plan: other", "plan: pro", fmt.Sprintf("plan: pro, overrides: [{name: pool, refill: 9/5ms, from: %s, until: %s, reason: r}]",
					time.Now().Add(5*time.Millisecond).UTC().Format("2006-01-02T15:04:05.000000Z07:00"),
					time.Now().Add(30*time.Millisecond).UTC().Format("2006-01-02T15:04:05.000000Z07:00"))}[i/3%3])
			}
		}
		return nil
	})
	if err := changes.Wait(); err != nil {
		t.Error(err)
	}
	close(done)
	if err := callers.Wait(); err != nil {
		t.Error(err)
	}
	w.verify(t)
	if n := len(w.entries(t, "acme")); n < 30 {
		t.Errorf("only %d entries were made meanwhile", n)
	}
}
