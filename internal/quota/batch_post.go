package quota

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/quotad/quotad/internal/ledger"
)

// post turns an allowed verdict into entries, one per charge, chained to the tenant's
// head, and completes the decision with its receipt.
func (b *batch) post(t *tenantWork, r *Request, v *verdict) error {
	subject, err := t.knownSubject(r.Subject)
	if err != nil {
		return err
	}
	dims, err := encodeDims(r.Dims)
	if err != nil {
		return err
	}
	at := v.decision.DecidedAt
	receipt := &Receipt{FirstSeq: t.account.Seq + 1}
	for _, c := range v.charges {
		p := ledger.Posting{
			Entry: ledger.Entry{
				Tenant:        t.name,
				Seq:           t.account.Seq + 1,
				At:            at,
				EffectiveAt:   at,
				Kind:          ledger.KindConsume,
				Meter:         c.meter.Name,
				Subject:       r.Subject,
				Units:         c.cost,
				Total:         t.book.totals[meterKey{meter: c.meter.Name}].units,
				RequestID:     v.decision.RequestID,
				BatchID:       b.id,
				PlanVersionID: t.book.rules.plan.VersionID,
				OverrideSetID: t.book.rules.plan.OverrideSetID,
				SpecDigest:    t.book.rules.plan.SpecDigest,
				LimitsUsed:    c.limitsUsed,
				DimsDigest:    dims.digest,
			},
			TenantID: t.facts.tenantID,
			MeterID:  c.meter.ID,
			DimsSalt: dims.salt,
			DimsJSON: dims.text,
		}
		if subject != nil {
			p.SubjectID, p.SubjectDigest = subject.SubjectID, subject.Digest
			p.SubjectTotal = t.book.totals[meterKey{meter: c.meter.Name, subject: r.Subject}].units
		}
		p.Hash = p.ChainHash(t.account.HeadHash)
		t.account.Seq, t.account.HeadHash, t.account.LastAt = p.Seq, p.Hash, at
		b.write.Postings = append(b.write.Postings, p)
		receipt.Seq, receipt.Hash = p.Seq, p.Hash
	}
	v.decision.Receipt = receipt
	return b.keep(t, r, v)
}

// keep remembers the answer under the request's idempotency key.
func (b *batch) keep(t *tenantWork, r *Request, v *verdict) error {
	if r.Key == "" {
		return nil
	}
	answer, err := v.decision.JSON()
	if err != nil {
		return fmt.Errorf("encode the answer: %w", err)
	}
	v.decision.Encoded = answer
	kept := keptAnswer{requestHash: r.fingerprint(), answer: answer}
	t.keys[r.Key] = kept
	b.keys = append(b.keys, keyRow{
		tenantID: t.facts.tenantID, key: r.Key, at: v.decision.DecidedAt,
		firstSeq: v.decision.Receipt.FirstSeq, keptAnswer: kept,
	})
	return nil
}

// knownSubject returns the subject as the ledger names it, a new one if it was never
// seen; nil without a subject.
func (t *tenantWork) knownSubject(text string) (*ledger.NewSubject, error) {
	if text == "" {
		return nil, nil
	}
	if known := t.subject[text]; known != nil {
		return known, nil
	}
	salt, err := newSalt()
	if err != nil {
		return nil, err
	}
	t.account.SubjectSeq++
	s := &ledger.NewSubject{
		TenantID: t.facts.tenantID, SubjectID: t.account.SubjectSeq, Subject: text,
		Salt: salt, Digest: ledger.Digest(salt, []byte(text)),
	}
	t.subject[text] = s
	return s, nil
}

func newSalt() ([]byte, error) {
	salt := make([]byte, ledger.SaltBytes)
	if _, err := rand.Read(salt); err != nil {
		return nil, fmt.Errorf("make a salt: %w", err)
	}
	return salt, nil
}

// saltedText is a text and what the chain covers of it; all nil for no text.
type saltedText struct {
	text, salt, digest []byte
}

// encodeDims gives dims their one text form: JSON with sorted names.
func encodeDims(dims map[string]string) (saltedText, error) {
	if len(dims) == 0 {
		return saltedText{}, nil
	}
	text, err := json.Marshal(dims)
	if err != nil {
		return saltedText{}, fmt.Errorf("encode dims: %w", err)
	}
	salt, err := newSalt()
	if err != nil {
		return saltedText{}, err
	}
	return saltedText{text: text, salt: salt, digest: ledger.Digest(salt, text)}, nil
}

// collect gathers what changed in t's book and account into the batch's write.
func (b *batch) collect(t *tenantWork) {
	if t.book == nil {
		return
	}
	posted := false
	for key, have := range t.book.totals {
		if !have.changed {
			continue
		}
		posted = true
		b.write.Totals = append(b.write.Totals, ledger.TotalRow{
			TenantID:  t.facts.tenantID,
			MeterID:   b.snapshot.Meter(key.meter).ID,
			SubjectID: t.subjectID(key.subject),
			Total: ledger.Total{
				Units: have.units, Held: have.held, Calls: have.calls,
				LastAt: time.UnixMicro(have.lastAtMicros).UTC(),
			},
		})
	}
	if !posted {
		return
	}
	b.write.Accounts = append(b.write.Accounts, t.account)
	for _, s := range t.subject {
		if s.Salt != nil {
			b.write.Subjects = append(b.write.Subjects, *s)
		}
	}
	for key, have := range t.book.levels {
		if have.changed {
			b.levels = append(b.levels, levelRow{
				tenantID: t.facts.tenantID, limit: key.limit.Name, subjectID: t.subjectID(key.subject), level: *have,
			})
		}
	}
}

// subjectID returns the identity of a subject that has entries; 0 for the whole tenant.
func (t *tenantWork) subjectID(subject string) int64 {
	if subject == "" {
		return 0
	}
	return t.subject[subject].SubjectID
}
