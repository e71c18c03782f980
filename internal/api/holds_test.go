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

// What is wrong with a request about a hold, or a reversal, is named, and changes nothing.
func TestBadHoldRequestsAreNamedAndWriteNothing(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	id := s.held("log", 5, time.Minute)
	s.admitted("log", 5)
	rows := s.rows()
	for _, tt := range []struct{ path, body, field, rule string }{
		{"/v1/holds", `{"tenant":"log","meter":"api.calls","ttl_ms":0}`, "ttl_ms", quota.TTLRule},
		{"/v1/holds", `{"tenant":"log","meter":"api.calls","ttl_ms":86400001}`, "ttl_ms", quota.TTLRule},
		{"/v1/holds", `{"tenant":"log","meter":"api.calls","ttl_ms":999999999999999}`, "ttl_ms", quota.TTLRule},
		{"/v1/holds", `{"tenant":"log","meter":"api.calls","ttl_ms":1.5}`, "ttl_ms", quota.TTLRule},
		{"/v1/holds", `{"tenant":"log","meter":"api.calls","ttl_ms":null}`, "ttl_ms", quota.TTLRule},
		{"/v1/holds", `{"tenant":"log","meter":"api.calls","seq":1}`, "seq", "is not a field"},
		{"/v1/holds", `{"tenant":"log","meter":"nope"}`, "meter", "configured meter"},
		{"/v1/holds", `{"tenant":"log"}`, "meter", "is required"},
		{"/v1/holds", `{"meter":"api.calls"}`, "tenant", "is required"},
		{"/v1/consume", `{"tenant":"log","meter":"api.calls","ttl_ms":1}`, "ttl_ms", "is not a field"},
		{"/v1/holds/ID/settle", `{"tenant":"log"}`, "cost", "is required, or pools"},
		{"/v1/holds/ID/settle", `{"tenant":"log","meter":"api.calls"}`, "cost", "is required, or pools"},
		{"/v1/holds/ID/settle", `{"tenant":"log","charges":[{"meter":"api.calls"}]}`, "charges[0].cost", "is required, or pools"},
		{"/v1/holds/ID/settle", `{"tenant":"log","charges":[{"cost":1}]}`, "charges[0].meter", "is required"},
		{"/v1/holds/ID/settle", `{"tenant":"log","charges":[]}`, "charges", "at least one"},
		{"/v1/holds/ID/settle", `{"tenant":"log","cost":1,"charges":[{"meter":"api.calls","cost":1}]}`, "charges", "together"},
		{"/v1/holds/ID/settle", `{"tenant":"log","cost":1,"pools":{"input":1}}`, "pools", "together"},
		{"/v1/holds/ID/settle", `{"tenant":"log","cost":-1}`, "cost", wholeNumberRule},
		{"/v1/holds/ID/settle", `{"tenant":"log","cost":1,"meter":""}`, "meter", catalog.NameRule},
		{"/v1/holds/ID/settle", `{"tenant":"log","cost":1,"meter":"llm.tokens"}`, "meter", "meter of the hold"},
		{"/v1/holds/ID/settle", `{"tenant":"log","cost":1,"subject":"u"}`, "subject", "is not a field"},
		{"/v1/holds/ID/settle", `{"tenant":"log","cost":1,"ttl_ms":1}`, "ttl_ms", "is not a field"},
		{"/v1/holds/ID/settle?deny_status=200", `{"tenant":"log","cost":1}`, "deny_status", "is not a parameter"},
		{"/v1/holds/ID/release", `{"tenant":"log","cost":1}`, "cost", "is not a field"},
		{"/v1/holds/ID/release", `{}`, "tenant", "is required"},
		{"/v1/holds/ID/extend", `{"tenant":"log","ttl_ms":86400001}`, "ttl_ms", quota.TTLRule},
		{"/v1/holds/x/release", `{"tenant":"log"}`, "hold", uuidRule},
		{"/v1/holds/00000000-0000-0000-0000-000000000000/release", `{"tenant":"log"}`, "hold", uuidRule},
		{"/v1/reversals", `{"tenant":"log"}`, "seq", "is required"},
		{"/v1/reversals", `{"tenant":"log","seq":0}`, "seq", "1 or more"},
		{"/v1/reversals", `{"tenant":"log","seq":2,"units":0}`, "units", quota.ReversalUnitsRule},
		{"/v1/reversals", `{"tenant":"log","seq":2,"units":-1}`, "units", quota.ReversalUnitsRule},
		{"/v1/reversals", `{"tenant":"log","seq":2,"units":"1"}`, "units", quota.ReversalUnitsRule},
		{"/v1/reversals", `{"tenant":"log","seq":2,"cost":1}`, "cost", "is not a field"},
	} {
		t.Run(tt.path+" "+tt.body, func(t *testing.T) {
			s.in(t).do(request{
				method: http.MethodPost, path: strings.Replace(tt.path, "ID", id, 1), body: tt.body,
				token: s.token(catalog.KeyAdmin, ""), header: map[string]string{idempotencyKeyHeader: "bad"},
			}).wantFault(t, tt.field, tt.rule)
		})
	}
	s.holds(noHold+"/settle", settling("log", 1)).want(t, 404, codeHoldNotFound)
	s.holds(noHold+"/release", of("log")).want(t, 404, codeHoldNotFound)
	s.holds(noHold+"/extend", of("log")).want(t, 404, codeHoldNotFound)
	s.holds(id+"/settle", settling("huge", 1)).want(t, 404, codeHoldNotFound) // another tenant's
	s.holds("", holding("queue", "api.calls", 1, time.Minute)).want(t, 400, codeHoldsNotSupported)
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("bad requests wrote rows, before-, after+:\n%s", diff)
	}
}

