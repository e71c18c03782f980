package sim

import (
	"fmt"
	"testing"
	"time"
)

// What quotad does by itself must be found right, or the checks check something else.
func TestAnHonestHistoryHasNoFindings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.live(t)
	counts := Count(w.calls)
	if counts[OutcomeAllowed] < 30 || counts[OutcomeDenied] < 10 || counts[OutcomeRefused] != 4 || counts[OutcomeUnknown] != 0 {
		t.Errorf("outcomes = %v, want many allowed, some denied, 4 refused, none unknown", counts)
	}
	l := read(t, w.db.Owner(t))
	wantNone(t, l.CheckCalls(w.calls))
	wantNone(t, l.Check())
	if n := l.Lost(w.calls); n != 0 {
		t.Errorf("Lost = %d, want 0", n)
	}
	if n := l.VersionOf(&w.calls[0]); n != 1 {
		t.Errorf("VersionOf = %d, want 1", n)
	}
	var tokens int64
	for _, c := range w.calls {
		if c.Outcome == OutcomeAllowed {
			tokens += c.Charged["tokens"]
		}
	}
	if n := l.Units("tokens"); n != tokens || n == 0 {
		t.Errorf("Units(tokens) = %d, want the %d of the answers", n, tokens)
	}
}

// A changed number keeps what was used, a changed algorithm starts anew: the replay
// has to follow both.
func TestAChangedPlanHasNoFindings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.live(t)
	for _, pool := range []string{
		"algorithm: token_bucket, capacity: 90, refill: 11/13s",
		"algorithm: token_bucket, capacity: 20, refill: 3/1m",
		"algorithm: gcra, burst: 50, rate: 1/3s",
		"algorithm: leaky_bucket, queue: 50, rate: 7/3s",
		"algorithm: leaky_bucket, queue: 45, rate: 5/3s",
	} {
		w.apply(t, `
plans:
  all:
    limits:
      - {name: log,  meter: calls,  algorithm: sliding_log, limit: 7, window: 20s}
      - {name: pool, meter: tokens, `+pool+`}
`)
		for range 5 {
			w.send(t, one("acme", "tokens", 13), one("acme", "tokens", 7), one("acme", "calls", 1))
			w.db.AdvanceClock(t, 1234567*time.Microsecond)
		}
	}
	l := read(t, w.db.Owner(t))
	wantNone(t, l.CheckCalls(w.calls))
	if n := l.VersionOf(&w.calls[len(w.calls)-1]); n != 6 {
		t.Errorf("VersionOf = %d, want 6", n)
	}
}

// Each fault is made in SQL, in a transaction that is rolled back, on the history of
// one world, and must be found.
func TestFaultsInTheLedgerAreFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.live(t)
	w.wantAllFound(t, ledgerFaults)
}

// A ledgerFault is a change behind the engine's back, and what must be said of it.
type ledgerFault struct{ name, sql, want string }

// wantAllFound makes each fault in turn and wants it found.
func (w *world) wantAllFound(t *testing.T, faults []ledgerFault) {
	t.Helper()
	for _, tt := range faults {
		t.Run(tt.name, func(t *testing.T) {
			tx, err := w.db.Owner(t).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context())
			for _, sql := range []string{"set local session_replication_role = replica", tt.sql} {
				tag, err := tx.Exec(t.Context(), sql)
				if err != nil {
					t.Fatalf("%s: %v", sql, err)
				}
				if sql == tt.sql && tag.RowsAffected() == 0 {
					t.Fatalf("%s: changes nothing", sql)
				}
			}
			l := read(t, tx)
			wantFound(t, l.Check(), tt.want)
			wantFound(t, l.CheckCalls(w.calls), tt.want)
		})
	}
	wantNone(t, read(t, w.db.Owner(t)).CheckCalls(w.calls))
}

const (
	acmeEntries = " from quotad.account a where a.tenant = 'acme' and e.tenant_id = a.tenant_id"
	acmeRows    = " from quotad.account a where a.tenant = 'acme' and x.tenant_id = a.tenant_id"
)

// lower makes the numbers of one limit smaller behind the engine's back.
func lower(name, change string) string {
	return `
update quotad.plan_version v
set spec = (
  select jsonb_build_object('limits', jsonb_agg(
    case when l.value ->> 'name' = '` + name + `' then l.value || '` + change + `' else l.value end order by l.ordinality))
  from jsonb_array_elements(v.spec -> 'limits') with ordinality l)`
}

