package catalog_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

func (d database) snapshot(t *testing.T, known *catalog.Snapshot) *catalog.Snapshot {
	t.Helper()
	s, err := d.Snapshot(t.Context(), d.Owner(t), known)
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	return s
}

func TestSnapshotReadsWhatIsNewAndSharesTheRest(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	empty := db.snapshot(t, nil)
	if empty.Version != 0 || len(empty.Meters()) != 0 || len(empty.Plans()) != 0 {
		t.Errorf("Snapshot of an empty database = %+v", empty)
	}
	db.apply(t, configFree, catalog.ApplyOptions{})
	first := db.snapshot(t, empty)
	if first.Version != 1 || len(first.Meters()) != 2 || len(first.Plans()) != 1 {
		t.Fatalf("Snapshot = version %d, %d meters, %d plans; want 1, 2, 1",
			first.Version, len(first.Meters()), len(first.Plans()))
	}
	if same := db.snapshot(t, first); same != first {
		t.Error("Snapshot made another one although nothing is new")
	}

	if _, err := db.PutMeter(t.Context(), "tester", "llm.tokens", catalog.MeterSpec{Unit: "word"}); err != nil {
		t.Fatal(err)
	}
	second := db.snapshot(t, first)
	if second.Meter("llm.tokens").Unit != "word" || first.Meter("llm.tokens").Unit != "token" {
		t.Errorf("units %s and before %s, want word and token", second.Meter("llm.tokens").Unit, first.Meter("llm.tokens").Unit)
	}
	if second.Meter("api.calls") != first.Meter("api.calls") || second.Plan("free") != first.Plan("free") {
		t.Error("Snapshot does not share what is unchanged")
	}

	if _, err := db.PutTenant(t.Context(), "tester", "acme", catalog.TenantSpec{Plan: "free", Timezone: "UTC"}); err != nil {
		t.Fatal(err)
	}
	third := db.snapshot(t, second)
	if third.Version != 3 || third.Plan("free") != second.Plan("free") {
		t.Errorf("Snapshot after a tenant's change = version %d; want 3 with the same plans", third.Version)
	}

	db.apply(t, configPro+"meters: {api.calls: {unit: call}}\ntenants: {acme: {plan: pro}}", catalog.ApplyOptions{Prune: true})
	fourth := db.snapshot(t, second)
	if fourth.Plan("free") != nil || fourth.Meter("llm.tokens") != nil || fourth.Plan("pro") == nil {
		t.Error("Snapshot after a prune holds what was removed or lacks what was added")
	}
	if fresh := db.snapshot(t, nil); len(fresh.Meters()) != 1 || len(fresh.Plans()) != 1 {
		t.Errorf("a fresh Snapshot holds %d meters, %d plans; want 1 and 1", len(fresh.Meters()), len(fresh.Plans()))
	}
}

func TestSnapshotStartsAnewWhenTheDatabaseWasRestored(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	future := catalog.NewSnapshot(99, nil, nil)
	if s := db.snapshot(t, future); s.Version != 1 || s.Plan("free") == nil {
		t.Errorf("Snapshot = version %d, plan %v; want all of version 1", s.Version, s.Plan("free"))
	}
}

