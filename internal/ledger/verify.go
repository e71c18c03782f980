package ledger

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
)

// A Finding is one thing that does not follow from the entries.
type Finding struct {
	Tenant string `json:"tenant,omitzero"`
	Seq    int64  `json:"seq,omitzero"` // the entry it is about; 0 when it is about a counter
	Detail string `json:"detail"`
}

// String names the tenant and the entry.
func (f Finding) String() string {
	if f.Tenant == "" {
		return f.Detail
	}
	if f.Seq == 0 {
		return fmt.Sprintf("tenant %q: %s", f.Tenant, f.Detail)
	}
	return fmt.Sprintf("tenant %q entry %d: %s", f.Tenant, f.Seq, f.Detail)
}

// A Verification is what verifying one tenant found.
type Verification struct {
	TenantID  int64
	Entries   int64
	OpenHolds int32     // as the account says
	Findings  []Finding // none when everything follows; the first bad entry first
}

// Checks are what verifying a tenant takes from those who know its plans.
type Checks struct {
	Genesis [32]byte // the chain's first hash

	// Rules sets Plan, PlanVersion and SpecDigest of an entry, by the plan version that
	// it names. It returns what is wrong with that version, or "".
	Rules func(*Entry) (wrong string, err error)

	// Visit is called for each entry that follows, in order. It returns what else is
	// wrong with it, or "".
	Visit func(*Entry) (wrong string)
}

// VerifyTenant recomputes the chain of a tenant and checks numbering, instants, rules,
// running totals, digests and counters against the entries. It reads db, which should
// be one repeatable-read transaction, and changes nothing. It stops following the chain
// at the first entry that does not follow, or with which a check finds something wrong:
// that is then the first finding. An unknown tenant is [ErrNotFound].
func VerifyTenant(ctx context.Context, db Querier, tenant string, checks Checks) (Verification, error) {
	account, err := storedAccount(ctx, db, tenant)
	if err != nil {
		return Verification{}, err
	}
	v := &verifier{checks: checks, account: account, hash: checks.Genesis, totals: make(map[totalKey]Total)}
	for v.broken == nil {
		entries, err := storedEntries(ctx, db, account, &v.last)
		if err != nil {
			return Verification{}, err
		}
		for i := range entries {
			v.broken, err = v.follow(&entries[i])
			if err != nil {
				return Verification{}, err
			}
			if v.broken != nil {
				break
			}
		}
		if len(entries) < verifyChunk {
			break // to find none behind them costs as much as to read a few
		}
	}
	result := Verification{TenantID: account.TenantID, Entries: v.entries, OpenHolds: account.OpenHolds}
	if v.broken != nil {
		// What the counters should say is not known behind a broken entry.
		result.Findings = []Finding{*v.broken}
		return result, nil
	}
	v.head()
	err = storedTotals(ctx, db, account.TenantID, v.counter)
	if err != nil {
		return Verification{}, err
	}
	v.uncounted()
	result.Findings = v.findings
	return result, nil
}

// verifier follows one tenant's chain.
type verifier struct {
	checks   Checks
	account  *Account
	last     Entry    // the newest good one; zero before the first
	hash     [32]byte // of last, or genesis
	entries  int64
	totals   map[totalKey]Total // what the counters should be
	broken   *Finding
	findings []Finding
}

func (v *verifier) finding(seq int64, format string, args ...any) *Finding {
	return &Finding{Tenant: v.account.Tenant, Seq: seq, Detail: fmt.Sprintf(format, args...)}
}

// follow checks that e follows from what came before it, and goes on to it.
func (v *verifier) follow(e *storedEntry) (*Finding, error) {
	if fault := v.order(e); fault != nil {
		return fault, nil
	}
	if wrong, err := v.checks.Rules(&e.Entry); err != nil {
		return nil, err
	} else if wrong != "" {
		return v.finding(e.Seq, "%s", wrong), nil
	}
	if e.ChainHash(v.hash) != e.Hash {
		return v.finding(e.Seq, "does not match its hash: it, what stood before it, or the rules of plan %s version %d were changed",
			e.Plan, e.PlanVersion), nil
	}
	if fault := v.digests(e); fault != nil {
		return fault, nil
	}
	if fault := v.running(e); fault != nil {
		return fault, nil
	}
	v.last, v.hash = e.Entry, e.Hash
	v.entries++
	if wrong := v.checks.Visit(&e.Entry); wrong != "" {
		return v.finding(e.Seq, "%s", wrong), nil
	}
	return nil, nil
}