// editLevel adds to one of the six numbers of the level of a limit.
func editLevel(name string, number, add int) string {
	return fmt.Sprintf(`
update quotad.meter_total t
set levels = jsonb_set(t.levels::jsonb, '{%[1]s,%[2]d}', to_jsonb((t.levels #>> '{%[1]s,%[2]d}')::bigint + %[3]d))::json
where t.levels::jsonb ? '%[1]s'`, name, number, add)
}

var ledgerFaults = []ledgerFault{
	{"gap", "delete from quotad.entry e using quotad.account a where a.tenant = 'acme' and e.tenant_id = a.tenant_id and e.seq = 3", "entry 4 stands where entry 3 should"},
	{"number twice", `
insert into quotad.entry
select tenant_id, seq, at + interval '1 microsecond', effective_at + interval '1 microsecond', kind, meter_id, subject_id, units, held, total,
       subject_total, request_id, batch_id, ref_seq, plan_version_id, limits_used, dims_digest, hash
from quotad.entry
where seq = 2`, "entry 2 stands where entry 3 should"},
	{"tail cut", "delete from quotad.entry e using quotad.account a where a.tenant = 'globex' and e.tenant_id = a.tenant_id and e.seq = a.seq", "the account says seq"},
	{"goes back", "update quotad.entry e set at = e.at - interval '1 hour', effective_at = e.at - interval '1 hour'" + acmeEntries + " and e.seq = 9", "entry 9 is older than the entry before it"},
	{"counts from elsewhere", "update quotad.entry e set effective_at = e.at - interval '1 hour'" + acmeEntries + " and e.seq = 9", "entry 9 consumes, and"},
	{"unknown kind", "update quotad.entry e set kind = 'adjust'" + acmeEntries + " and e.seq = 9", "entry 9 is of kind adjust"},
	{"gives back", "update quotad.entry e set units = -1" + acmeEntries + " and e.seq = 9", "entry 9 consumes, and gives units back (-1)"},
	{"units edited", "update quotad.entry e set units = units + 1" + acmeEntries + " and e.seq = 2", "entry 2 carries total"},
	{"total edited", "update quotad.entry e set total = total + 1" + acmeEntries + " and e.seq = 2", "entry 2 carries total"},
	{"subject total edited", "update quotad.entry e set subject_total = subject_total + 1" + acmeEntries + " and e.seq = 2", "entry 2 carries subject_total"},
	{"subject total alone", "update quotad.entry e set subject_total = 1" + acmeEntries + " and e.seq = 1", "entry 1 has a subject_total without"},
	{"unknown subject", "update quotad.entry e set subject_id = 99" + acmeEntries + " and e.seq = 2", "names subject 99"},
	{"lost subject", "update quotad.entry e set subject_id = 0, subject_total = 0" + acmeEntries + " and e.meter_id = (select meter_id from quotad.meter where meter = 'logins')", "has no subject, and limit each counts"},
	{"request split", "update quotad.entry e set batch_id = gen_random_uuid()" + acmeEntries + " and e.seq = 3", "entry 3 is of request"},
	{"request continued", "update quotad.entry e set request_id = (select request_id from quotad.entry f where f.tenant_id = e.tenant_id and f.seq = 1)" + acmeEntries + " and e.seq = 10", "entry 10 charges meter calls for request"},
	{"unknown version", "update quotad.entry e set plan_version_id = 99" + acmeEntries + " and e.seq = 2", "names plan version 99"},
	{"older version", `
with v as (
  insert into quotad.plan_version (plan, version, spec, created_by)
  select plan, version + 1, spec, created_by from quotad.plan_version
  returning plan_version_id)
update quotad.entry e set plan_version_id = v.plan_version_id from v where e.seq = 2`, "entry 3 goes back to version 1"},
	{"meter not in plan", "update quotad.plan_version set spec = jsonb_set(spec, '{limits}', (spec -> 'limits') - 0 - 0 - 0)", "is on meter calls, which version 1 of plan all does not name"},
	{"limits forgotten", "update quotad.entry e set limits_used = '{}'" + acmeEntries + " and e.seq = 2", "entry 2 says what 0 limits had used"},
	{"used edited", "update quotad.entry e set limits_used[2] = 77" + acmeEntries + " and e.seq = 2", "entry 2 says that limit hourly had used 77; it had used 2"},
	{"sliding_log over", lower("log", `{"limit": 4}`), "of limit log (sliding_log), which had used 4 of 4"},
	{"fixed_window over", lower("hourly", `{"limit": 6}`), "of limit hourly (fixed_window)"},
	{"calendar window over", lower("daily", `{"limit": 6}`), "of limit daily (fixed_window)"},
	{"sliding_counter over", lower("counter", `{"limit": 39}`), "of limit counter (sliding_counter)"},
	{"token_bucket over", lower("pool", `{"capacity": 39}`), "of limit pool (token_bucket)"},
	{"gcra over", lower("smooth", `{"burst": 2}`), "of limit smooth (gcra)"},
	{"leaky_bucket over", lower("shape", `{"queue": 2}`), "of limit shape (leaky_bucket)"},
	{"subject's window over", lower("each", `{"limit": 1}`), "of limit each (sliding_log)"},
	{"blocked", lower("free", `{"unlimited": false, "limit": 0}`), "of limit free (sliding_log)"},
	{"blocked rate", lower("smooth", `{"rate": "0/1s"}`), "of limit smooth (gcra), which had used 0 of 3"},
	{"shadow charged", lower("watch", `{"mode": "enforce"}`), "of limit watch (token_bucket), which had used 1 of 1"},
	{"account's number", "update quotad.account set seq = seq + 1 where tenant = 'acme'", "the account says seq"},
	{"account's instant", "update quotad.account set last_at = last_at + interval '1 s' where tenant = 'acme'", "last_at is not that of entry"},
	{"account's hash", "update quotad.account set head_hash = sha256(head_hash) where tenant = 'acme'", "head_hash is not that of entry"},
	{"counter's units", "update quotad.meter_total x set units = x.units + 1" + acmeRows, "the counter of meter calls for subject 0 is {"},
	{"counter's calls", "update quotad.meter_total x set calls = x.calls - 1" + acmeRows, "the counter of meter calls for subject 1 is {"},
	{"counter's instant", "update quotad.meter_total x set last_at = x.last_at - interval '1 s'" + acmeRows, "the counter of meter jobs for subject 0 is {"},
	{"counter's hold", "update quotad.meter_total x set held = 1" + acmeRows, "the counter of meter mail for subject 0 is {"},
	{"counter lost", "delete from quotad.meter_total", "the counter of meter calls for subject 0 is missing"},
	{"counter invented", "insert into quotad.meter_total select tenant_id, meter_id, 99, 1, 0, 1, last_at from quotad.meter_total where subject_id = 0", "for subject 99 has no entry"},
	{"bucket's level", editLevel("pool", 2, 1), "the level of limit pool for subject 0 is {"},
	{"bucket's remainder", editLevel("pool", 3, 1), "the level of limit pool for subject 0 is {"},
	{"gcra's instant", editLevel("smooth", 5, -1_000_000), "the level of limit smooth for subject 0 is {"},
	{"departure", editLevel("shape", 5, 1), "the level of limit shape for subject 0 is {"},
	{"level lost", "update quotad.meter_total set levels = null where levels is not null", "the level of limit drip for subject 1 is missing"},
	{"level invented", `update quotad.meter_total set levels = replace(levels::text, '"pool"', '"other"')::json where levels::jsonb ? 'pool'`, "the level of limit other for subject 0 has no entry"},
	{"key twice", "insert into quotad.idempotency select tenant_id, key, created_at + interval '1 s', request_hash, first_seq, answer from quotad.idempotency", `key "key-0" has two answers`},
	{"two keys", "insert into quotad.idempotency select tenant_id, 'other', created_at, request_hash, first_seq, answer from quotad.idempotency where key = 'key-0'", `keys "key-0" and "other" have the answer of one request`},
	{"answer garbled", "update quotad.idempotency set answer = 'x' where key = 'key-0'", `the answer kept for key "key-0" is not one`},
	{"answer misfiled", "update quotad.idempotency set first_seq = first_seq + 1 where key = 'key-0'", `the answer kept for key "key-0" is filed under`},
	{"answer of nothing", "update quotad.entry e set request_id = gen_random_uuid()" + acmeEntries + " and e.seq in (2, 3, 4)", `the answer kept for key "key-0" is about request`},
	{"answer's hash", "update quotad.entry e set hash = sha256(hash)" + acmeEntries + " and e.seq = 4", `the answer kept for key "key-0" has a receipt whose hash`},
	{"answer's entries", "update quotad.entry e set request_id = gen_random_uuid()" + acmeEntries + " and e.seq = 4", `the answer kept for key "key-0" names other entries`},
	{"account lost", "delete from quotad.account where tenant = 'globex'", `tenant "(no account`},
}
