package api

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// perSubject is a limit of each algorithm on api.calls, which counts per subject.
func perSubject(units int64) (limits []string) {
	for _, k := range kinds {
		switch k.name {
		case "log", "counter", "cell", "bucket", "gcra", "queue":
			limits = append(limits, strings.Replace(k.limitOf(k.name, units), "}", `,"scope":"subject"}`, 1))
		}
	}
	return limits
}

// Ids are the caller's own and may hold anything that callers join them with. Tenants
// and subjects that would be equal if they were joined, cut, folded or normalized are
// different ones, for every algorithm, and so are their idempotency keys.
func TestIDsThatLookAlikeCountApart(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 255)
	owners := []struct{ tenant, subject string }{
		{"aa", "b"},
		{"a", "ab"},
		{"a", "b"},
		{"a:b", "c"},
		{"a", "b:c"},
		{"a_b", "c"},
		{"a", "b_c"},
		{"a/b", "c"},
		{"a", "b/c"},
		{"a", "B"},
		{"A", "b"},
		{"a", "b "},
		{"a", " b"},
		{"a", "é"},
		{"a", "e\u0301"},
		{"a", "%62"},
		{"a", "0"},
		{"a", "00"},
		{long + "y", "b"},
		{long + "z", "b"},
		{"a", long + "y"},
		{"a", long + "z"},
	}
	c := &configuration{}
	c.plans = append(c.plans, `"users":`+planOf(perSubject(100)...))
	listed := map[string]bool{}
	for _, owner := range owners {
		if !listed[owner.tenant] {
			c.tenants = append(c.tenants, fmt.Sprintf(`%q:{"plan":"users"}`, owner.tenant))
		}
		listed[owner.tenant] = true
	}
	s := newKinds(t, c)
	for i, owner := range owners {
		body := fmt.Sprintf(`{"tenant":%q,"subject":%q,"meter":"api.calls","cost":%d}`, owner.tenant, owner.subject, i+1)
		key := fmt.Sprintf("%q", strings.Repeat("k", 254)+string(rune('A'+i))) // as long as a key may be
		if d := s.decided(s.consume(body, "Idempotency-Key", key)); !d.Allowed || d.Limits[0].Used != int64(i+1) {
			t.Errorf("%q of %q: %+v, want %d used", owner.subject, owner.tenant, d.Limits, i+1)
		}
	}
	for i, owner := range owners {
		path := "/v1/tenants/" + url.PathEscape(owner.tenant) + "/limits?subject=" + url.QueryEscape(owner.subject)
		limits := read[struct{ Limits []quota.LimitResult }](t, s.read(catalog.KeyRead, path)).Limits
		if len(limits) != 6 {
			t.Fatalf("%d limits, want 6", len(limits))
		}
		for _, l := range limits {
			if l.Used != int64(i+1) {
				t.Errorf("%q of %q: limit %s has %d used, want %d", owner.subject, owner.tenant, l.Name, l.Used, i+1)
			}
		}
	}
}

// An id of 256 bytes and a key of 255 are taken whole. A longer one, and an empty one, is
// a 400 that names it: not cut, not taken for none, not a denial and not our fault.
func TestIDsAreTakenUpToTheirBoundAndRefusedBeyond(t *testing.T) {
	t.Parallel()
	longest := strings.Repeat("é", 128)
	c := &configuration{}
	c.plans = append(c.plans, `"users":`+planOf(perSubject(100)...))
	c.tenants = append(c.tenants, fmt.Sprintf(`%q:{"plan":"users"}`, longest))
	s := newKinds(t, c)
	body := func(tenant, subject string) string {
		return fmt.Sprintf(`{"tenant":%q,"subject":%q,"meter":"api.calls"}`, tenant, subject)
	}
	s.consume(body(longest, longest), "Idempotency-Key", strings.Repeat("k", 255)).want(t, 200)
	rows := s.rows()
	for _, tt := range []struct{ tenant, subject, key, field, rule string }{
		{longest + "x", "u", "k", "tenant", "1 to 256 bytes"},
		{"", "u", "k", "tenant", "1 to 256 bytes"},
		{longest, longest + "x", "k", "subject", "1 to 256 bytes"},
		{longest, "", "k", "subject", "1 to 256 bytes"},
		{longest, "u", strings.Repeat("k", 256), "Idempotency-Key", "at most 255 bytes"},
		{longest, "u", `""`, "Idempotency-Key", "must not be empty"},
	} {
		s.consume(body(tt.tenant, tt.subject), "Idempotency-Key", tt.key).wantFault(t, tt.field, tt.rule)
		item := strings.TrimSuffix(body(tt.tenant, tt.subject), "}") + fmt.Sprintf(`,"idempotency_key":%q}`, strings.Trim(tt.key, `"`))
		field := strings.Replace(tt.field, "Idempotency-Key", "idempotency_key", 1)
		s.batch(item).results(t)[0].wantFault(t, field, tt.rule)
	}
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("rows, before-, after+:\n%s", diff)
	}
}

