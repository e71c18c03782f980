package catalog_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

const configTerms = `
meters:
  calls: {unit: call}
plans:
  free:
    limits:
      - {name: hourly, meter: calls, algorithm: sliding_log, limit: 100, window: 1h}
      - {name: burst, meter: calls, algorithm: token_bucket, capacity: 10, refill: 2/1s}
      - {name: shape, meter: calls, algorithm: leaky_bucket, rate: 1/1h, queue: 5}
      - {name: inflight, meter: calls, algorithm: concurrency, limit: 5}
  pro:
    limits:
      - {name: hourly, meter: calls, algorithm: sliding_log, limit: 1000, window: 1h}
      - {name: smooth, meter: calls, algorithm: gcra, rate: 6/1m, burst: 5}
  max: {limits: []}
`

// tenantFile is a file of one tenant.
func tenantFile(fields string) string { return "tenants:\n  acme: {" + fields + "}\n" }

const launch = `{name: hourly, limit: 5000, from: 2026-05-01T00:00:00Z, until: 2026-05-08T00:00:00Z, reason: launch week}`

func at(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return at
}

func (d database) tenant(t *testing.T) catalog.Tenant {
	t.Helper()
	tenant, err := d.Tenant(t.Context(), "acme")
	if err != nil {
		t.Fatal(err)
	}
	return tenant
}

