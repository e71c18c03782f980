package catalog_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
)

func TestApplyWritesAllThatTheFileNames(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	changes := db.apply(t, configFree, catalog.ApplyOptions{})
	want := []string{"created meter api.calls", "created meter llm.tokens", "created plan free", "created tenant acme"}
	if diff := cmp.Diff(want, outcomes(changes)); diff != "" || changes.Version != 1 {
		t.Errorf("Apply made version %d, changes (-want +got):\n%s", changes.Version, diff)
	}

	meter, err := db.Meter(t.Context(), "llm.tokens")
	if err != nil {
		t.Fatal(err)
	}
	wantWeights := map[string]catalog.Weight{"input": 1_000_000, "output": 4_000_000, "cached": 100_000}
	if diff := cmp.Diff(wantWeights, meter.Weights); diff != "" || meter.ID == 0 || meter.Unit != "token" {
		t.Errorf("Meter = %+v, weights (-want +got):\n%s", meter, diff)
	}
	plan, err := db.Plan(t.Context(), "free")
	if err != nil {
		t.Fatal(err)
	}
	wantPlan := &catalog.Plan{Name: "free", Version: 1, VersionID: plan.VersionID, SpecDigest: plan.SpecDigest, SpecText: plan.SpecText, Limits: []catalog.Limit{
		{
			Name: "hourly", Meter: "api.calls", Algorithm: catalog.SlidingLog, Limit: 100,
			Window: catalog.Window{DurationMicros: 3_600_000_000},
			Scope:  catalog.ScopeTenant, Mode: catalog.ModeEnforce, Since: 1,
		},
		{
			Name: "burst", Meter: "api.calls", Algorithm: catalog.TokenBucket, Capacity: 10,
			Refill: catalog.Rate{Units: 2, PerMicros: 1_000_000},
			Scope:  catalog.ScopeTenant, Mode: catalog.ModeEnforce, Since: 1,
		},
	}}
	if diff := cmp.Diff(wantPlan, plan); diff != "" {
		t.Errorf("Plan (-want +got):\n%s", diff)
	}
	tenant, err := db.Tenant(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	wantTenant := catalog.Tenant{
		ID: tenant.ID, Name: "acme", Plan: "free", Status: catalog.StatusActive,
		Timezone: "Asia/Jakarta", BillingAnchor: 15, CreatedAt: tenant.CreatedAt,
	}
	if !cmp.Equal(tenant, wantTenant) || tenant.ID == 0 || tenant.CreatedAt.IsZero() {
		t.Errorf("Tenant = %+v, want %+v", tenant, wantTenant)
	}
	head := catalog.GenesisHash("acme")
	if n := db.count(t, "select count(*) from quotad.account where head_hash = $1", head[:]); n != 1 {
		t.Errorf("%d accounts begin at GenesisHash, want 1", n)
	}
}

func TestApplyingTheSameFileAgainWritesNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	before := db.fingerprint(t)
	for i := range 100 {
		changes := db.apply(t, configFree, catalog.ApplyOptions{Prune: i%2 == 0})
		if n := changes.Count(catalog.Unchanged); n != 4 || len(changes.Items) != 4 || changes.Version != 1 {
			t.Fatalf("Apply %d: %v at version %d, want 4 unchanged at version 1", i, outcomes(changes), changes.Version)
		}
	}
	if after := db.fingerprint(t); after != before {
		t.Errorf("the database changed from %s to %s", before, after)
	}
}

