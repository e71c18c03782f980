package quota

import (
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/ledger"
)

// Whatever a superuser changes behind the service's back is named, with the entry.
func TestVerifyNamesWhatWasChanged(t *testing.T) {
	t.Parallel()
	const (
		acme    = "(select tenant_id from quotad.account where tenant = 'acme')"
		openUp  = "set session_replication_role = replica; "
		closeUp = "; set session_replication_role = origin"
	)
	pool := func(integer, value string) string { // of the kept level of that limit
		return "update quotad.meter_total set levels = jsonb_set(levels::jsonb, '{pool," + integer + "}', " + value +
			")::json where levels is not null and tenant_id = "
	}
	for _, c := range []struct {
		name   string
		tamper string
		seq    int64
		says   string
	}{
		{"an edited entry", "update quotad.entry set units = 2 where seq = 3 and tenant_id = " + acme, 3, "does not match its hash"},
		{"an edited instant", "update quotad.entry set at = at - interval '1 microsecond' where seq = 1 and tenant_id = " + acme, 1, "does not match its hash"},
		{"a deleted entry", "delete from quotad.entry where seq = 4 and tenant_id = " + acme, 4, "is missing"},
		{"a deleted last entry", "delete from quotad.entry where seq = 6 and tenant_id = " + acme, 6, "is missing"},
		{"two swapped entries", `update quotad.entry set seq = case seq when 2 then 5 else 2 end
			where seq in (2, 5) and tenant_id = ` + acme, 2, ""},
		{"a truncated ledger", "delete from quotad.entry where tenant_id = " + acme, 1, "is missing"},
		{"an edited subject", "update quotad.subject set subject = 'user-2' where tenant_id = " + acme, 5, "subject"},
		{"edited dims", "update quotad.entry_dims set dims = '{\"region\":\"us\"}' where tenant_id = " + acme, 6, "dims"},
		{"an edited counter", "update quotad.meter_total set units = units - 1 where subject_id = 0 and tenant_id = " + acme, 0, "counter"},
		{"a deleted counter", "delete from quotad.meter_total where tenant_id = " + acme, 0, "is missing"},
		{"an edited level", pool("2", "to_jsonb(7)") + acme, 0, "level"},
		{"a level that cannot be read", "update quotad.meter_total set levels = '{\"pool\": 7}' where levels is not null and tenant_id = " + acme, 0, "cannot be read"},
		{"a level of nothing", "update quotad.meter_total set levels = '{\"other\": [1,0,5,0,1,0]}' where levels is null and tenant_id = " + acme, 0, "is kept without an entry"},
		{"a deleted level", "update quotad.meter_total set levels = null where tenant_id = " + acme, 0, "level"},
		{"a kept answer of nothing", "update quotad.idempotency set first_seq = 1 where tenant_id = " + acme, 0, "idempotency key"},
		{"a kept answer that says another cost", "update quotad.idempotency set answer = convert_to(replace(convert_from(answer, 'UTF8'), '\"cost\":7', '\"cost\":9'), 'UTF8') where tenant_id = " + acme, 0, "does not say what was charged"},
		{"a kept answer that is no JSON", "update quotad.idempotency set answer = 'x' where tenant_id = " + acme, 0, "cannot be read"},
		{"a plan made tighter afterwards", `update quotad.plan_version set spec = replace(spec::text, '"limit": 10', '"limit": 2')::jsonb`, 1, "rules of plan small version 1"},
		{"a plan made looser afterwards", `update quotad.plan_version set spec = replace(spec::text, '"limit": 10', '"limit": 99')::jsonb`, 1, "rules of plan small version 1"},
		{"a plan version that is gone", "delete from quotad.plan_version", 1, "which does not exist"},
		{"an entry of no plan version", "update quotad.entry set plan_version_id = 99 where seq = 3 and tenant_id = " + acme, 3, "names plan version 99, which does not exist"},
		{"a plan that cannot be read", `update quotad.plan_version set spec = '{"limits": 7}'`, 1, "plan"},
		{"a level as of another instant", pool("5", "to_jsonb((levels #>> '{pool,5}')::bigint + 1000000)") + acme, 0, "level"},
		{"an account that is gone", "delete from quotad.account where tenant = 'acme'", 0, "has no account"},
		{"an entry of nobody", `insert into quotad.entry select 999999, seq, at, effective_at, kind, meter_id, subject_id, units, held,
			total, subject_total, request_id, batch_id, ref_seq, plan_version_id, limits_used, dims_digest, hash
			from quotad.entry where seq = 1 and tenant_id = ` + acme, 0, "has no account"},
		{"an edited head", "update quotad.account set head_hash = sha256('x') where tenant = 'acme'", 6, "head"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, callsConfig)
			e, stop := w.stoppableEngine(t, nil)
			for range 4 {
				mustDecide(t, e, consume("acme", "calls", 1))
			}
			mustDecide(t, e, Request{Tenant: "acme", Subject: "user-1", Charges: []Charge{{Meter: "tokens", Cost: 7}}})
			mustDecide(t, e, Request{
				Tenant: "acme", Key: "k", Dims: map[string]string{"region": "eu"}, Charges: []Charge{{Meter: "tokens", Cost: 7}},
			})
			mustDecide(t, e, consume("globex", "calls", 1))
			stop()
			w.verify(t)

			conn, err := w.db.Owner(t).Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			if _, err := conn.Exec(t.Context(), openUp+c.tamper+closeUp); err != nil {
				t.Fatal(err)
			}
			findings := w.findings(t)
			if len(findings) == 0 {
				t.Fatal("nothing was found")
			}
			first := findings[0]
			if (first.Tenant != "acme" && first.Tenant != "") || first.Seq != c.seq || !strings.Contains(first.Detail, c.says) {
				t.Errorf("got %v, want entry %d and %q", first, c.seq, c.says)
			}
		})
	}
}