// specJSON is a tenant as GET shows it and PUT takes it.
func specJSON(t *testing.T, tenant catalog.Tenant) string {
	t.Helper()
	text, err := json.Marshal(tenant.Spec())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// putShown puts what GET shows.
func (d database) putShown(t *testing.T) catalog.Put {
	t.Helper()
	var spec catalog.TenantSpec
	if err := json.Unmarshal([]byte(specJSON(t, d.tenant(t))), &spec); err != nil {
		t.Fatal(err)
	}
	put, err := d.PutTenant(t.Context(), "tester", "acme", spec)
	if err != nil {
		t.Fatalf("PutTenant of what is there: %v", err)
	}
	return put
}

// newTermsDatabase is one of configTerms and a tenant, whose clock stands.
func newTermsDatabase(t *testing.T, now, tenant string) database {
	t.Helper()
	db := newDatabase(t)
	db.SetClock(t, at(now))
	db.apply(t, configTerms+tenantFile(tenant), catalog.ApplyOptions{})
	return db
}

// A file that is applied again changes nothing, however often: an override is not renewed,
// and a switch is not put off.
func TestApplyingTermsAgainChangesNothing(t *testing.T) {
	t.Parallel()
	db := newTermsDatabase(t, "2026-05-20T12:00:00Z", "plan: free")
	for _, fields := range []string{
		"plan: free, overrides: [" + launch + ", {name: burst, capacity: 50, refill: 5/1s, until: 2027-01-01T00:00:00Z, reason: trial}]",
		"plan: pro, plan_from: next_period",
		"plan: free, next_plan: max, next_plan_at: 2026-07-01T00:00:00+02:00",
	} {
		file := tenantFile(fields)
		if changes := db.apply(t, file, catalog.ApplyOptions{}); changes.Count(catalog.Changed) != 1 {
			t.Errorf("%s changed %v", fields, outcomes(changes))
		}
		before := db.fingerprint(t)
		for i := range 100 {
			if i%10 == 9 {
				db.AdvanceClock(t, 24*time.Hour) // over the end of the month, and of the override
			}
			if changes := db.apply(t, file, catalog.ApplyOptions{}); changes.Count(catalog.Unchanged) != 1 {
				t.Fatalf("%s, applied again at day %d: %v", fields, i/10, changes.Items)
			}
			if put := db.putShown(t); put.Outcome != catalog.Unchanged {
				t.Fatalf("%s: PUT of what GET shows on day %d: %+v", fields, i/10, put)
			}
		}
		if after := db.fingerprint(t); after != before {
			t.Errorf("%s: applying it again wrote\n%s\nover\n%s", fields, after, before)
		}
	}
}

// Overrides that a spec does not name stay, and an empty list ends them.
func TestAbsentOverridesStay(t *testing.T) {
	t.Parallel()
	db := newTermsDatabase(t, "2026-05-01T12:00:00Z", "plan: free, overrides: ["+launch+"]")
	first := db.tenant(t)
	want := `{"plan":"free","timezone":"UTC","billing_anchor":1,"status":"active","overrides":[{"name":"hourly","limit":5000,` +
		`"from":"2026-05-01T00:00:00Z","until":"2026-05-08T00:00:00Z","reason":"launch week"}]}`
	if got := specJSON(t, first); got != want || first.OverrideSetID == 0 {
		t.Errorf("GET = %s, want %s", got, want)
	}
	db.apply(t, tenantFile("plan: pro, billing_anchor: 3"), catalog.ApplyOptions{})
	if got := db.tenant(t); !cmp.Equal(got.Overrides, first.Overrides, cmp.AllowUnexported(catalog.Override{})) || got.OverrideSetID != first.OverrideSetID {
		t.Errorf("overrides that are not named became %+v", got)
	}
	db.apply(t, tenantFile("plan: pro, overrides: []"), catalog.ApplyOptions{})
	if got := db.tenant(t); len(got.Overrides) != 0 || got.OverrideSetID != 0 {
		t.Errorf("overrides: [] left %+v", got)
	}
	if n := db.count(t, "select count(*) from quotad.override_set"); n != 1 {
		t.Errorf("%d sets were written, want 1", n)
	}
	if n := db.count(t, "select count(*) from quotad.config_change where object = 'tenant' and before -> 'overrides' -> 0 ->> 'reason' = 'launch week' and after -> 'overrides' is null"); n != 1 {
		t.Error("the history does not say that the override was ended")
	}
}

// Every wrong override is named by its field, and nothing is written.
func TestOverridesAreChecked(t *testing.T) {
	t.Parallel()
	db := newTermsDatabase(t, "2026-05-01T12:00:00Z", "plan: free, overrides: ["+launch+"]")
	before := db.fingerprint(t)
	override := func(fields string) string {
		return "plan: free, overrides: [{" + fields + ", until: 2027-01-01T00:00:00Z, reason: r}]"
	}
	seventeen := strings.Repeat(launch+", ", 17)
	for _, c := range []struct{ fields, fault string }{
		{override("name: none, limit: 5"), "acme.overrides[0]: must name a limit of the tenant's plan: free has no none"},
		{override("name: smooth, burst: 5"), "free has no smooth"}, // pro has it
		{override("name: hourly, capacity: 5"), "overrides[0]: gives capacity, which is no number of limit hourly: sliding_log has limit"},
		{override("name: burst, limit: 5"), "gives limit, which is no number of limit burst: token_bucket has capacity and refill"},
		{override("name: burst, capacity: 5, rate: 1/1s"), "gives rate, which is no number"},
		{override("name: hourly"), "overrides[0]: must give a number of the limit"},
		{override("name: hourly, limit: -1"), "overrides[0].limit: must be a whole number"},
		{override("name: hourly, limit: 5, unlimited: true"), "overrides[0].limit: must not stand beside unlimited"},
		{override("name: burst, refill: fast"), "overrides[0].refill: must be units per duration"},
		{override("name: shape, queue: 999999999"), "overrides[0]: must drain at its rate"},
		{override("name: inflight, limit: 1001"), "overrides[0]: must be at most 1000 for concurrency"},
		{override("name: hourly, limit: 5, window: 1h"), "window: is not a field here"},
		{override("name: hourly, limit: 5, mode: off"), "mode: is not a field here"},
		{override("limit: 5"), "overrides[0].name: is required"},
		{"plan: free, overrides: [{name: hourly, limit: 5, reason: r}]", "overrides[0].until: is required"},
		{"plan: free, overrides: [{name: hourly, limit: 5, until: 2027-01-01T00:00:00Z}]", "overrides[0].reason: is required"},
		{"plan: free, overrides: [{name: hourly, limit: 5, until: tomorrow, reason: r}]", "overrides[0].until: must be an instant of RFC 3339"},
		{"plan: free, overrides: [{name: hourly, limit: 5, until: 2027-01-01T00:00:00.0000001Z, reason: r}]", "to the microsecond"},
		{"plan: free, overrides: [{name: hourly, limit: 5, from: 2027-01-01T00:00:00Z, until: 2027-01-01T00:00:00Z, reason: r}]", "overrides[0].until: must be after from"},
		{
			"plan: free, overrides: [" + launch + ", {name: hourly, limit: 1, from: 2026-05-07T23:59:59.999999Z, until: 2027-01-01T00:00:00Z, reason: r}]",
			"overrides[1]: must not overlap overrides[0]",
		},
		{"plan: free, overrides: [" + seventeen[:len(seventeen)-2] + "]", "overrides: must hold at most 16, not 17"},
		{"plan: free, plan_from: later", "plan_from: must be one of now, next_period"},
		{"plan: free, next_plan: pro", "next_plan_at: is required beside next_plan"},
		{"plan: free, next_plan_at: 2027-01-01T00:00:00Z", "next_plan: is required beside next_plan_at"},
		{"plan: free, next_plan: free, next_plan_at: 2027-01-01T00:00:00Z", "next_plan: must be another one than plan"},
		{"plan: free, plan_from: now, next_plan: pro, next_plan_at: 2027-01-01T00:00:00Z", "next_plan: must not stand beside plan_from"},
		{"plan: free, next_plan: none, next_plan_at: 2027-01-01T00:00:00Z", "next_plan: must name a plan: there is no none"},
		{"plan: none, plan_from: next_period", "plan: must name a plan: there is no none"},
	} {
		config, err := catalog.ParseFile([]byte(tenantFile(c.fields)), "q.yaml")
		if err == nil {
			_, err = db.Apply(t.Context(), "tester", config, catalog.ApplyOptions{})
		}
		if err == nil || !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: got %v, want a fault %q", c.fields, err, c.fault)
		}
	}
	if after := db.fingerprint(t); after != before {
		t.Error("a refused override was written")
	}
	// One override may follow on another, and may be of the next plan.
	db.apply(t, tenantFile("plan: free, next_plan: pro, next_plan_at: 2026-06-01T00:00:00Z, overrides: ["+launch+
		", {name: hourly, limit: 1, from: 2026-05-08T00:00:00Z, until: 2027-01-01T00:00:00Z, reason: r}"+
		", {name: smooth, burst: 50, until: 2027-01-01T00:00:00Z, reason: r}]"), catalog.ApplyOptions{})
}

