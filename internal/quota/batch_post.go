package quota

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/ledger"
)

// post enters an allowed verdict into the ledger, one entry per meter, and completes the
// decision with its receipt.
func (b *batch) post(t *tenantWork, r *Request, v *verdict) error {
	dims, err := encodeDims(r.Dims)
	if err != nil {
		return err
	}
	v.decision.Receipt, err = b.enter(t, v.lines, v.decision.RequestID, dims)
	if err != nil {
		return err
	}
	if h := v.hold; h != nil {
		if err := t.keepHold(h, r, v); err != nil {
			return err
		}
	}
	return b.keep(t, r, v)
}

// enter turns lines into entries that are chained to the tenant's head.
func (b *batch) enter(t *tenantWork, lines []line, id uuid.UUID, dims saltedText) (*Receipt, error) {
	receipt := &Receipt{FirstSeq: t.account.Seq + 1}
	plan := t.book.rules.plan
	for i := range lines {
		l := &lines[i]
		t.unsteady = t.unsteady || l.units < 0 || l.atMicros != t.book.nowMicros
		at := time.UnixMicro(l.atMicros).UTC()
		p := ledger.Posting{
			Entry: ledger.Entry{
				Tenant:        t.name,
				Seq:           t.account.Seq + 1,
				At:            at,
				EffectiveAt:   time.UnixMicro(l.effectiveMicros).UTC(),
				Kind:          l.kind,
				Meter:         l.meter,
				Subject:       l.subject,
				Units:         l.units,
				Held:          l.held,
				Total:         l.total,
				SubjectTotal:  l.subjectTotal,
				RequestID:     id,
				BatchID:       b.id,
				RefSeq:        l.refSeq,
				PlanVersionID: plan.VersionID,
				OverrideSetID: plan.OverrideSetID,
				SpecDigest:    plan.SpecDigest,
				LimitsUsed:    l.limitsUsed,
				LimitsHeld:    l.limitsHeld,
				DimsDigest:    dims.digest,
			},
			TenantID: t.facts.tenantID,
			MeterID:  l.meterID,
			DimsSalt: dims.salt,
			DimsJSON: dims.text,
		}
		subject, err := t.knownSubject(l.subject)
		if err != nil {
			return nil, err
		}
		if subject != nil {
			p.SubjectID, p.SubjectDigest = subject.SubjectID, subject.Digest
		}
		p.Hash = p.ChainHash(t.account.HeadHash)
		t.account.Seq, t.account.HeadHash, t.account.LastAt = p.Seq, p.Hash, at
		b.write.Postings = append(b.write.Postings, p)
		receipt.Seq, receipt.Hash = p.Seq, p.Hash
	}
	return receipt, nil
}

// keepHold gives a new hold its first entry, and one that is resolved the answer that
// repeating it gets.
func (t *tenantWork) keepHold(h *hold, r *Request, v *verdict) (err error) {
	switch r.Kind {
	case ledger.KindHold:
		h.firstSeq = v.decision.Receipt.FirstSeq
		put(&t.holds, h.id, h)
	case ledger.KindSettle, ledger.KindRelease:
		if h.answer, err = v.decision.JSON(); err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		v.decision.Encoded = h.answer // so that the first answer is the one that is repeated
	}
	return nil
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
	if v.grant != nil {
		kept = v.grant.kept(r.Key, answer)
	}
	put(&t.keys, r.Key, kept)
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
	put(&t.subject, text, s)
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
			MeterID:   have.meterID,
			SubjectID: t.subjectID(key.subject),
			Total: ledger.Total{
				Units: have.units, Returned: have.returned, Held: have.held, Calls: have.calls,
				LastAt: time.UnixMicro(have.lastAtMicros).UTC(), Stored: have.stored,
			},
			Levels: t.book.keepLevels(key),
		})
	}
	if !posted {
		return
	}
	t.account.OpenHolds = int32(len(t.book.holds))
	if holding := t.account.OpenHolds > 0; holding != t.holding {
		b.runner.engine.tenants.Set(t.name, known{t.facts, holding})
	}
	b.write.Accounts = append(b.write.Accounts, t.account)
	for _, h := range t.holds {
		if h != nil && h.changed {
			b.holds = append(b.holds, holdRow{tenantID: t.facts.tenantID, subjectID: t.subjectID(h.subject), hold: h})
		}
	}
	for _, s := range t.subject {
		if s.Salt != nil {
			b.write.Subjects = append(b.write.Subjects, *s)
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

// subjectSeen returns the identity of a subject; -1 for one that has no entries.
func (t *tenantWork) subjectSeen(subject string) int64 {
	if known := t.subject[subject]; known != nil {
		return known.SubjectID
	}
	return -1
}