// Names that somebody makes up cost nothing unless they are let through: an unknown
// tenant, a subject that is denied, a dry run leave no row and no metric behind. A
// subject that is let through has one row for itself, one for each meter and one for
// each level, however often it comes; its entries are the ledger.
func TestAFloodOfNamesLeavesBoundedRows(t *testing.T) {
	t.Parallel()
	const names = 150
	c := &configuration{}
	c.tenant("users", planOf(perSubject(3)...))
	s := newKinds(t, c)
	flood := func(format string, want int) {
		t.Helper()
		var items []string
		for i := range names {
			items = append(items, fmt.Sprintf(format, i))
		}
		for _, a := range s.batch(items...).results(t) {
			a.want(t, want)
		}
	}
	series := func() int {
		return strings.Count(s.do(request{method: http.MethodGet, path: "/metrics"}).want(t, 200).body, "\nquotad_")
	}
	s.consume(`{"tenant":"users","subject":"first","meter":"api.calls"}`).want(t, 200)
	s.consume(`{"tenant":"users","subject":"first","meter":"api.calls","cost":3}`).want(t, 429)
	s.consume(`{"tenant":"users","subject":"first","meter":"api.calls","cost":9}`).want(t, 429)
	s.consume(`{"tenant":"users","subject":"first","meter":"api.calls","dry_run":true}`).want(t, 200)
	flood(`{"tenant":"nobody %d","meter":"api.calls"}`, 404)
	rows, metrics := s.rows(), series()
	flood(`{"tenant":"nobody again %d","meter":"api.calls"}`, 404)
	flood(`{"tenant":"users","subject":"denied %d","meter":"api.calls","cost":4}`, 429)
	flood(`{"tenant":"users","subject":"dry %d","meter":"api.calls","dry_run":true}`, 200)
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("rows of names that were not let through, before-, after+:\n%s", diff)
	}
	for range 3 {
		flood(`{"tenant":"users","subject":"user %d","meter":"api.calls"}`, 200)
	}
	flood(`{"tenant":"users","subject":"user %d","meter":"api.calls"}`, 429)
	want := map[string]int64{
		"entry": rows["entry"] + 3*names, "subject": rows["subject"] + names, "meter_total": rows["meter_total"] + names,
		"entry_dims": 0, "idempotency": 0, "hold": 0,
	}
	if diff := cmp.Diff(want, s.rows()); diff != "" {
		t.Errorf("rows of %d subjects after three calls each, want-, got+:\n%s", names, diff)
	}
	if got := series(); got != metrics {
		t.Errorf("%d series of metrics after the flood, want the %d before it", got, metrics)
	}
}

// What is deleted is only ever the log of denials, and no decision reads that: a tenant
// that used all of a year has nothing left after its denials are gone, and has everything
// when the year is over.
func TestDeletingOldDenialsGivesNothingBack(t *testing.T) {
	t.Parallel()
	c := &configuration{}
	long := []kind{
		{name: "log", fields: `"algorithm":"sliding_log","limit":%d,"window":"8760h"`},
		{name: "counter", fields: `"algorithm":"sliding_counter","limit":%d,"window":"8760h"`},
		{name: "cell", fields: `"algorithm":"fixed_window","limit":%d,"window":"8760h"`},
		{name: "year", fields: `"algorithm":"fixed_window","limit":%d,"window":"year"`},
		{name: "bucket", fields: `"algorithm":"token_bucket","capacity":%d,"refill":"1/8760h"`},
		{name: "gcra", fields: `"algorithm":"gcra","burst":%d,"rate":"1/8760h"`},
		{name: "queue", fields: `"algorithm":"leaky_bucket","queue":%d,"rate":"1/8760h"`},
	}
	for _, k := range long {
		c.tenant(k.name, planOf(k.limitOf("it", 5)))
	}
	s := newKinds(t, c)
	kept := func(tenant string) int {
		return len(read[denialsPage](t, s.read(catalog.KeyAudit, "/v1/tenants/"+tenant+"/denials")).Denials)
	}
	s.db.SetClock(t, time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC))
	for _, k := range long {
		s.admitted(k.name, 5)
		s.denied(k.name, 1)
		if n := kept(k.name); n != 1 {
			t.Errorf("%s: %d denials are kept, want 1", k.name, n)
		}
	}
	s.pass(40 * 24 * time.Hour)
	startService(t, s.db, 0) // an instance cleans up once it has started
	s.db.SetClock(t, time.Date(2026, 3, 13, 0, 0, 0, 0, time.UTC))
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for left := 500; kept("log") > 0; left-- {
		if left == 0 {
			t.Fatal("denials of 40 days ago are still there")
		}
		<-tick.C
	}
	for _, k := range long {
		if d := s.denied(k.name, 1); d.Limits[0].Used != 5 {
			t.Errorf("%s: %+v after its denials were deleted, want 5 used", k.name, d)
		}
	}
	s.pass(2 * 8760 * time.Hour)
	for _, k := range long {
		s.admitted(k.name, 1)
	}
}
