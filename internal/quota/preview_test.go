package quota

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

const previewConfig = `
meters:
  calls:  {unit: call}
  tokens: {unit: token, on_expiry: charge}
plans:
  pro:
    limits:
      - {name: hourly, meter: calls,  algorithm: sliding_log,  limit: 10, window: 1h}
      - {name: daily,  meter: calls,  algorithm: fixed_window, limit: 100, window: day, mode: shadow}
      - {name: pool,   meter: tokens, algorithm: token_bucket, capacity: 100, refill: 1/1s}
      - {name: slots,  meter: tokens, algorithm: concurrency,  limit: 5}
      - {name: mine,   meter: calls,  algorithm: sliding_log,  limit: 5, window: 1h, scope: subject}
  free:
    limits:
      - {name: hourly, meter: calls,  algorithm: sliding_log,  limit: 2, window: 1h}
tenants:
  acme:   {plan: pro}
  globex: {plan: pro}
  idle:   {plan: pro}
  other:  {plan: free}
`

// preview says what a configuration would mean.
func (w *world) preview(t *testing.T, config string) *Preview {
	t.Helper()
	parsed, err := catalog.ParseFile([]byte(config), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	x := NewPreviewer(w.catalog)
	if _, err := w.catalog.DryRun(x.Look).Apply(t.Context(), "test", parsed, catalog.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	return x.Preview()
}

// text shows a preview's tenants, a line each.
func (p *Preview) text() (lines []string) {
	show := func(n *int64) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	for _, t := range p.Tenants {
		line := fmt.Sprintf("%s %s>%s denied=%t", t.Tenant, t.PlanBefore, t.PlanAfter, t.Denied)
		for _, l := range t.Limits {
			line += fmt.Sprintf(" | %s %s/%s>%s/%s %t", l.Name, show(l.RemainingBefore), show(l.LimitBefore),
				show(l.RemainingAfter), show(l.LimitAfter), l.Denied)
		}
		lines = append(lines, line)
	}
	return lines
}

func newPreviewWorld(t *testing.T) (*world, *Engine) {
	w := newWorldAt(t, holdNoon, previewConfig)
	w.db.Exec(t, "select quotad.ensure_partitions('2026-02-01', '2026-04-01')")
	e := w.engine(t, nil)
	mustDecide(t, e, by("ann", consume("acme", "calls", 4)))
	mustDecide(t, e, by("ann", consume("globex", "calls", 1)))
	mustDecide(t, e, consume("globex", "tokens", 60))
	mustDecide(t, e, Request{
		Kind: ledger.KindHold, Tenant: "globex", TTL: time.Minute, Charges: []Charge{{Meter: "tokens", Cost: 30}},
	})
	return w, e
}

// A preview must be what the change then does: usage is kept, the numbers are new.
func TestAPreviewSaysWhatTheChangeThenDoes(t *testing.T) {
	t.Parallel()
	w, e := newPreviewWorld(t)
	w.db.SetClock(t, holdNoon.Add(10*time.Second))
	change := strings.NewReplacer("limit: 10, window: 1h", "limit: 4, window: 1h", "capacity: 100", "capacity: 80", "limit: 100", "limit: 90").
		Replace(previewConfig)
	before := w.preview(t, previewConfig)
	if before != nil {
		t.Errorf("a change of nothing has a preview: %+v", before)
	}
	p := w.preview(t, change)
	want := []string{
		"acme pro>pro denied=true | daily 96/100>86/90 false | hourly 6/10>0/4 true | pool 100/100>80/80 false",
		"globex pro>pro denied=false | daily 99/100>89/90 false | hourly 9/10>3/4 false | pool 20/100>20/80 false",
		"idle pro>pro denied=false | daily 100/100>90/90 false | hourly 10/10>4/4 false | pool 100/100>80/80 false",
	}
	if diff := cmp.Diff(want, p.text()); diff != "" {
		t.Errorf("preview (-want +got):\n%s", diff)
	}
	if got := []int{p.Affected, p.Looked, p.Differ, p.Denied}; !cmp.Equal(got, []int{3, 3, 3, 1}) {
		t.Errorf("affected, looked at, differing, denied: got %v, want 3 3 3 1", got)
	}
	w.apply(t, change)
	for _, tenant := range p.Tenants {
		stands, err := e.Limits(t.Context(), tenant.Tenant, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range tenant.Limits {
			if got := limitNamed(stands, l.Name); got.Remaining != *l.RemainingAfter || got.Limit != *l.LimitAfter {
				t.Errorf("%s of %s has %d of %d left, the preview said %d of %d", l.Name, tenant.Tenant,
					got.Remaining, got.Limit, *l.RemainingAfter, *l.LimitAfter)
			}
		}
	}
	if again := w.preview(t, change); again != nil {
		t.Errorf("the same change again has a preview: %+v", again)
	}
	w.verify(t)
}

// A switch to another plan, or a hold that has ended by now, is seen as decisions see it.
func TestAPreviewOfATenantSeesThatTenantAlone(t *testing.T) {
	t.Parallel()
	w, _ := newPreviewWorld(t)
	w.db.SetClock(t, holdNoon.Add(time.Minute)) // the hold has ended, and is charged
	entries := len(w.entries(t, "globex"))
	p := w.preview(t, "tenants: {globex: {plan: free}}")
	want := []string{"globex pro>free denied=true | daily 99/100>-/- false | hourly 9/10>1/2 false | pool 70/100>-/- true | slots 5/5>-/- true"}
	if diff := cmp.Diff(want, p.text()); diff != "" || p.Affected != 1 {
		t.Errorf("%d affected; preview (-want +got):\n%s", p.Affected, diff)
	}
	p = w.preview(t, "tenants: {acme: {plan: pro, status: suspended}, new: {plan: pro}}")
	want = []string{"acme pro>pro denied=true | daily 96/100>0/100 false | hourly 6/10>0/10 true | pool 100/100>0/100 true | slots 5/5>0/5 true"}
	if diff := cmp.Diff(want, p.text()); diff != "" || p.Affected != 1 {
		t.Errorf("%d affected; preview (-want +got):\n%s", p.Affected, diff)
	}
	if got := len(w.entries(t, "globex")); got > entries+1 { // the sweep may have ended the hold
		t.Errorf("%d entries after looking, want %d", got, entries)
	}
}

func TestAPreviewCountsOverridesAndSwitches(t *testing.T) {
	t.Parallel()
	w, _ := newPreviewWorld(t)
	over := `[{name: hourly, limit: 3, until: "2026-03-02T00:00:00Z", reason: trial}]`
	p := w.preview(t, "tenants: {acme: {plan: pro, overrides: "+over+"}}")
	want := []string{"acme pro>pro denied=true | hourly 6/10>0/3 true"}
	if diff := cmp.Diff(want, p.text()); diff != "" {
		t.Errorf("of an override (-want +got):\n%s", diff)
	}
	w.apply(t, "tenants: {acme: {plan: pro, overrides: "+over+"}}")
	p = w.preview(t, strings.Replace(previewConfig, "limit: 10, window: 1h", "limit: 20, window: 1h", 1))
	want = []string{"globex pro>pro denied=false | hourly 9/10>19/20 false", "idle pro>pro denied=false | hourly 10/10>20/20 false"}
	if diff := cmp.Diff(want, p.text()); diff != "" || p.Affected != 3 {
		t.Errorf("%d affected; of a plan under an override (-want +got):\n%s", p.Affected, diff)
	}
	p = w.preview(t, "tenants: {acme: {plan: pro, overrides: []}}")
	want = []string{"acme pro>pro denied=false | hourly 0/3>6/10 false"}
	if diff := cmp.Diff(want, p.text()); diff != "" {
		t.Errorf("of an override's end (-want +got):\n%s", diff)
	}
	if p = w.preview(t, "tenants: {acme: {plan: free, plan_from: next_period}}"); p.Affected != 1 || p.Differ != 0 {
		t.Errorf("of a switch that is to come: got %+v, want no difference now", p)
	}
}

func TestAPreviewListsTheDeniedFirstAndNotMoreThanAHundred(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, holdNoon, previewConfig)
	w.db.Exec(t, "select quotad.ensure_partitions('2026-02-01', '2026-04-01')")
	e := w.engine(t, nil)
	config := "tenants:\n"
	for i := range 250 {
		config += fmt.Sprintf("  t%03d: {plan: pro}\n", i)
	}
	w.apply(t, config)
	for _, tenant := range []string{"t003", "t207", "t249"} {
		mustDecide(t, e, by("ann", consume(tenant, "calls", 5)))
	}
	p := w.preview(t, strings.Replace(previewConfig, "limit: 10, window: 1h", "limit: 5, window: 1h", 1))
	var first []string
	for _, tenant := range p.Tenants[:4] {
		first = append(first, tenant.Tenant)
	}
	if diff := cmp.Diff([]string{"t003", "t207", "t249", "acme"}, first); diff != "" || len(p.Tenants) != 100 {
		t.Errorf("%d are listed; the first (-want +got):\n%s", len(p.Tenants), diff)
	}
	if got := []int{p.Affected, p.Looked, p.Differ, p.Denied}; !cmp.Equal(got, []int{253, 253, 253, 3}) {
		t.Errorf("affected, looked at, differing, denied: got %v, want 253 253 253 3", got)
	}
}