// order checks the number of e and its instant.
func (v *verifier) order(e *storedEntry) *Finding {
	next := v.last.Seq + 1
	switch {
	case e.Seq > next:
		return v.finding(next, "is missing: the next entry there is %d", e.Seq)
	case e.Seq < next:
		return v.finding(e.Seq, "stands twice")
	case e.At.Before(v.last.At):
		return v.finding(e.Seq, "is dated before the entry in front of it")
	}
	return nil
}

// digests checks the texts that are not erased against what the chain covers.
func (v *verifier) digests(e *storedEntry) *Finding {
	switch {
	case e.SubjectID != 0 && e.SubjectDigest == nil:
		return v.finding(e.Seq, "refers to subject %d, which does not exist", e.SubjectID)
	case e.subjectText != nil && !bytes.Equal(Digest(e.subjectSalt, []byte(*e.subjectText)), e.SubjectDigest):
		return v.finding(e.Seq, "has a subject whose text does not match its digest")
	case e.dimsText != nil && !bytes.Equal(Digest(e.dimsSalt, []byte(*e.dimsText)), e.DimsDigest):
		return v.finding(e.Seq, "has dims that do not match their digest")
	}
	return nil
}

// running adds e to what the totals should be and checks the totals it carries.
func (v *verifier) running(e *storedEntry) *Finding {
	if total := v.add(totalKey{meter: e.Meter}, &e.Entry); total != e.Total {
		return v.finding(e.Seq, "carries the running total %d of meter %q; its entries sum to %d", e.Total, e.Meter, total)
	}
	if e.SubjectID == 0 {
		if e.SubjectTotal != 0 {
			return v.finding(e.Seq, "carries a subject's running total without a subject")
		}
		return nil
	}
	if total := v.add(totalKey{e.Meter, e.SubjectID}, &e.Entry); total != e.SubjectTotal {
		return v.finding(e.Seq, "carries the subject's running total %d of meter %q; its entries sum to %d",
			e.SubjectTotal, e.Meter, total)
	}
	return nil
}

func (v *verifier) add(key totalKey, e *Entry) int64 {
	t, seen := v.totals[key]
	if !seen {
		t.LastAt = epoch()
	}
	if e.IsCorrection() {
		t.Returned -= e.Units
	} else {
		t.Units += e.Units
	}
	t.Held += e.Held
	if e.Kind.Uses() {
		t.Calls++
	}
	if e.Units > 0 {
		t.LastAt = e.At.UTC()
	}
	v.totals[key] = t
	return t.Units
}

// head checks the account row against the newest entry.
func (v *verifier) head() {
	a := v.account
	switch {
	case a.Seq > v.last.Seq:
		v.findings = append(v.findings, *v.finding(v.last.Seq+1,
			"is missing: the account has %d entries, the last one there is %d", a.Seq, v.last.Seq))
	case a.Seq < v.last.Seq:
		v.findings = append(v.findings, *v.finding(a.Seq+1, "is not known to the account, which has %d entries", a.Seq))
	case a.HeadHash != v.hash:
		v.findings = append(v.findings, *v.finding(a.Seq, "is not the head that the account's hash names"))
	case a.Seq > 0 && !a.LastAt.Equal(v.last.At):
		v.findings = append(v.findings, *v.finding(a.Seq, "is not as old as the account's last_at says"))
	}
}

// counter checks one stored counter, and strikes it off.
func (v *verifier) counter(key totalKey, have Total) {
	want, known := v.totals[key]
	delete(v.totals, key)
	if !known {
		v.findings = append(v.findings, *v.finding(0, "%s counts units without an entry", key))
		return
	}
	if have != want {
		v.findings = append(v.findings, *v.finding(0,
			"%s says units %d, returned %d, held %d, calls %d, last_at %s; the entries say %d, %d, %d, %d, %s", key,
			have.Units, have.Returned, have.Held, have.Calls, have.LastAt.Format(instantFormat),
			want.Units, want.Returned, want.Held, want.Calls, want.LastAt.Format(instantFormat)))
	}
}

// uncounted reports entries that no counter counts.
func (v *verifier) uncounted() {
	keys := make([]totalKey, 0, len(v.totals))
	for key := range v.totals {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b totalKey) int {
		return cmp.Or(cmp.Compare(a.meter, b.meter), cmp.Compare(a.subjectID, b.subjectID))
	})
	for _, key := range keys {
		v.findings = append(v.findings, *v.finding(0, "%s is missing", key))
	}
}

const instantFormat = "2006-01-02T15:04:05.000000Z07:00"

// String names the counter.
func (k totalKey) String() string {
	if k.subjectID == 0 {
		return fmt.Sprintf("the counter of meter %q", k.meter)
	}
	return fmt.Sprintf("the counter of meter %q for subject %d", k.meter, k.subjectID)
}