func TestConcurrentAppliesAreSerialAndLoseNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	const clients, rounds = 4, 10
	var group errgroup.Group
	for client := range clients {
		group.Go(func() error {
			for round := range rounds {
				text := fmt.Sprintf(`
meters: {api.calls: {unit: call}, m%d: {unit: u%d}}
plans:
  free: {limits: [{name: hourly, meter: api.calls, algorithm: sliding_log, limit: %d, window: 1h}]}
tenants: {b: {plan: free, billing_anchor: %d}, a: {plan: free, billing_anchor: %d}}`,
					client, round, client*rounds+round, 1+round, 1+client)
				config, err := catalog.ParseFile([]byte(text), "q.yaml")
				if err != nil {
					return err
				}
				if _, err := db.Apply(t.Context(), "tester", config, catalog.ApplyOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if v := db.count(t, "select version from quotad.catalog_version"); v != 1+clients*rounds {
		t.Errorf("version %d, want one for each of %d changes", v, 1+clients*rounds)
	}
	versions := db.count(t, "select count(*) from quotad.plan_version where plan = 'free'")
	newest := db.count(t, "select max(version) from quotad.plan_version where plan = 'free'")
	if versions != newest {
		t.Errorf("%d versions of the plan, the newest is %d: want no gap", versions, newest)
	}
	if n := db.count(t, "select count(*) from quotad.meter where meter like 'm%' and unit = 'u9'"); n != clients {
		t.Errorf("%d meters hold their client's last change, want %d", n, clients)
	}
}

func TestInvalidChangeChangesNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	before := db.fingerprint(t)
	for _, test := range []struct{ text, want string }{
		{
			"meters: {fresh: {unit: x}}\nplans: {free: {limits: [{name: a, meter: nothing, algorithm: gcra, rate: 1/s, burst: 1}]}}",
			"q.yaml:2:35: plans.free.limits[0].meter: must name a meter: there is no nothing",
		},
		{
			"meters: {fresh: {unit: x}}\ntenants:\n  new: {plan: gold}",
			"q.yaml:3:9: tenants.new.plan: must name a plan: there is no gold",
		},
	} {
		_, err := db.Apply(t.Context(), "tester", parse(t, test.text), catalog.ApplyOptions{})
		if err == nil || err.Error() != test.want {
			t.Errorf("Apply(%q) = %v, want %s", test.text, err, test.want)
		}
	}
	pruned := parse(t, "meters: {api.calls: {unit: call}}\nplans: {other: {limits: []}}")
	_, err := db.Apply(t.Context(), "tester", pruned, catalog.ApplyOptions{Prune: true})
	wantFault(t, err, "plans.free: cannot be removed: tenants that have it or get it next: 1")

	if _, err := db.PutPlan(t.Context(), "tester", "free", catalog.PlanSpec{Limits: []catalog.LimitSpec{{Name: "x"}}}); err == nil {
		t.Error("PutPlan took an invalid plan")
	}
	if after := db.fingerprint(t); after != before {
		t.Errorf("the database changed from %s to %s", before, after)
	}
}

func TestPutNamesFaultsRelativeToTheSpec(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	_, err := db.PutMeter(t.Context(), "tester", "M", catalog.MeterSpec{Weights: map[string]catalog.WeightText{"a": "x"}})
	var got []string
	for _, f := range catalog.Faults(err) {
		got = append(got, f.Path)
	}
	if diff := cmp.Diff([]string{"", "unit", "weights.a"}, got); diff != "" {
		t.Errorf("paths of PutMeter's faults (-want +got):\n%s", diff)
	}
	_, err = db.PutTenant(t.Context(), "tester", "a b", catalog.TenantSpec{Plan: "gold"})
	if want := "plan: must name a plan: there is no gold"; err == nil || err.Error() != want {
		t.Errorf("PutTenant = %v, want %s", err, want)
	}
}

// Whoever looks at a dry run sees what would be, and everyone else what is.
func TestDryRunTellsTheChangesAndMakesNone(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	before := db.fingerprint(t)
	text := strings.NewReplacer("limit: 100", "limit: 200", "Asia/Jakarta", "UTC").Replace(configFree) + "\ndefault_plan: free"
	var limits []int64
	var looked []catalog.Change
	dry := database{db.DryRun(func(ctx context.Context, tx pgx.Tx, changes []catalog.Change, made bool) error {
		looked = changes
		for _, q := range []catalog.Querier{tx, db.Service(t)} {
			seen, err := db.Snapshot(ctx, q, nil)
			if err != nil {
				return err
			}
			limits = append(limits, seen.Plan("free").Limits[0].Limit)
		}
		return nil
	}), db.DB}
	changes := dry.apply(t, text, catalog.ApplyOptions{})
	want := []string{
		"unchanged meter api.calls", "unchanged meter llm.tokens", "changed plan free", "changed settings global", "changed tenant acme",
	}
	if want := []int64{100, 100, 200, 100}; !slices.Equal(limits, want) {
		t.Errorf("the limit is, and for others, would be, and for others, %v, want %v", limits, want)
	}
	if diff := cmp.Diff(changes.Items, looked); diff != "" {
		t.Errorf("what was looked at (-returned +looked at):\n%s", diff)
	}
	if diff := cmp.Diff(want, outcomes(changes)); diff != "" || !changes.DryRun || changes.Version != 1 {
		t.Errorf("Apply = version %d, dry run %v, changes (-want +got):\n%s", changes.Version, changes.DryRun, diff)
	}
	if after := db.fingerprint(t); after != before {
		t.Errorf("the database changed from %s to %s", before, after)
	}
}