// A plan that changes under an override is none of the override's business: it has no effect
// where it does not match, and what GET shows can still be put.
func TestAnOverrideThatNoLongerMatchesIsLetBe(t *testing.T) {
	t.Parallel()
	db := newTermsDatabase(t, "2026-05-02T12:00:00Z", "plan: free, overrides: ["+launch+", {name: burst, capacity: 50, until: 2027-01-01T00:00:00Z, reason: trial}]")
	set := db.tenant(t).OverrideSetID
	db.apply(t, `plans: {free: {limits: [{name: burst, meter: calls, algorithm: sliding_log, limit: 7, window: 1m}]}}`, catalog.ApplyOptions{})
	if put := db.putShown(t); put.Outcome != catalog.Unchanged {
		t.Errorf("PUT of what GET shows = %+v", put)
	}
	plan, err := db.Plan(t.Context(), "free")
	if err != nil {
		t.Fatal(err)
	}
	sets, err := db.OverrideSets(t.Context(), db.Service(t), []int64{set})
	if err != nil {
		t.Fatal(err)
	}
	under := plan.Under(sets[set], at("2026-05-02T12:00:00Z").UnixMicro())
	if diff := cmp.Diff(plan.Limits, under.Limits); diff != "" || under.SpecDigest == plan.SpecDigest || under.OverrideSetID != set {
		t.Errorf("the plan under overrides of other limits (-plan +under):\n%s", diff)
	}
}

