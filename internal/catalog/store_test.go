package catalog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

const (
	configFree = `
meters:
  api.calls: {unit: call}
  llm.tokens: {unit: token, weights: {input: 1, output: "4", cached: 0.1}}
plans:
  free:
    limits:
      - {name: hourly, meter: api.calls, algorithm: sliding_log, limit: 100, window: 1h}
      - {name: burst, meter: api.calls, algorithm: token_bucket, capacity: 10, refill: 2/1s}
tenants:
  acme: {plan: free, timezone: Asia/Jakarta, billing_anchor: 15}
`
	configPro = `
plans:
  pro:
    limits:
      - {name: monthly, meter: api.calls, algorithm: fixed_window, limit: 2000000, window: month}
`
)

// A database is a store in a database of its own.
type database struct {
	*catalog.Store
	*pgtest.DB
}

func newDatabase(t *testing.T) database {
	t.Helper()
	db := pgtest.New(t)
	return database{catalog.NewStore(db.Service(t)), db}
}

func parse(t *testing.T, text string) *catalog.Config {
	t.Helper()
	config, err := catalog.ParseFile([]byte(text), "q.yaml")
	if err != nil {
		t.Fatalf("ParseFile: %v", err)
	}
	return config
}

func (d database) apply(t *testing.T, text string, options catalog.ApplyOptions) catalog.Changes {
	t.Helper()
	changes, err := d.Apply(t.Context(), "tester", parse(t, text), options)
	if err != nil {
		t.Fatalf("Apply: %v", err)
	}
	return changes
}

