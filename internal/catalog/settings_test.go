package catalog_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
)

func TestDefaultPlanIsConfigurationLikeTheRest(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree+"default_plan: free\n", catalog.ApplyOptions{})
	first := db.snapshot(t, nil)
	if want := (catalog.Settings{DefaultPlan: "free", DefaultPlanRate: 600}); first.Settings() != want {
		t.Errorf("settings = %+v, want %+v", first.Settings(), want)
	}
	for _, step := range []struct {
		name, text string
		options    catalog.ApplyOptions
		want       []string // outcomes, but for unchanged ones
		settings   catalog.Settings
	}{
		{"absent it stays", "meters: {api.calls: {unit: call}}", catalog.ApplyOptions{}, nil, catalog.Settings{DefaultPlan: "free", DefaultPlanRate: 600}},
		{
			"a plan that is there already", configPro + "default_plan: free\ndefault_plan_rate: 7",
			catalog.ApplyOptions{},
			[]string{"created plan pro", "changed settings global"},
			catalog.Settings{DefaultPlan: "free", DefaultPlanRate: 7},
		},
		{"alone in a file", "default_plan: pro", catalog.ApplyOptions{}, []string{"changed settings global"}, catalog.Settings{DefaultPlan: "pro", DefaultPlanRate: 7}},
		{"the same", "default_plan: pro", catalog.ApplyOptions{}, nil, catalog.Settings{DefaultPlan: "pro", DefaultPlanRate: 7}},
		{"pruned", configFree, catalog.ApplyOptions{Prune: true}, []string{"removed plan pro", "changed settings global"}, catalog.Settings{DefaultPlanRate: 600}},
	} {
		changes := db.apply(t, step.text, step.options)
		var got []string
		for i, outcome := range outcomes(changes) {
			if changes.Items[i].Outcome != catalog.Unchanged {
				got = append(got, outcome)
			}
		}
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("%s: changes (-want +got):\n%s", step.name, diff)
		}
		if s := db.snapshot(t, first); s.Settings() != step.settings { // only what is newer than first is read
			t.Errorf("%s: settings = %+v, want %+v", step.name, s.Settings(), step.settings)
		}
	}
	records, _, err := db.Records(t.Context(), catalog.RecordQuery{Object: catalog.ObjectSettings})
	if err != nil || len(records) != 4 || string(records[0].Before) != `{"default_plan": "pro", "default_plan_rate": 7}` {
		t.Errorf("history of the settings = %v, %v; want 4 changes", records, err)
	}
}

func TestDefaultPlanMustExistAndCannotBePruned(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configPro+"meters: {api.calls: {unit: call}}\ndefault_plan: pro", catalog.ApplyOptions{})
	before := db.fingerprint(t)
	_, err := db.Apply(t.Context(), "tester", parse(t, "default_plan: gold"), catalog.ApplyOptions{})
	wantFault(t, err, "q.yaml:1:1: default_plan: must name a plan: there is no gold")
	pruning := parse(t, "plans: {other: {limits: []}}\ndefault_plan: pro")
	_, err = db.Apply(t.Context(), "tester", pruning, catalog.ApplyOptions{Prune: true})
	wantFault(t, err, "default_plan: must name a plan: there is no pro")
	_, err = db.PutSettings(t.Context(), "tester", catalog.SettingsSpec{DefaultPlan: "gold"})
	wantFault(t, err, "default_plan: must name a plan: there is no gold")
	if after := db.fingerprint(t); after != before {
		t.Errorf("the database changed from %s to %s", before, after)
	}
}

// start is a whole minute.
var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func (d database) putSettings(t *testing.T, plan string, rate int) {
	t.Helper()
	if _, err := d.PutSettings(t.Context(), "tester", catalog.SettingsSpec{DefaultPlan: plan, DefaultPlanRate: &rate}); err != nil {
		t.Fatal(err)
	}
}

func TestDefaultPlanMakesATenantOnceHoweverManyAsk(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	if err := db.CreateByDefault(t.Context(), "x"); !errors.Is(err, catalog.ErrNoDefaultPlan) {
		t.Errorf("CreateByDefault without a default plan = %v", err)
	}
	db.putSettings(t, "free", 1)
	version := db.count(t, "select version from quotad.catalog_version")
	stores := []*catalog.Store{db.Store, catalog.NewStore(db.Service(t))}
	var group errgroup.Group
	for i := range 20 {
		group.Go(func() error { return stores[i%2].CreateByDefault(t.Context(), "x") })
	}
	if err := group.Wait(); err != nil {
		t.Errorf("CreateByDefault of one tenant, by twenty = %v; want that one makes it and the others find it", err)
	}
	tenant, err := db.Tenant(t.Context(), "x")
	if err != nil || tenant.Plan != "free" || tenant.Status != catalog.StatusActive || tenant.BillingAnchor != 1 || tenant.Timezone != "UTC" {
		t.Errorf("Tenant = %+v, %v", tenant, err)
	}
	records, _, err := db.Records(t.Context(), catalog.RecordQuery{By: "default_plan"})
	if err != nil || len(records) != 1 || records[0].Name != "x" || records[0].Before != nil {
		t.Errorf("history = %+v, %v; want the one creation", records, err)
	}
	if after := db.count(t, "select version from quotad.catalog_version"); after != version {
		t.Errorf("the version rose from %d to %d: every instance would reload for nothing", version, after)
	}
}

func TestDefaultPlanMakesNoMoreTenantsAMinuteThanItMay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	db.SetClock(t, start.Add(15*time.Second))
	const rate = 7
	db.putSettings(t, "free", rate)
	stores := []*catalog.Store{db.Store, catalog.NewStore(db.Service(t))}
	flood := func(round string) (made, limited int32) {
		var group errgroup.Group
		for i := range 30 {
			group.Go(func() error {
				err := stores[i%2].CreateByDefault(t.Context(), fmt.Sprint(round, i))
				var refusal *catalog.CreationLimitedError
				switch {
				case err == nil:
					atomic.AddInt32(&made, 1)
				case errors.As(err, &refusal) && refusal.RetryAfter == 45*time.Second:
					atomic.AddInt32(&limited, 1)
				default:
					return err
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		return made, limited
	}
	for _, round := range []string{"a", "b"} {
		if made, limited := flood(round); made != rate || limited != 30-rate {
			t.Errorf("round %s: %d were made and %d refused for 45 s, want %d and %d", round, made, limited, rate, 30-rate)
		}
		if err := db.CreateByDefault(t.Context(), "acme"); err != nil {
			t.Errorf("CreateByDefault of a tenant that is there, beyond the bound = %v", err)
		}
		db.AdvanceClock(t, time.Minute)
	}
	db.putSettings(t, "free", 0)
	var refusal *catalog.CreationLimitedError
	if err := db.CreateByDefault(t.Context(), "z"); !errors.As(err, &refusal) {
		t.Errorf("CreateByDefault at a rate of 0 = %v, want it refused", err)
	}
	if n := db.count(t, "select count(*) from quotad.account"); n != 1+2*rate {
		t.Errorf("%d accounts, want acme and %d", n, 2*rate)
	}
}
