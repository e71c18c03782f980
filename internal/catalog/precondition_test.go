package catalog_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
)

// A tag is the same exactly while the object is: PUT returns the one that the object
// is then read with.
func TestTagTellsTheStatesOfAnObjectApart(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree+"default_plan: free", catalog.ApplyOptions{})
	ctx, seen := t.Context(), map[catalog.Tag]string{}
	anchor, rate := 3, 5
	same := func(name string, put catalog.Put, err error, read catalog.Tag) {
		t.Helper()
		if err != nil || put.Tag != read || read == (catalog.Tag{}) {
			t.Errorf("%s: Put has tag %s and the object %s, %v", name, put.Tag, read, err)
		}
		if before, ok := seen[read]; ok {
			t.Errorf("%s has the tag of %s", name, before)
		}
		seen[read] = name
	}
	for i, spec := range []catalog.MeterSpec{{Unit: "a"}, {Unit: "b"}, {Unit: "b", Weights: map[string]catalog.WeightText{"p": "0.5"}}} {
		put, err := db.PutMeter(ctx, "tester", "m", spec)
		m, _ := db.Meter(ctx, "m")
		same(fmt.Sprint("meter ", i), put, err, m.Tag())
	}
	for i, spec := range []catalog.PlanSpec{{}, {Limits: []catalog.LimitSpec{}}} {
		put, err := db.PutPlan(ctx, "tester", "p", spec)
		p, _ := db.Plan(ctx, "p")
		if i == 0 {
			same("plan", put, err, p.Tag())
		} else if put.Outcome != catalog.Unchanged || seen[put.Tag] != "plan" {
			t.Errorf("an unchanged plan has tag %s of %q", put.Tag, seen[put.Tag])
		}
	}
	for i, spec := range []catalog.TenantSpec{{Plan: "p"}, {Plan: "p", BillingAnchor: &anchor}, {Plan: "p", Status: catalog.StatusClosed}} {
		put, err := db.PutTenant(ctx, "tester", "t", spec)
		tenant, _ := db.Tenant(ctx, "t")
		same(fmt.Sprint("tenant ", i), put, err, tenant.Tag())
	}
	for i, spec := range []catalog.SettingsSpec{{}, {DefaultPlan: "p"}, {DefaultPlan: "p", DefaultPlanRate: &rate}} {
		put, err := db.PutSettings(ctx, "tester", spec)
		s, _ := db.Settings(ctx)
		same(fmt.Sprint("settings ", i), put, err, s.Tag())
	}
}

// Of any number who read the same state and change it, on whatever instance, one does.
func TestOfChangesMeantForOneStateOneIsMade(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	stores := []*catalog.Store{db.Store, catalog.NewStore(db.Service(t))}
	// The units of a race are its own: a change to what is stored already changes
	// nothing, so it holds beside the one that is made.
	race := func(units string, when catalog.Precondition) {
		t.Helper()
		var made, failed atomic.Int32
		var group errgroup.Group
		for i := range 20 {
			group.Go(func() error {
				unit := catalog.MeterSpec{Unit: fmt.Sprint(units, i)}
				_, err := stores[i%2].PutMeter(t.Context(), "tester", "m", unit, when)
				var precondition *catalog.PreconditionError
				switch {
				case err == nil:
					made.Add(1)
				case errors.As(err, &precondition) && precondition.Tag != catalog.Tag{}:
					failed.Add(1)
				default:
					return err
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil || made.Load() != 1 || failed.Load() != 19 {
			t.Errorf("%d were made and %d failed, %v; want 1 and 19", made.Load(), failed.Load(), err)
		}
	}
	race("first", catalog.Precondition{NoneMatch: &catalog.TagSet{Any: true}})
	m, err := db.Meter(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	race("second", catalog.Precondition{Match: &catalog.TagSet{Tags: []catalog.Tag{m.Tag()}}})
	if n := db.count(t, "select count(*) from quotad.config_change"); n != 2 {
		t.Errorf("%d changes are in the history, want 2", n)
	}
}