// A switch to the next period comes exactly at the end of the tenant's billing month, in its
// own zone and from its own anchor day, and needs nobody to do anything then.
func TestASwitchComesAtTheEndOfTheBillingMonth(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ now, calendar, want string }{
		{"2026-05-20T12:00:00Z", "timezone: UTC", "2026-06-01T00:00:00Z"},
		{"2026-05-31T23:59:59.999999Z", "timezone: UTC", "2026-06-01T00:00:00Z"},
		{"2026-06-01T00:00:00Z", "timezone: UTC", "2026-07-01T00:00:00Z"},
		{"2026-05-20T12:00:00Z", "timezone: Asia/Kolkata", "2026-05-31T18:30:00Z"},
		{"2026-03-20T12:00:00Z", "timezone: Europe/Berlin, billing_anchor: 29", "2026-03-28T23:00:00Z"}, // winter time still
		{"2026-03-28T23:00:00Z", "timezone: Europe/Berlin, billing_anchor: 29", "2026-04-28T22:00:00Z"},
		{"2027-02-10T12:00:00Z", "timezone: UTC, billing_anchor: 31", "2027-02-28T00:00:00Z"},
		{"2028-02-10T12:00:00Z", "timezone: UTC, billing_anchor: 31", "2028-02-29T00:00:00Z"},
		{"2026-04-04T12:00:00Z", "timezone: Australia/Lord_Howe, billing_anchor: 5", "2026-04-04T13:00:00Z"},
		{"2026-04-04T13:00:00Z", "timezone: Australia/Lord_Howe, billing_anchor: 5", "2026-05-04T13:30:00Z"},
	} {
		db := newTermsDatabase(t, c.now, "plan: free, "+c.calendar)
		db.apply(t, tenantFile("plan: pro, plan_from: next_period"), catalog.ApplyOptions{})
		pending := db.tenant(t)
		if pending.Plan != "free" || pending.NextPlan != "pro" || !pending.NextPlanAt.Equal(at(c.want)) {
			t.Errorf("%s, %s: %s until %s, then %s; want %s", c.now, c.calendar, pending.Plan, pending.NextPlanAt, pending.NextPlan, c.want)
		}
		before := db.fingerprint(t)
		db.SetClock(t, at(c.want).Add(-time.Microsecond))
		if got := db.tenant(t); got.Plan != "free" || got.NextPlan != "pro" || got.Tag() != pending.Tag() {
			t.Errorf("%s: a microsecond before, the tenant has %s", c.want, specJSON(t, got))
		}
		db.SetClock(t, at(c.want))
		if got := db.tenant(t); got.Plan != "pro" || got.NextPlan != "" || !got.NextPlanAt.IsZero() || got.Tag() == pending.Tag() {
			t.Errorf("%s: then, the tenant has %s", c.want, specJSON(t, got))
		}
		if db.fingerprint(t) != before {
			t.Error("reading the tenant wrote something")
		}
	}
}

// A changed calendar starts with the next month: so the one that it is changed in ends as it
// was to end.
func TestASwitchWithAChangedCalendarComesWhenTheMonthWasToEnd(t *testing.T) {
	t.Parallel()
	db := newTermsDatabase(t, "2026-05-20T12:00:00Z", "plan: free, timezone: Asia/Kolkata")
	db.apply(t, tenantFile("plan: pro, plan_from: next_period, timezone: UTC, billing_anchor: 10"), catalog.ApplyOptions{})
	if got := db.tenant(t); !got.NextPlanAt.Equal(at("2026-05-31T18:30:00Z")) {
		t.Errorf("next_plan_at = %s", got.NextPlanAt)
	}
}

// What is said of a plan decides what becomes of a switch that is pending.
func TestAPendingSwitch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ now, fields, plan, next string }{
		{"2026-05-21T00:00:00Z", "plan: free", "free", ""}, // the plan is free, and no other follows
		{"2026-05-21T00:00:00Z", "plan: free, plan_from: next_period", "free", ""},
		{"2026-05-21T00:00:00Z", "plan: pro", "pro", ""},
		{"2026-05-21T00:00:00Z", "plan: pro, plan_from: now", "pro", ""},
		{"2026-05-21T00:00:00Z", "plan: pro, plan_from: next_period, status: suspended", "free", "pro"},
		{"2026-05-21T00:00:00Z", "plan: max, plan_from: next_period", "free", "max"},
		{"2026-06-01T00:00:00Z", "plan: free", "free", ""}, // back again
		{"2026-06-01T00:00:00Z", "plan: pro, status: suspended", "pro", ""},
		{"2026-06-01T00:00:00Z", "plan: free, plan_from: next_period", "pro", "free"},
		{"2026-06-01T00:00:00Z", "plan: free, next_plan: pro, next_plan_at: 2026-06-01T00:00:00Z", "pro", ""},
	} {
		db := newTermsDatabase(t, "2026-05-20T12:00:00Z", "plan: free")
		db.apply(t, tenantFile("plan: pro, plan_from: next_period"), catalog.ApplyOptions{})
		db.SetClock(t, at(c.now))
		db.apply(t, tenantFile(c.fields), catalog.ApplyOptions{})
		got := db.tenant(t)
		if got.Plan != c.plan || got.NextPlan != c.next || got.NextPlanAt.IsZero() != (c.next == "") {
			t.Errorf("%s at %s: %s", c.fields, c.now, specJSON(t, got))
		}
		if strings.Contains(c.fields, "suspended") && db.count(t, "select count(*) from quotad.terms") != 2 {
			t.Errorf("%s: another status made new terms", c.fields)
		}
	}
	db := newTermsDatabase(t, "2026-05-20T12:00:00Z", "plan: pro, plan_from: next_period")
	if got := db.tenant(t); got.Plan != "pro" || got.NextPlan != "" {
		t.Errorf("a new tenant waits for its plan: %s", specJSON(t, got))
	}
}