// An erased subject leaves the chain whole.
func TestErasingASubjectKeepsTheChain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, nil)
	r := Request{
		Tenant: "acme", Subject: "user-1", Dims: map[string]string{"region": "eu"},
		Charges: []Charge{{Meter: "calls", Cost: 1}},
	}
	mustDecide(t, e, r)
	service := w.db.Service(t)
	for _, sql := range []string{"update quotad.subject set subject = null, salt = null", "delete from quotad.entry_dims"} {
		if _, err := service.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	w.verify(t)
	page, err := w.ledger.Entries(t.Context(), ledger.EntryQuery{Tenant: "acme", Limit: 10})
	if err != nil || len(page.Entries) != 1 || page.Entries[0].Subject != "" || page.Entries[0].Dims != nil {
		t.Errorf("after erasing: got %+v, %v", page, err)
	}
	mustDecide(t, e, r) // the same text later is a new subject
	w.verify(t)
}

// A page of a ledger is 2,000 entries; a last one may be full, or hold one.
func TestVerifyReadsEveryPage(t *testing.T) {
	t.Parallel()
	const page = 2000
	w := newWorld(t, strings.Replace(callsConfig, "limit: 10,", "limit: 10000,", 1))
	e := w.engine(t, nil)
	spend := func(calls int) {
		t.Helper()
		requests := make([]Request, calls)
		for i := range requests {
			requests[i] = consume("acme", "calls", 1)
		}
		for _, result := range e.DecideAll(t.Context(), requests) {
			if result.Err != nil || !result.Decision.Allowed {
				t.Fatalf("%+v", result)
			}
		}
	}
	wantVerified := func(entries int64) {
		t.Helper()
		result, err := NewVerifier(w.catalog).Verify(t.Context(), w.db.Owner(t), "acme", nil)
		if err != nil || result.Entries != entries || len(result.Findings) > 0 {
			t.Errorf("got %d entries, %v, %v; want %d and no findings", result.Entries, result.Findings, err, entries)
		}
	}
	spend(page)
	wantVerified(page)
	spend(1)
	wantVerified(page + 1)
	w.db.Exec(t, "set session_replication_role = replica; update quotad.entry set units = 2 where seq = 2001; set session_replication_role = origin")
	if result, err := NewVerifier(w.catalog).Verify(t.Context(), w.db.Owner(t), "acme", nil); err != nil ||
		len(result.Findings) != 1 || result.Findings[0].Seq != page+1 {
		t.Errorf("got %v, %v; want a finding of the edited entry on the second page", result.Findings, err)
	}
}
