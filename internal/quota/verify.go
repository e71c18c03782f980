package quota

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

// A Verifier checks tenants one after another: what [ledger.VerifyTenant] checks, every
// kept level and every hold against a replay of the entries, and every kept answer against
// the entry it speaks of. It changes nothing and is not safe for concurrent use.
type Verifier struct {
	versions
	inForce *rules // for the entry that is looked at
}

// NewVerifier returns a verifier that finds plan versions in store.
func NewVerifier(store *catalog.Store) *Verifier {
	return &Verifier{versions: newVersions(store)}
}

// Verify checks one tenant as db sees it, which should be one repeatable-read
// transaction. progress, if not nil, is called for each entry. An unknown tenant is
// [ledger.ErrNotFound].
func (v *Verifier) Verify(ctx context.Context, db ledger.Querier, tenant string, progress func()) (ledger.Verification, error) {
	account, err := accountFacts(ctx, db, tenant)
	if err == nil {
		err = v.follow(ctx, db, account.tenantID)
	}
	unreadable := err
	if err != nil && !errors.Is(err, catalog.ErrUnreadable) { // an entry that names it will say so, too
		return ledger.Verification{}, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	replayed := newReplayed(v.timeline)
	result, err := ledger.VerifyTenant(ctx, db, tenant, ledger.Checks{
		Genesis: catalog.GenesisHash(tenant),
		Rules:   func(e *ledger.Entry) (string, error) { return v.setRules(ctx, db, e) },
		Visit: func(e *ledger.Entry) string {
			if progress != nil {
				progress()
			}
			return replayed.follow(v.inForce, e)
		},
	})
	if err != nil {
		return result, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	if unreadable != nil && len(result.Findings) == 0 {
		result.Findings = []ledger.Finding{{Tenant: tenant, Detail: unreadable.Error()}}
	}
	if len(result.Findings) > 0 {
		return result, nil // what levels and answers should be is not known
	}
	levels, err := v.checkLevels(ctx, db, result.TenantID, replayed.levels)
	if err != nil {
		return result, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	holds, err := checkHolds(ctx, db, &result, replayed.holds)
	if err != nil {
		return result, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	answers, err := checkAnswers(ctx, db, result.TenantID)
	if err != nil {
		return result, fmt.Errorf("verify tenant %q: %w", tenant, err)
	}
	for _, detail := range slices.Concat(levels, holds, answers) {
		result.Findings = append(result.Findings, ledger.Finding{Tenant: tenant, Detail: detail})
	}
	return result, nil
}

// setRules tells an entry the plan version and the overrides that it names, which stand
// once and not in each entry's row. It returns what is wrong with them, or "".
func (v *Verifier) setRules(ctx context.Context, db ledger.Querier, e *ledger.Entry) (string, error) {
	r, err := v.rulesOf(ctx, db, entryInForce(e))
	switch {
	case errors.Is(err, catalog.ErrUnreadable):
		return fmt.Sprintf("names plan version %d and override set %d: %s", e.PlanVersionID, e.OverrideSetID, err), nil
	case err != nil:
		return "", err
	case v.plans[e.PlanVersionID] == nil:
		return fmt.Sprintf("names plan version %d, which does not exist", e.PlanVersionID), nil
	case r == nil:
		return fmt.Sprintf("names override set %d, which does not exist", e.OverrideSetID), nil
	}
	v.inForce = r
	e.Plan, e.PlanVersion, e.SpecDigest = r.plan.Name, r.plan.Version, r.plan.SpecDigest
	return "", nil
}

// levelKey names a kept level: by the total in whose row it stands, and its limit.
type levelKey struct {
	meter     string
	limit     string
	subjectID int64
}

// replayed is what entries come to, as one follows them.
type replayed struct {
	timeline *catalog.Timeline // nil if it cannot be read: then levels are not followed
	levels   map[levelKey]level
	replayedHolds
}

func newReplayed(timeline *catalog.Timeline) *replayed {
	return &replayed{timeline: timeline, levels: make(map[levelKey]level), replayedHolds: newReplayedHolds()}
}

// follow goes on to an entry, by the rules r of the plan version it names. It returns what
// is wrong with the entry, or "".
func (x *replayed) follow(r *rules, e *ledger.Entry) string {
	limits := r.byMeter[e.Meter]
	if e.Kind == ledger.KindExpire {
		limits = nil // an expiry, which nobody decided, does not say what they had used
	}
	if len(e.LimitsUsed) != len(limits) || e.LimitsHeld != nil && len(e.LimitsHeld) != len(limits) {
		return fmt.Sprintf("says what %d limits had used; its plan version has %d on meter %q", len(e.LimitsUsed), len(limits), e.Meter)
	}
	held := make([]int64, len(limits))
	copy(held, e.LimitsHeld)
	for i, l := range limits {
		if wrong := x.disagrees(l, e, e.LimitsUsed[i], held[i]); wrong != "" {
			return wrong
		}
	}
	if wrong := x.hold(e); wrong != "" {
		return wrong
	}
	return x.spend(r, e, held)
}

// spend takes an entry from the levels on its meter, of which held was set aside.
func (x *replayed) spend(r *rules, e *ledger.Entry, held []int64) string {
	for i, l := range r.byMeter[e.Meter] {
		if !l.Algorithm.KeepsLevel() || l.Scope == catalog.ScopeSubject && e.SubjectID == 0 || x.timeline == nil {
			continue
		}
		key := levelKey{meter: e.Meter, limit: l.Name}
		if l.Scope == catalog.ScopeSubject {
			key.subjectID = e.SubjectID
		}
		have := x.levels[key]
		if i < len(e.LimitsUsed) && e.LimitsUsed[i] == 0 && have.mayBeGone(x.timeline, l.Name, entryInForce(e)) {
			have = level{}
		}
		if err := have.carry(x.timeline, l.Name, entryInForce(e)); err != nil {
			return err.Error()
		}
		if i < len(e.LimitsUsed) {
			used := l.rule.Used(View{NowMicros: e.At.UnixMicro(), State: have.State})
			if said := e.LimitsUsed[i]; said != used {
				return fmt.Sprintf("says that %d units of limit %q were used, the entries before it say %d", said, l.Name, used)
			}
		}
		set := int64(0)
		if i < len(held) {
			set = held[i]
		}
		if have.spend(l, r.plan, e.Kind, e.At.UnixMicro(), set, e.Units) {
			x.levels[key] = have
		}
	}
	return ""
}

// disagrees holds an entry against a limit of its plan version, by what it says was used
// and held before: what a decision admitted must have fitted. It returns what is wrong, or
// "".
func (x *replayed) disagrees(l *limit, e *ledger.Entry, used, held int64) string {
	open, units := x.open(l, e)
	if l.Algorithm == catalog.Concurrency {
		if used != open {
			return fmt.Sprintf("says that %d holds of limit %q were open, the entries before it say %d", used, l.Name, open)
		}
	} else if l.Algorithm.CountsHolds() && held != units {
		return fmt.Sprintf("says that %d units of limit %q were held, the entries before it say %d", held, l.Name, units)
	}
	cost := e.Units
	switch {
	case l.Mode != catalog.ModeEnforce:
		return ""
	case e.Kind == ledger.KindHold:
		cost = l.asks(e.Held)
	case e.Kind != ledger.KindConsume || l.Algorithm == catalog.Concurrency:
		return "" // recorded, whatever the limit says
	}
	if l.admits(used, held, cost) {
		return ""
	}
	if held > 0 {
		return fmt.Sprintf("took %d units of limit %q of %d, which had %d used and %d held", cost, l.Name, l.units, used, held)
	}
	return fmt.Sprintf("took %d units of limit %q of %d, which had %d used", cost, l.Name, l.units, used)
}

// index: meter_total_pkey. lock: none.
const verifyLevelsSQL = `
select coalesce(m.meter, ''), t.subject_id, t.levels
from quotad.meter_total t
left join quotad.meter m on m.meter_id = t.meter_id
where t.tenant_id = $1 and t.levels is not null`

// checkLevels compares the kept levels of a tenant with the replayed ones. One that says
// nothing may be missing.
func (v *Verifier) checkLevels(ctx context.Context, db ledger.Querier, tenantID int64, want map[levelKey]level) ([]string, error) {
	rows, err := db.Query(ctx, verifyLevelsSQL, tenantID)
	if err != nil {
		return nil, fmt.Errorf("read levels: %w", err)
	}
	var details []string
	var meter string
	var subjectID int64
	var text []byte
	_, err = pgx.ForEachRow(rows, []any{&meter, &subjectID, &text}, func() error {
		kept, err := decodeLevels(text)
		if err != nil {
			details = append(details, fmt.Sprintf("the levels on meter %q cannot be read: %s", meter, err))
			maps.DeleteFunc(want, func(key levelKey, _ level) bool { return key.meter == meter && key.subjectID == subjectID })
		}
		for _, have := range kept {
			key := levelKey{meter, have.limit, subjectID}
			if expected, known := want[key]; !known {
				details = append(details, fmt.Sprintf("the level of limit %q is kept without an entry", key.limit))
			} else if expected != have.level {
				details = append(details, fmt.Sprintf("the level of limit %q is %s; the entries say %s", key.limit, have.level, expected))
			}
			delete(want, key)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read levels: %w", err)
	}
	missing, err := v.missingLevels(ctx, db, tenantID, want)
	if err != nil {
		return nil, err
	}
	details = append(details, missing...)
	slices.Sort(details)
	return details, nil
}

// String shows every column of a level.
func (v level) String() string {
	return fmt.Sprintf("%d+%d/%d at %s (plan version %d, override set %d)", v.Units, v.Remainder, v.Denominator,
		time.UnixMicro(v.AtMicros).UTC().Format(time.RFC3339Nano), v.versionID, v.overrideSetID)
}

// index: idempotency_pkey by tenant, then entry_pkey for the entries of each answer.
// lock: none.
const verifyAnswersSQL = `
select i.key, i.first_seq, i.created_at, i.answer, e.kinds, e.meters, e.units, e.held, e.request_ids, e.hashes
from quotad.idempotency i
left join lateral (
  select array_agg(e.kind::text order by e.seq) as kinds, array_agg(m.meter order by e.seq) as meters,
         array_agg(e.units::bigint order by e.seq) as units, array_agg(e.held::bigint order by e.seq) as held,
         array_agg(e.request_id order by e.seq) as request_ids, array_agg(e.hash::bytea order by e.seq) as hashes
  from quotad.entry e
  left join quotad.meter m on m.meter_id = e.meter_id
  where e.tenant_id = i.tenant_id and e.at = i.created_at
    and e.seq >= i.first_seq and e.seq < i.first_seq + $2
    and e.request_id = (
      select f.request_id from quotad.entry f
      where f.tenant_id = i.tenant_id and f.seq = i.first_seq and f.at = i.created_at)
) e on true
where i.tenant_id = $1
order by i.key`

// A keptRow is a kept answer and the entries it should speak of.
type keptRow struct {
	key        string
	firstSeq   int64
	createdAt  time.Time
	answer     []byte
	kinds      []ledger.Kind
	meters     []string
	units      []int64
	held       []int64
	requestIDs []uuid.UUID
	hashes     [][]byte
}

// answersReported bounds how many bad answers of one tenant are listed.
const answersReported = 10

// checkAnswers compares every kept answer with the entries that its request made: what
// a retry would be told must be what the ledger says.
func checkAnswers(ctx context.Context, db ledger.Querier, tenantID int64) ([]string, error) {
	rows, err := db.Query(ctx, verifyAnswersSQL, tenantID, ChargesMax)
	if err != nil {
		return nil, fmt.Errorf("read kept answers: %w", err)
	}
	var details []string
	var k keptRow
	_, err = pgx.ForEachRow(rows, []any{
		&k.key, &k.firstSeq, &k.createdAt, &k.answer, &k.kinds, &k.meters, &k.units, &k.held, &k.requestIDs, &k.hashes,
	}, func() error {
		if wrong := k.wrong(); wrong != "" && len(details) < answersReported {
			details = append(details, fmt.Sprintf("the answer kept for idempotency key %q %s", k.key, wrong))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read kept answers: %w", err)
	}
	return details, nil
}

// wrong returns what of the answer is not what the entries say, or "".
func (k *keptRow) wrong() string {
	if len(k.units) == 0 {
		return "speaks of no entry"
	}
	var d Decision
	if err := json.Unmarshal(k.answer, &d); err != nil {
		return "cannot be read: " + err.Error()
	}
	last := len(k.units) - 1
	switch {
	case !d.Allowed:
		return "says denied"
	case d.RequestID != k.requestIDs[0]:
		return "is another request's"
	case d.Degraded: // it was given before there was an entry
		if k.kinds[0] != ledger.KindAdjust || d.Receipt != nil || !k.charges(&d) {
			return "does not say what was granted without the database"
		}
	case !d.DecidedAt.Equal(k.createdAt):
		return "says another instant"
	case d.Receipt == nil || d.Receipt.FirstSeq != k.firstSeq || d.Receipt.Seq != k.firstSeq+int64(last) ||
		!bytes.Equal(d.Receipt.Hash[:], k.hashes[last]):
		return "has a receipt that does not match its entries"
	case !k.charges(&d):
		return "does not say what was charged"
	}
	return ""
}

// charges reports whether an answer says what its entries do.
func (k *keptRow) charges(d *Decision) bool {
	if k.kinds[0] == ledger.KindReverse {
		return d.Reversal != nil && d.Reversal.Meter == k.meters[0] && d.Reversal.Units == -k.units[0]
	}
	if len(d.Charges) != len(k.units) {
		return false
	}
	late := d.Hold != nil && d.Hold.Late // less what the expiry had charged
	for i, c := range d.Charges {
		cost := k.units[i]
		if k.kinds[i] == ledger.KindHold {
			cost = k.held[i]
		}
		if c.Meter != k.meters[i] || c.Cost != cost && !late {
			return false
		}
	}
	return true
}