func TestSnapshotWorksInATransactionOfTheService(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	tx, err := db.Service(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s, err := db.Snapshot(t.Context(), tx, nil)
	if err != nil || s.Version != 1 {
		t.Fatalf("Snapshot = %v, %v", s, err)
	}
	if again, err := db.Snapshot(t.Context(), tx, s); err != nil || again != s { // the rows before were read to their end
		t.Errorf("Snapshot again = %v, %v; want the same", again, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEveryPlanVersionStaysReadable(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	first, err := db.Plan(t.Context(), "free")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.PutPlan(t.Context(), "tester", "free", catalog.PlanSpec{}); err != nil {
		t.Fatal(err)
	}
	old, err := db.PlanVersion(t.Context(), db.Owner(t), first.VersionID)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, old); diff != "" {
		t.Errorf("PlanVersion (-when it was current +now):\n%s", diff)
	}
	all, err := db.PlanVersions(t.Context(), db.Owner(t))
	if err != nil || len(all) != 2 || all[first.VersionID].Version != 1 {
		t.Errorf("PlanVersions = %v, %v; want two", all, err)
	}
	if _, err := db.PlanVersion(t.Context(), db.Owner(t), 1<<40); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("PlanVersion of none = %v, want ErrNotFound", err)
	}
}

func TestStoredPlanThatSomeoneElseWroteIsRefused(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, spec := range []string{
		`{"limits": 3}`,
		`{"limits": [{"name": "a", "meter": "m", "algorithm": "gcra", "rate": "1/1s", "burst": 1}]}`,
		`{"limits": [{"name": "a", "meter": "m", "algorithm": "gcra", "since": 1}]}`,
		`{"limits": [{"name": "a", "meter": "m", "algorithm": "gcra", "rate": "1/1s", "burst": 1, "since": 2}]}`,
	} {
		id := db.count(t, `
insert into quotad.plan_version (plan, version, spec, created_by)
values (md5($1::text), 1, $1::jsonb, 'someone')
returning plan_version_id`, spec)
		if plan, err := db.PlanVersion(t.Context(), db.Owner(t), id); err == nil {
			t.Errorf("PlanVersion of %s = %+v, want an error", spec, plan)
		}
	}
}

func TestListsComeInPagesWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := &catalog.Config{
		Meters: map[string]catalog.MeterSpec{}, Plans: map[string]catalog.PlanSpec{}, Tenants: map[string]catalog.TenantSpec{},
	}
	for i := range 7 {
		config.Meters[fmt.Sprintf("m%d", i)] = catalog.MeterSpec{Unit: "x"}
		config.Plans[fmt.Sprintf("p%d", i)] = catalog.PlanSpec{}
		config.Tenants[fmt.Sprintf("T %d/ü", i)] = catalog.TenantSpec{Plan: "p0"}
	}
	if _, err := db.Apply(t.Context(), "tester", config, catalog.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	meters := pages(t, func(p catalog.Page) ([]*catalog.Meter, string, error) { return db.Meters(ctx, p) },
		func(m *catalog.Meter) string { return m.Name })
	plans := pages(t, func(p catalog.Page) ([]*catalog.Plan, string, error) { return db.Plans(ctx, p) },
		func(p *catalog.Plan) string { return p.Name })
	tenants := pages(t, func(p catalog.Page) ([]catalog.Tenant, string, error) {
		return db.Tenants(ctx, catalog.TenantQuery{Page: p})
	},
		func(t catalog.Tenant) string { return t.Name })
	for i := range 7 {
		got := []string{meters[i], plans[i], tenants[i]}
		want := []string{fmt.Sprintf("m%d", i), fmt.Sprintf("p%d", i), fmt.Sprintf("T %d/ü", i)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("item %d (-want +got):\n%s", i, diff)
		}
	}
}

// pages reads a list of seven in pages of three.
func pages[T any](t *testing.T, list func(catalog.Page) ([]T, string, error), name func(T) string) []string {
	t.Helper()
	var names []string
	page := catalog.Page{Limit: 3}
	for _, want := range []int{3, 3, 1} {
		items, next, err := list(page)
		if err != nil || len(items) != want || (next == "") != (want == 1) {
			t.Fatalf("page after %q = %d items, next %q, %v; want %d items", page.After, len(items), next, err, want)
		}
		for _, item := range items {
			names = append(names, name(item))
		}
		page.After = next
	}
	return names
}

func TestWholeDatabaseHoldsAtMostAThousandMeters(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := &catalog.Config{Meters: map[string]catalog.MeterSpec{}}
	for i := range catalog.MetersMax {
		config.Meters[fmt.Sprintf("m%d", i)] = catalog.MeterSpec{Unit: "x"}
	}
	if _, err := db.Apply(t.Context(), "tester", config, catalog.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := db.PutMeter(t.Context(), "tester", "more", catalog.MeterSpec{Unit: "x"})
	wantFault(t, err, "meters: must hold at most 1000, not 1001")
}

func TestTenThousandTenantsAreOneChange(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	config := &catalog.Config{
		Plans:   map[string]catalog.PlanSpec{"free": {}},
		Tenants: map[string]catalog.TenantSpec{},
	}
	for i := range catalog.TenantsMax {
		config.Tenants[fmt.Sprintf("tenant-%d", i)] = catalog.TenantSpec{Plan: "free"}
	}
	for _, anchor := range []int{1, 2} { // all new, then all moved
		for name, spec := range config.Tenants {
			spec.BillingAnchor = &anchor
			config.Tenants[name] = spec
		}
		if _, err := db.Apply(t.Context(), "tester", config, catalog.ApplyOptions{}); err != nil {
			t.Fatal(err)
		}
		if n := db.count(t, "select count(*) from quotad.account where billing_anchor = $1", anchor); n != catalog.TenantsMax {
			t.Errorf("%d accounts have the anchor %d, want all", n, anchor)
		}
	}
}

// However a plan version is loaded, its digest is that of the text that PostgreSQL
// prints, so that it can be compared without this program.
func TestSpecDigestIsOfTheTextThatPostgreSQLPrints(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	ctx := t.Context()
	plan, err := db.Plan(ctx, "free")
	if err != nil {
		t.Fatal(err)
	}
	var want []byte
	err = db.Owner(t).QueryRow(ctx, "select sha256(convert_to(spec::text, 'UTF8')) from quotad.plan_version").Scan(&want)
	if err != nil {
		t.Fatal(err)
	}
	one, err := db.PlanVersion(ctx, db.Owner(t), plan.VersionID)
	if err != nil {
		t.Fatal(err)
	}
	all, err := db.PlanVersions(ctx, db.Owner(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range []*catalog.Plan{plan, one, all[plan.VersionID], db.snapshot(t, nil).Plan("free")} {
		if string(p.SpecDigest[:]) != string(want) {
			t.Errorf("digest %d = %x, want %x", i, p.SpecDigest, want)
		}
	}
}
