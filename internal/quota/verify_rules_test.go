package quota

import (
	"crypto/sha256"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

// twoVersions is a world whose ledger knows two versions of plan small: acme has entries
// 1 and 2 under the first and 3 to 5 under the second, globex entry 1 under the first.
func twoVersions(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, callsConfig)
	e, stop := w.stoppableEngine(t, nil)
	mustDecide(t, e, consume("acme", "calls", 1))
	mustDecide(t, e, Request{
		Tenant: "acme", Subject: "user-1", Dims: map[string]string{"region": "eu"},
		Charges: []Charge{{Meter: "calls", Cost: 3}},
	})
	mustDecide(t, e, consume("globex", "calls", 1))
	w.apply(t, strings.Replace(callsConfig, "limit: 10,", "limit: 20,", 1))
	mustDecide(t, e, consume("acme", "calls", 1))
	mustDecide(t, e, consume("acme", "tokens", 5))
	mustDecide(t, e, consume("acme", "calls", 9))
	stop()
	w.verify(t)
	// What only the tables' owner can do.
	w.db.Exec(t, "alter table quotad.plan_version disable trigger append_only")
	return w
}

// changeRules rewrites the limit on calls of one version, from what it is to what it
// shall have been.
func (w *world) changeRules(t *testing.T, version int, from, to string) {
	t.Helper()
	tag, err := w.db.Owner(t).Exec(t.Context(), `
update quotad.plan_version
set spec = replace(spec::text, '"limit": ' || $2, '"limit": ' || $3)::jsonb
where plan = 'small' and version = $1 and strpos(spec::text, '"limit": ' || $2 || ',') > 0`, version, from, to)
	if err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("the rules of version %d are not of %s: %v, %v", version, from, tag, err)
	}
}

// Looser rules admit all that was admitted, so only the chain can tell that they are not
// the ones that decided. Every tenant's first entry under them is named, and no other.
func TestRulesThatWereChangedAfterwardsAreNamed(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)
	finding := func(tenant string, seq int64, version string) ledger.Finding {
		return ledger.Finding{Tenant: tenant, Seq: seq, Detail: "does not match its hash: it, what stood before it, " +
			"or the rules of plan small version " + version + " were changed"}
	}
	first := []ledger.Finding{finding("acme", 1, "1"), finding("globex", 1, "1")}
	second := []ledger.Finding{finding("acme", 3, "2")}
	for _, c := range []struct {
		version  int
		from, to string
		want     []ledger.Finding
	}{
		{1, "10", "999", first},
		{1, "10", "2", first},
		{1, "10", "11", first},
		{2, "20", "999", second},
		{2, "20", "3", second},
	} {
		w.changeRules(t, c.version, c.from, c.to)
		if diff := cmp.Diff(c.want, w.findings(t)); diff != "" {
			t.Errorf("the limit of version %d from %s to %s (-want +got):\n%s", c.version, c.from, c.to, diff)
		}
		w.changeRules(t, c.version, c.to, c.from)
	}
	w.verify(t)
}

// Whoever changes rules and then writes the chain anew is still held to them.
func TestARewrittenChainIsHeldToTheRulesItNames(t *testing.T) {
	t.Parallel()
	w := twoVersions(t)
	w.changeRules(t, 1, "10", "2")
	entries := w.entries(t, "acme")
	w.rechain(t, entries)
	findings := w.findings(t)
	if len(findings) == 0 || findings[0].Tenant != "acme" || findings[0].Seq != 2 ||
		!strings.Contains(findings[0].Detail, `took 3 units of limit "ten" of 2, which had 1 used`) {
		t.Errorf("findings %v, want that entry 2 took more than there was", findings)
	}
}

// What an entry says that a limit had used before it is what the entries before it come to,
// also where a level tells and no running total.
func TestWhatALimitHadUsedFollowsFromTheEntriesBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `
meters: {calls: {unit: call}}
plans: {p: {limits: [{name: bucket, meter: calls, algorithm: token_bucket, capacity: 100, refill: 1/24h}]}}
tenants: {acme: {plan: p}}`)
	e := w.engine(t, nil)
	for range 3 {
		mustDecide(t, e, consume("acme", "calls", 5))
	}
	w.verify(t)
	w.db.Exec(t, "set session_replication_role = replica; update quotad.entry set limits_used = '{4}' where seq = 2")
	w.rechain(t, w.entries(t, "acme"))
	findings := w.findings(t)
	if len(findings) == 0 || findings[0].Seq != 2 ||
		!strings.Contains(findings[0].Detail, `says that 4 units of limit "bucket" were used, the entries before it say 5`) {
		t.Errorf("findings %v, want that entry 2 says something else than entry 1", findings)
	}
}

// rechain computes the hashes of acme's entries anew, by the rules as they are stored now.
func (w *world) rechain(t *testing.T, entries []ledger.Entry) {
	t.Helper()
	rows, err := w.db.Owner(t).Query(t.Context(), "select plan_version_id, spec::text from quotad.plan_version")
	if err != nil {
		t.Fatal(err)
	}
	specs := make(map[int64]string)
	var id int64
	var spec string
	_, err = pgx.ForEachRow(rows, []any{&id, &spec}, func() error {
		specs[id] = spec
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	previous := sha256.Sum256([]byte("quotad/ledger/v1\x00acme"))
	err = pgx.BeginFunc(t.Context(), w.db.Owner(t), func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "set local session_replication_role = replica"); err != nil {
			return err
		}
		for i := range entries {
			e := &entries[i]
			e.SpecDigest = sha256.Sum256([]byte(specs[e.PlanVersionID]))
			previous = e.ChainHash(previous)
			_, err := tx.Exec(t.Context(), `
update quotad.entry e
set hash = $2
from quotad.account a
where a.tenant = 'acme' and e.tenant_id = a.tenant_id and e.seq = $1`, e.Seq, previous[:])
			if err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), "update quotad.account set head_hash = $1 where tenant = 'acme'", previous[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An auditor who trusts none of this program has a statement that recomputes the chain
// from the tables. It finds nothing in what the engine wrote, and what was changed.
func TestTheDocumentedStatementRecomputesTheChain(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, statement, _ := strings.Cut(string(text), "```sql\n")
	statement, _, found := strings.Cut(statement, "```")
	if !found {
		t.Fatal("docs/architecture.md has no statement")
	}
	w := twoVersions(t)
	mismatches := func() []int64 {
		t.Helper()
		rows, err := w.db.Owner(t).Query(t.Context(), statement)
		if err != nil {
			t.Fatal(err)
		}
		seqs, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			t.Fatal(err)
		}
		return seqs
	}
	if got := mismatches(); len(got) != 0 {
		t.Errorf("entries %v of an honest ledger do not match", got)
	}
	w.changeRules(t, 2, "20", "999")
	if diff := cmp.Diff([]int64{3, 4, 5}, mismatches()); diff != "" {
		t.Errorf("entries under changed rules (-want +got):\n%s", diff)
	}
}
