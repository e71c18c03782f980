package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/quota"
)

// The files named guarantee_* hold the tests of what callers rely on whatever algorithm
// their plan names. docs/cases.md maps the faults that others shipped to them.

// A kind is one way to count. Its plan and its tenant have its name; the plan has one
// limit, called it, on the meter api.calls.
type kind struct {
	name   string
	fields string // of the limit, with %d for its units
	level  bool   // comes back bit by bit, from a level that is kept
}

// kinds is every algorithm, and every word of the calendar. Sevenths of a minute are no
// whole number of microseconds.
var kinds = []kind{
	{"log", `"algorithm":"sliding_log","limit":%d,"window":"1m"`, false},
	{"counter", `"algorithm":"sliding_counter","limit":%d,"window":"1m"`, false},
	{"cell", `"algorithm":"fixed_window","limit":%d,"window":"1m"`, false},
	{"hour", `"algorithm":"fixed_window","limit":%d,"window":"hour"`, false},
	{"day", `"algorithm":"fixed_window","limit":%d,"window":"day"`, false},
	{"week", `"algorithm":"fixed_window","limit":%d,"window":"week"`, false},
	{"month", `"algorithm":"fixed_window","limit":%d,"window":"month"`, false},
	{"year", `"algorithm":"fixed_window","limit":%d,"window":"year"`, false},
	{"bucket", `"algorithm":"token_bucket","capacity":%d,"refill":"7/1m"`, true},
	{"gcra", `"algorithm":"gcra","burst":%d,"rate":"7/1m"`, true},
	{"queue", `"algorithm":"leaky_bucket","queue":%d,"rate":"7/1m"`, true},
}

// fixed reports whether everything the kind counts comes back at once, at an instant
// that no traffic moves.
func (k kind) fixed() bool { return strings.Contains(k.fields, "fixed_window") }

// limitOf writes a limit of the kind on api.calls as a file and a PUT have it.
func (k kind) limitOf(name string, units int64) string {
	return fmt.Sprintf(`{"name":%q,"meter":"api.calls",`+k.fields+`}`, name, units)
}

func planOf(limits ...string) string { return `{"limits":[` + strings.Join(limits, ",") + `]}` }

// A configuration is written piece by piece.
type configuration struct{ meters, plans, tenants []string }

func (c *configuration) tenant(name, plan string) {
	c.plans = append(c.plans, fmt.Sprintf("%q:%s", name, plan))
	c.tenants = append(c.tenants, fmt.Sprintf(`%q:{"plan":%q,"timezone":"America/New_York","billing_anchor":31}`, name, name))
}

func (c *configuration) String() string {
	meters := append([]string{`"api.calls":{"unit":"call"}`}, c.meters...)
	return `{"meters":{` + strings.Join(meters, ",") + `},"plans":{` + strings.Join(c.plans, ",") +
		`},"tenants":{` + strings.Join(c.tenants, ",") + `}}`
}

// configOf has every kind with a limit of so many units.
func configOf(units int64) *configuration {
	c := &configuration{}
	for _, k := range kinds {
		c.tenant(k.name, planOf(k.limitOf("it", units)))
	}
	return c
}

// newKinds starts the service with a configuration.
func newKinds(t *testing.T, c *configuration) *service {
	t.Helper()
	return newInstances(t, 1, c)[0]
}

// newInstances starts n instances on one database. When the test has ended, what it left
// there must be what its entries say.
func newInstances(t *testing.T, n int, c *configuration) []*service {
	t.Helper()
	db := pgtest.New(t)
	instances := make([]*service, n)
	for i := range instances {
		instances[i] = startService(t, db, 0)
		instances[i].token(catalog.KeyDecide, "") // so that calls may be made at the same time
	}
	instances[0].apply(c.String())
	t.Cleanup(func() { wantVerified(t, instances[0]) })
	return instances
}