// A denied hold is answered exactly as a denied consume: the same members and fields, 200
// for who prefers it, and a key that it does not bind.
func TestADeniedHoldIsAnsweredAsADeniedConsume(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	s.held("log", 60, time.Minute)
	a := s.holds("", holding("log", "api.calls", 41, time.Minute), "Idempotency-Key", "k").want(t, 429)
	c := s.consume(charging("log", 41)).want(t, 429)
	for _, name := range []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After", "Cache-Control"} {
		if a.header.Get(name) != c.header.Get(name) || a.header.Get(name) == "" {
			t.Errorf("%s = %q, want that of a consume: %q", name, a.header.Get(name), c.header.Get(name))
		}
	}
	if want := "0 are used and 60 held, and this hold asks for 41 more. Try again in 1m0s."; !strings.Contains(a.body, want) {
		t.Errorf("denial = %s, want %q", a.body, want)
	}
	soft := s.do(request{
		method: http.MethodPost, path: "/v1/holds?deny_status=200", body: holding("log", "api.calls", 41, time.Minute),
		token: s.token(catalog.KeyDecide, "log"),
	}).want(t, 200).decision(t)
	if soft.Allowed || soft.Hold != nil || soft.Reason != quota.ReasonQuotaExceeded {
		t.Errorf("denied as 200: %+v", soft)
	}
	s.pass(time.Minute)
	s.holds("", holding("log", "api.calls", 41, time.Minute), "Idempotency-Key", "k").want(t, 200)
	s.holds("", holding("log", "api.calls", 42, time.Minute), "Idempotency-Key", "k").want(t, 422, codeKeyReused)
	s.consume(charging("log", 41), "Idempotency-Key", "k").want(t, 422, codeKeyReused)
}

// A dry run says what would be and does nothing, for each operation. One of a hold has no
// hold in its answer: there is none of that id.
func TestADryRunOfAHoldDoesNothing(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	id := s.held("log", 60, time.Minute)
	rows := s.rows()
	for path, body := range map[string]string{
		"":              `{"tenant":"log","meter":"api.calls","cost":40,"dry_run":true}`,
		id + "/settle":  `{"tenant":"log","cost":50,"dry_run":true}`,
		id + "/release": `{"tenant":"log","dry_run":true}`,
		id + "/extend":  `{"tenant":"log","ttl_ms":90000,"dry_run":true}`,
	} {
		if d := s.decided(s.holds(path, body, "Idempotency-Key", "dry")); !d.DryRun || !d.Allowed || d.Receipt != nil || (d.Hold == nil) != (path == "") {
			t.Errorf("dry run of %q = %+v", path, d)
		}
	}
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("dry runs wrote rows, before-, after+:\n%s", diff)
	}
	s.wantStand("log", 0, 60)
}

