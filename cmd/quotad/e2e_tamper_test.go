package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/sim"
)

const tamperConfig = `
meters:
  api.calls: {unit: call}
plans:
  free:
    limits:
      - {name: hourly, meter: api.calls, algorithm: sliding_log, limit: 1000, window: 1h}
tenants:
  edited:    {plan: free}
  deleted:   {plan: free}
  swapped:   {plan: free}
  cut:       {plan: free}
  untouched: {plan: free}
`

// Whoever owns the database can pass every trigger by; what they did to which entry is
// then what verify says.
func TestVerifyNamesTheEntryThatWasTamperedWith(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	token := configure(t, db, tamperConfig)
	serve := startServe(t, db)
	var requests []sim.Request
	for i := range 6 {
		for _, tenant := range []string{"edited", "deleted", "swapped", "cut", "untouched"} {
			requests = append(requests, sim.Request{
				URL: serve.url, Tenant: tenant, Tag: fmt.Sprint(tenant, i),
				Charges: []sim.Charge{{Meter: "api.calls", Cost: int64(i)}},
			})
		}
	}
	calls := sendAll(t, token, []string{serve.url}, requests)
	serve.stop(t, sigterm)
	wantSound(t, db, calls)
	const of = " from quotad.account a where e.tenant_id = a.tenant_id and a.tenant = "
	err := pgx.BeginFunc(t.Context(), db.Owner(t), func(tx pgx.Tx) error {
		for _, sql := range []string{
			"set local session_replication_role = replica",
			"update quotad.entry e set at = e.at + interval '1 microsecond'" + of + "'edited' and e.seq = 3",
			"delete from quotad.entry e using quotad.account a where e.tenant_id = a.tenant_id and a.tenant = 'deleted' and e.seq = 4",
			"update quotad.entry e set seq = 1000" + of + "'swapped' and e.seq = 2",
			"update quotad.entry e set seq = 2" + of + "'swapped' and e.seq = 3",
			"update quotad.entry e set seq = 3" + of + "'swapped' and e.seq = 1000",
			"delete from quotad.entry e using quotad.account a where e.tenant_id = a.tenant_id and a.tenant = 'cut' and e.seq > 4",
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				return fmt.Errorf("%s: %w", sql, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	code, out := output(t, "verify", "--database-url", db.OwnerURL)
	if code != 1 {
		t.Errorf("verify ends with %d, want 1", code)
	}
	for _, want := range []string{
		`tenant "edited" entry 3: `, `tenant "deleted" entry 4: `, `tenant "swapped" entry 2: `, `tenant "cut" entry 5: `,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("verify says nothing of %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "untouched") {
		t.Errorf("verify accuses whom it should not:\n%s", out)
	}
}