// wantVerified checks every chain, total, counter and level against the entries.
func wantVerified(t *testing.T, s *service) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // the test's own has ended
	db := s.db.Owner(t)
	heads, err := ledger.NewStore(db).Heads(ctx, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	verifier := quota.NewVerifier(s.store)
	for _, head := range heads {
		result, err := verifier.Verify(ctx, db, head.Tenant, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, finding := range result.Findings {
			t.Error(finding)
		}
	}
}

// eachKind runs a test on each kind's own tenant, from the same instant.
func eachKind(t *testing.T, s *service, test func(t *testing.T, s *service, k kind)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			s.db.SetClock(t, startOfTest)
			test(t, s.in(t), k)
		})
	}
}

// in is the service as a subtest has it.
func (s *service) in(t *testing.T) *service {
	c := *s
	c.t = t
	return &c
}

func charging(tenant string, cost int64) string {
	return fmt.Sprintf(`{"tenant":%q,"meter":"api.calls","cost":%d}`, tenant, cost)
}

// spend consumes of api.calls and wants a decision.
func (s *service) spend(tenant string, cost int64) (answer, quota.Decision) {
	s.t.Helper()
	a := s.consume(charging(tenant, cost))
	return a, s.decided(a)
}

// decided reads an answer that must be a decision.
func (s *service) decided(a answer) quota.Decision {
	s.t.Helper()
	if a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
		s.t.Fatalf("status = %d, want a decision; body %s", a.status, a.body)
	}
	d := a.decision(s.t)
	if d.Allowed != (a.status == http.StatusOK) {
		s.t.Fatalf("status = %d with allowed %t", a.status, d.Allowed)
	}
	return d
}

// admitted spends and wants it to pass.
func (s *service) admitted(tenant string, cost int64) quota.Decision {
	s.t.Helper()
	a, d := s.spend(tenant, cost)
	if !d.Allowed {
		s.t.Fatalf("%s spends %d: %s, want it allowed", tenant, cost, a.body)
	}
	return d
}

// denied spends and wants it to be denied.
func (s *service) denied(tenant string, cost int64) quota.Decision {
	s.t.Helper()
	a, d := s.spend(tenant, cost)
	if d.Allowed {
		s.t.Fatalf("%s spends %d: %s, want it denied", tenant, cost, a.body)
	}
	return d
}

// would asks without spending, for each cost alone.
func (s *service) would(tenant string, costs ...int64) []quota.Decision {
	s.t.Helper()
	items := make([]string, len(costs))
	for i, cost := range costs {
		items[i] = fmt.Sprintf(`{"tenant":%q,"meter":"api.calls","cost":%d,"dry_run":true}`, tenant, cost)
	}
	var decisions []quota.Decision
	for _, a := range s.batch(items...).results(s.t) {
		decisions = append(decisions, s.decided(a))
	}
	return decisions
}

// stand reads how the limits of a tenant stand.
func (s *service) stand(tenant string) []quota.LimitResult {
	s.t.Helper()
	return read[struct{ Limits []quota.LimitResult }](s.t, s.read(catalog.KeyRead, "/v1/tenants/"+tenant+"/limits")).Limits
}

// pass lets database time go by.
func (s *service) pass(d time.Duration) {
	s.t.Helper()
	s.db.AdvanceClock(s.t, d)
}

func (s *service) passMillis(ms int64) {
	s.t.Helper()
	s.pass(time.Duration(ms) * time.Millisecond)
}

// retryMillis is the wait of a denial, which must have one.
func retryMillis(t *testing.T, d quota.Decision) int64 {
	t.Helper()
	if d.Allowed || d.RetryMS == nil {
		t.Fatalf("%+v, want a denial with a wait", d)
	}
	return *d.RetryMS
}

// left is the remaining of a decision that bounds it.
func left(t *testing.T, d quota.Decision) int64 {
	t.Helper()
	if d.Remaining == nil {
		t.Fatalf("%+v has no remaining", d)
	}
	return *d.Remaining
}