// count runs a query for one number, as the owner.
func (d database) count(t *testing.T, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := d.Owner(t).QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// fingerprint is all that a change of the configuration may write.
func (d database) fingerprint(t *testing.T) string {
	t.Helper()
	var text string
	err := d.Owner(t).QueryRow(t.Context(), `
select concat_ws(' ',
  (select version from quotad.catalog_version),
  (select md5(string_agg(m::text, ',' order by meter_id)) from quotad.meter m),
  (select md5(string_agg(p::text, ',' order by plan)) from quotad.plan p),
  (select md5(string_agg(v::text, ',' order by plan_version_id)) from quotad.plan_version v),
  (select md5(string_agg(a::text, ',' order by tenant_id)) from quotad.account a),
  (select s::text from quotad.setting s),
  (select md5(string_agg(o::text, ',' order by override_set_id)) from quotad.override_set o),
  (select md5(string_agg(t::text, ',' order by terms_id)) from quotad.terms t),
  (select md5(string_agg(c::text, ',' order by change_id)) from quotad.config_change c))`).Scan(&text)
	if err != nil {
		t.Fatalf("fingerprint: %v", err)
	}
	return text
}

func outcomes(changes catalog.Changes) []string {
	var out []string
	for _, c := range changes.Items {
		out = append(out, fmt.Sprintf("%s %s %s", c.Outcome, c.Object, c.Name))
	}
	return out
}

func wantFault(t *testing.T, err error, want string) {
	t.Helper()
	faults := catalog.Faults(err)
	if len(faults) == 0 || !strings.Contains(err.Error(), want) {
		t.Errorf("got error %v, want a fault %q", err, want)
	}
}

func TestSinceStaysWhileALimitCountsTheSameByTheSame(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	put := func(limits ...string) []int32 {
		t.Helper()
		config := parse(t, "plans: {free: {limits: ["+strings.Join(limits, ", ")+"]}}")
		if _, err := db.PutPlan(t.Context(), "tester", "free", config.Plans["free"]); err != nil {
			t.Fatal(err)
		}
		plan, err := db.Plan(t.Context(), "free")
		if err != nil {
			t.Fatal(err)
		}
		var since []int32
		for _, l := range plan.Limits {
			since = append(since, l.Since)
		}
		return since
	}
	const (
		bucket  = "{name: a, meter: api.calls, algorithm: token_bucket, capacity: 10, refill: 2/1s}"
		bigger  = "{name: a, meter: api.calls, algorithm: token_bucket, capacity: 99, refill: 1/1s, mode: shadow}"
		gcra    = "{name: a, meter: api.calls, algorithm: gcra, rate: 2/1s, burst: 10}"
		scoped  = "{name: a, meter: api.calls, algorithm: gcra, rate: 2/1s, burst: 10, scope: subject}"
		metered = "{name: a, meter: llm.tokens, algorithm: gcra, rate: 2/1s, burst: 10, scope: subject}"
		other   = "{name: b, meter: api.calls, algorithm: sliding_log, limit: 5, window: 1m}"
	)
	for _, step := range []struct {
		name   string
		limits []string
		want   []int32
	}{
		{"a new limit is of the version that brings it", []string{bucket}, []int32{2}},
		{"other numbers and mode keep it", []string{bigger}, []int32{2}},
		{"another limit beside it keeps it", []string{other, bigger}, []int32{4, 2}},
		{"another algorithm does not", []string{other, gcra}, []int32{4, 5}},
		{"another scope does not", []string{other, scoped}, []int32{4, 6}},
		{"another meter does not", []string{other, metered}, []int32{4, 7}},
		{"gone", []string{other}, []int32{4}},
		{"and back is new", []string{metered, other}, []int32{9, 4}},
		{"another order keeps both", []string{other, metered}, []int32{4, 9}},
	} {
		if got := put(step.limits...); !slices.Equal(got, step.want) {
			t.Errorf("%s: since %v, want %v", step.name, got, step.want)
		}
	}
}

func TestMeterKeepsItsIdentityThroughChangesAndRemoval(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	ctx := t.Context()
	db.apply(t, configPro+"meters: {api.calls: {unit: call}, spare: {unit: x}}", catalog.ApplyOptions{})
	before, err := db.Meter(ctx, "spare")
	if err != nil {
		t.Fatal(err)
	}
	put, err := db.PutMeter(ctx, "tester", "spare", catalog.MeterSpec{Unit: "y"})
	if err != nil || put.Outcome != catalog.Changed || !slices.Equal(put.Differs, []string{"unit x -> y"}) {
		t.Errorf("PutMeter = %+v, %v; want it changed from x to y", put, err)
	}
	db.apply(t, configPro+"meters: {api.calls: {unit: call}}", catalog.ApplyOptions{Prune: true})
	if _, err := db.Meter(ctx, "spare"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Meter of a removed one = %v, want ErrNotFound", err)
	}
	if put, err = db.PutMeter(ctx, "tester", "spare", catalog.MeterSpec{Unit: "y"}); err != nil || put.Outcome != catalog.Created {
		t.Errorf("PutMeter of a removed one = %+v, %v; want it created", put, err)
	}
	after, err := db.Meter(ctx, "spare")
	if err != nil || after.ID != before.ID {
		t.Errorf("Meter = %+v, %v; want the id %d that it had", after, err, before.ID)
	}
	byID, err := db.MetersByID(ctx, db.Owner(t))
	if err != nil || byID[before.ID].Name != "spare" || len(byID) != 2 {
		t.Errorf("MetersByID = %v, %v", byID, err)
	}
}

func TestPruneRemovesWhatTheFileDoesNotName(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	db.apply(t, configPro, catalog.ApplyOptions{}) // without prune, free stays
	text := configPro + "meters: {api.calls: {unit: call}}\ntenants: {acme: {plan: pro}}"
	changes := db.apply(t, text, catalog.ApplyOptions{Prune: true})
	want := []string{
		"unchanged meter api.calls", "removed meter llm.tokens",
		"unchanged plan pro", "removed plan free", "changed tenant acme",
	}
	if diff := cmp.Diff(want, outcomes(changes)); diff != "" {
		t.Errorf("Apply (-want +got):\n%s", diff)
	}
	if _, err := db.Plan(t.Context(), "free"); !errors.Is(err, catalog.ErrNotFound) {
		t.Errorf("Plan of a removed one = %v, want ErrNotFound", err)
	}
	if _, err := db.PutTenant(t.Context(), "tester", "new", catalog.TenantSpec{Plan: "free"}); err == nil {
		t.Error("PutTenant took a removed plan")
	}
	back := db.apply(t, configFree, catalog.ApplyOptions{})
	if back.Count(catalog.Created) != 2 {
		t.Errorf("Apply of the first file again: %v, want meter and plan created", outcomes(back))
	}
	plan, err := db.Plan(t.Context(), "free")
	if err != nil || plan.Version != 1 || plan.Limits[1].Since != 1 {
		t.Errorf("Plan = %+v, %v; want version 1 back", plan, err)
	}
}

func TestMovedCalendarLeavesTheOneBefore(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	ctx := t.Context()
	db.apply(t, configFree, catalog.ApplyOptions{})
	start := time.Date(2026, 3, 1, 12, 0, 0, 123_456_000, time.UTC)
	anchor := func(day int) catalog.TenantSpec {
		return catalog.TenantSpec{Plan: "free", Timezone: "Asia/Jakarta", BillingAnchor: &day}
	}
	for i := range 20 {
		db.SetClock(t, start.Add(time.Duration(i)*time.Hour))
		if _, err := db.PutTenant(ctx, "tester", "acme", anchor(16-i%2)); err != nil {
			t.Fatal(err)
		}
		spec := anchor(16 - i%2)
		spec.Status = []catalog.Status{catalog.StatusActive, catalog.StatusSuspended}[i%2]
		if _, err := db.PutTenant(ctx, "tester", "acme", spec); err != nil { // no calendar in it
			t.Fatal(err)
		}
	}
	var text []byte
	if err := db.Owner(t).QueryRow(ctx, "select calendar_past from quotad.account").Scan(&text); err != nil {
		t.Fatal(err)
	}
	var got, want []calendar.Past
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for i := 4; i < 20; i++ { // the 16 newest of 20
		want = append(want, calendar.Past{
			Until: start.Add(time.Duration(i) * time.Hour), Timezone: "Asia/Jakarta", BillingAnchor: 15 + i%2,
		})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calendar_past (-want +got):\n%s", diff)
	}

	// A tenant's clock never runs backwards: nor does the end of its calendar.
	last := start.Add(1000 * time.Hour)
	db.Exec(t, "update quotad.account set last_at = $1, calendar_past = null", last)
	if _, err := db.PutTenant(ctx, "tester", "acme", anchor(1)); err != nil {
		t.Fatal(err)
	}
	var until string
	if err := db.Owner(t).QueryRow(ctx, "select calendar_past->0->>'until' from quotad.account").Scan(&until); err != nil {
		t.Fatal(err)
	}
	if want := "2026-04-12T04:00:00.123456Z"; until != want {
		t.Errorf("the calendar ended at %s, want the tenant's own time %s", until, want)
	}
}

func TestAbsentStatusLeavesASuspendedTenantSuspended(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	day := 15
	spec := catalog.TenantSpec{Plan: "free", Timezone: "Asia/Jakarta", BillingAnchor: &day, Status: catalog.StatusSuspended}
	if _, err := db.PutTenant(t.Context(), "tester", "acme", spec); err != nil {
		t.Fatal(err)
	}
	if changes := db.apply(t, configFree, catalog.ApplyOptions{}); changes.Count(catalog.Unchanged) != 4 {
		t.Errorf("Apply changed %v, want nothing", outcomes(changes))
	}
	tenant, err := db.Tenant(t.Context(), "acme")
	if err != nil || tenant.Status != catalog.StatusSuspended {
		t.Errorf("Tenant = %+v, %v; want it suspended", tenant, err)
	}
}

// A change waits for a decision that holds a tenant's lock, and a decision never
// waits for a change's first lock.
func TestChangeWaitsForADecisionAndNotTheOtherWayRound(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	ctx := t.Context()
	db.SetClock(t, time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	db.apply(t, configFree, catalog.ApplyOptions{})
	decision := db.Hold(t, "acme")
	done := make(chan error, 1)
	var group errgroup.Group
	group.Go(func() error {
		_, err := db.PutTenant(ctx, "tester", "acme", catalog.TenantSpec{Plan: "free", Timezone: "UTC"})
		done <- err
		return nil
	})
	pgtest.AwaitWaiter(t, db.DB, done)
	var version int64
	if err := decision.QueryRow(ctx, "select version from quotad.catalog_version").Scan(&version); err != nil || version != 1 {
		t.Errorf("the decision read version %d, %v; want 1 at once", version, err)
	}
	db.AdvanceClock(t, time.Second)
	if err := decision.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("PutTenant after the decision: %v", err)
	}
	_ = group.Wait()
	records, _, err := db.Records(ctx, catalog.RecordQuery{Limit: 1})
	if want := time.Date(2026, 3, 1, 0, 0, 1, 0, time.UTC); err != nil || !records[0].At.Equal(want) {
		t.Errorf("the change is of %v, %v; want %v, younger than the decision it waited for", records[0].At, err, want)
	}
}

func TestHistorySaysWhoChangedWhat(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	ctx := t.Context()
	db.apply(t, configFree, catalog.ApplyOptions{})
	if _, err := db.PutPlan(ctx, "key:k1", "free", catalog.PlanSpec{}); err != nil {
		t.Fatal(err)
	}
	records, _, err := db.Records(ctx, catalog.RecordQuery{Limit: 1})
	if err != nil || len(records) != 1 {
		t.Fatalf("Records = %v, %v; want one", records, err)
	}
	r := records[0]
	if r.By != "key:k1" || r.Object != catalog.ObjectPlan || r.Name != "free" || r.At.IsZero() {
		t.Errorf("record %+v, want plan free by key:k1", r)
	}
	var before, after catalog.PlanSpec
	if err := errors.Join(json.Unmarshal(r.Before, &before), json.Unmarshal(r.After, &after)); err != nil {
		t.Fatal(err)
	}
	want := []string{"hourly", "burst"}
	if len(before.Limits) != 2 || before.Limits[0].Name != want[0] || before.Limits[1].Name != want[1] || len(after.Limits) != 0 {
		t.Errorf("record from %s to %s, want from %v to none", r.Before, r.After, want)
	}
	older, _, err := db.Records(ctx, catalog.RecordQuery{AfterAt: r.At, AfterID: r.ID})
	if err != nil || len(older) != 4 || older[0].Object != catalog.ObjectTenant || older[3].Before != nil {
		t.Errorf("Records before it = %+v, %v; want the four that Apply made, the newest first", older, err)
	}
}

// What one change made is of one instant: a tenant is not younger than the change that
// made it, nor a plan's version older.
func TestAChangeIsOfOneInstant(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	got := db.count(t, `select count(distinct at) from (
		select changed_at as at from quotad.config_change
		union all select created_at from quotad.plan_version
		union all select created_at from quotad.account) x`)
	if got != 1 {
		t.Errorf("one change is of %d instants", got)
	}
}