// lockTenant keeps everyone from entering anything of a tenant until release.
func (s *service) lockTenant(tenant string) (release func()) {
	s.t.Helper()
	tx, err := s.db.Owner(s.t).Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := tx.Exec(s.t.Context(), "select from quotad.account where tenant = $1 for update", tenant); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(s.t.Context()); err != nil {
			s.t.Error(err)
		}
	}
}

// readHolds walks a list of holds page by page.
func (s *service) readHolds(query string) (holds []quota.HoldView) {
	s.t.Helper()
	for cursor := ""; ; {
		page := read[holdsPage](s.t, s.read(catalog.KeyRead, "/v1/holds?"+query+cursor))
		holds = append(holds, page.Holds...)
		if page.NextCursor == "" {
			return holds
		}
		cursor = "&cursor=" + url.QueryEscape(page.NextCursor)
	}
}

// Every hold is found in the list of its state, once, page by page: the open ones in the
// order in which they end, and of the others what became of each.
func TestHoldsAreListedByState(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	ids := map[quota.HoldState][]string{}
	for i := range 5 {
		open := s.held("log", int64(i), time.Hour-time.Duration(i)*time.Minute)
		ids[quota.HoldOpen] = append([]string{open}, ids[quota.HoldOpen]...)
		settled, released := s.held("log", 9, time.Minute), s.held("log", 9, time.Minute)
		s.holds(settled+"/settle", settling("log", int64(i))).want(t, 200)
		s.holds(released+"/release", of("log")).want(t, 200)
		ids[quota.HoldSettled] = append([]string{settled}, ids[quota.HoldSettled]...)
		ids[quota.HoldReleased] = append([]string{released}, ids[quota.HoldReleased]...)
		ids[quota.HoldExpired] = append([]string{s.held("log", 1, time.Second)}, ids[quota.HoldExpired]...)
	}
	release := s.lockTenant("log")
	s.passMillis(1500) // and nobody enters the expiries
	if n := s.rows()["entry"]; n != 30 {
		t.Fatalf("%d entries, want 30", n)
	}
	check := func() {
		t.Helper()
		for state, want := range ids {
			var got []string
			for _, h := range s.readHolds("tenant=log&limit=2&state=" + string(state)) {
				got = append(got, h.ID.String())
				one := read[quota.HoldView](t, s.read(catalog.KeyRead, "/v1/holds/"+h.ID.String()+"?tenant=log"))
				if diff := cmp.Diff(h, one); diff != "" || h.State != state {
					t.Errorf("%s is %s; list-, alone+:\n%s", h.ID, h.State, diff)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s holds, want-, got+:\n%s", state, diff)
			}
		}
	}
	check()
	release()
	s.admitted("log", 1) // enters the expiries
	check()
	if diff := cmp.Diff(s.readHolds("tenant=log"), s.readHolds("tenant=log&state=open")); diff != "" {
		t.Errorf("without a state and open ones:\n%s", diff)
	}
}

// A hold says who it is of, how old it is and what it came to.
func TestAHoldTellsWhatBecameOfIt(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	const body = `{"tenant":"charged","subject":"ann","meter":"charged","cost":10,"ttl_ms":60000}`
	id := s.decided(s.holds("", body)).Hold.ID
	get := func() quota.HoldView {
		return read[quota.HoldView](t, s.read(catalog.KeyRead, "/v1/holds/"+id.String()+"?tenant=charged"))
	}
	want := quota.HoldView{
		ID: id, Tenant: "charged", Subject: "ann", State: quota.HoldOpen, Charges: []quota.HoldCharge{{Meter: "charged", Held: 10}},
		StartedAt: startOfTest, ExpiresAt: startOfTest.Add(time.Minute), AgeMS: 0, FirstSeq: 1,
	}
	check := func() {
		t.Helper()
		if diff := cmp.Diff(want, get()); diff != "" {
			t.Errorf("hold, want-, got+:\n%s", diff)
		}
	}
	check()
	release := s.lockTenant("charged")
	s.passMillis(59_999)
	want.AgeMS = 59_999
	check()
	s.passMillis(2) // over; the ledger does not have it yet
	want.State, want.AgeMS = quota.HoldExpired, 60_000
	check()
	s.held("huge", 1, time.Minute) // another tenant's request enters nothing of it
	check()
	release()
	s.consume(`{"tenant":"charged","meter":"charged"}`).want(t, 200)
	cost := int64(10)
	want.ResolvedAt, want.Charges[0].Cost = startOfTest.Add(time.Minute), &cost // its end is dated at its end
	check()
	s.pass(time.Minute)
	s.holds(id.String()+"/settle", settling("charged", 3)).want(t, 200)
	late := int64(3)
	want.State, want.Late, want.Charges[0].Cost = quota.HoldSettled, true, &late
	want.ResolvedAt, want.AgeMS = startOfTest.Add(120_001*time.Millisecond), 120_001
	check()
	for subject, n := range map[string]int{"ann": 1, "bob": 0} {
		if got := s.readHolds("tenant=charged&state=settled&subject=" + subject); len(got) != n {
			t.Errorf("%d settled holds of %s, want %d", len(got), subject, n)
		}
	}
}

// Lists of holds are refused where their query is wrong, and are the tenant's alone.
func TestListsOfHoldsAreOfOneTenant(t *testing.T) {
	t.Parallel()
	s := newHolding(t, 1)[0]
	id := s.held("log", 1, time.Minute)
	get := func(path, tenant string) answer {
		return s.do(request{method: http.MethodGet, path: path, token: s.token(catalog.KeyRead, tenant)})
	}
	get("/v1/holds", "").wantFault(t, "tenant", "is required")
	get("/v1/holds?tenant=", "").wantFault(t, "tenant", "1 to 256 bytes")
	get("/v1/holds?tenant=log&state=done", "").wantFault(t, "state", "must be one of open, settled")
	get("/v1/holds?tenant=log&limit=0", "").wantFault(t, "limit", "1 to 1000")
	get("/v1/holds/"+id, "").wantFault(t, "tenant", "is required")
	get("/v1/holds/x?tenant=log", "").wantFault(t, "hold", uuidRule)
	get("/v1/holds?tenant=nobody", "").want(t, 404, codeTenantNotFound)
	get("/v1/holds/"+noHold+"?tenant=log", "").want(t, 404, codeHoldNotFound)
	get("/v1/holds/"+id+"?tenant=huge", "").want(t, 404, codeHoldNotFound)
	for _, path := range []string{"/v1/holds?tenant=%s", "/v1/holds/" + id + "?tenant=%s"} {
		get(fmt.Sprintf(path, "log"), "log").want(t, 200)
		get(fmt.Sprintf(path, "log"), "huge").want(t, 403, codeTenantForbidden)
		get(fmt.Sprintf(path, "nobody"), "huge").want(t, 403, codeTenantForbidden)
	}
	foreign := s.do(request{
		method: http.MethodPost, path: "/v1/holds/" + id + "/release", body: of("log"), token: s.token(catalog.KeyDecide, "huge"),
	})
	foreign.want(t, 403, codeTenantForbidden)
	s.do(request{
		method: http.MethodPost, path: "/v1/reversals", body: reversing("log", 1, 0), token: s.token(catalog.KeyDecide, ""),
		header: map[string]string{idempotencyKeyHeader: "k"},
	}).want(t, 403, codeInsufficientScope)
}

// A hold may be the first request of a tenant, as a consume may. What names a hold or an
// entry is none of a tenant that is not there, and makes none.
func TestOnlyWhatUsesSomethingCreatesATenant(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.admin(http.MethodPut, "/v1/settings", `{"default_plan":"pro"}`).want(t, 200)
	for path, body := range map[string]string{"settle": settling("new", 1), "release": of("new"), "extend": of("new")} {
		s.holds(noHold+"/"+path, body).want(t, 404, codeTenantNotFound)
	}
	s.reversal("k", reversing("new", 1, 0)).want(t, 404, codeTenantNotFound)
	s.admin(http.MethodGet, "/v1/tenants/new", "").want(t, 404, codeTenantNotFound)
	s.held("new", 1, time.Minute)
	s.admin(http.MethodGet, "/v1/tenants/new", "").want(t, 200)
}