// A plan that someone gets next cannot be removed; the one that it takes the place of can,
// from that instant on.
func TestAPlanThatComesNextCannotBeRemoved(t *testing.T) {
	t.Parallel()
	db := newTermsDatabase(t, "2026-05-20T12:00:00Z", "plan: free")
	db.apply(t, tenantFile("plan: pro, plan_from: next_period"), catalog.ApplyOptions{})
	without := func(plan string) (catalog.Changes, error) {
		config := parse(t, configTerms)
		delete(config.Plans, plan)
		return db.Apply(t.Context(), "tester", config, catalog.ApplyOptions{Prune: true})
	}
	for _, plan := range []string{"free", "pro"} {
		_, err := without(plan)
		wantFault(t, err, fmt.Sprintf("plans.%s: cannot be removed: tenants that have it or get it next: 1", plan))
	}
	db.SetClock(t, at("2026-06-01T00:00:00Z"))
	_, err := without("pro")
	wantFault(t, err, "plans.pro: cannot be removed")
	if _, err := without("free"); err != nil {
		t.Errorf("removing the plan that nobody has: %v", err)
	}
	if got := db.tenant(t); got.Plan != "pro" || got.NextPlan != "" {
		t.Errorf("then the tenant has %s", specJSON(t, got))
	}
	if n := db.count(t, "select count(*) from quotad.account where plan = 'pro' and next_plan is null"); n != 1 {
		t.Error("the account still names the removed plan")
	}
}

// Lists, and what a bound key may see, go by the plan in force.
func TestListsGoByThePlanInForce(t *testing.T) {
	t.Parallel()
	db := newTermsDatabase(t, "2026-05-20T12:00:00Z", "plan: free")
	db.apply(t, tenantFile("plan: pro, plan_from: next_period"), catalog.ApplyOptions{})
	has := func(plan string) bool {
		tenants, _, err := db.Tenants(t.Context(), catalog.TenantQuery{Plan: plan})
		if err != nil {
			t.Fatal(err)
		}
		return len(tenants) == 1 && tenants[0].Plan == plan
	}
	if !has("free") || has("pro") {
		t.Errorf("before: free lists it %v, pro %v", has("free"), has("pro"))
	}
	db.SetClock(t, at("2026-06-01T00:00:00Z"))
	if has("free") || !has("pro") {
		t.Errorf("after: free lists it %v, pro %v", has("free"), has("pro"))
	}
	for plan, want := range map[string]bool{"free": true, "pro": true, "max": false} {
		if had, err := db.HadPlan(t.Context(), "acme", plan); err != nil || had != want {
			t.Errorf("HadPlan(%s) = %v, %v", plan, had, err)
		}
	}
	plans, _, err := db.PlansOfTenant(t.Context(), "acme", catalog.Page{})
	if err != nil || len(plans) != 2 || plans[0].Name != "free" || plans[1].Name != "pro" {
		t.Errorf("PlansOfTenant = %v, %v", plans, err)
	}
	for when, want := range map[string]string{"2026-05-20T12:00:00Z": "free", "2026-05-31T23:59:59.999999Z": "free", "2026-06-01T00:00:00Z": "pro"} {
		if got, err := db.TenantAt(t.Context(), "acme", at(when)); err != nil || got.Plan != want {
			t.Errorf("TenantAt(%s) = %s, %v", when, got.Plan, err)
		}
	}
}
