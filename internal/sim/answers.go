package sim

import (
	"crypto/sha256"
	"encoding/json"

	"github.com/google/uuid"
)

// checkAnswers checks the answers that are kept for retries: one per key, each about
// the entries of one request, and no request under two keys.
func (t *tenant) checkAnswers(f *findings) {
	t.kept = make(map[string][sha256.Size]byte, len(t.answers))
	requests := make(map[uuid.UUID]string, len(t.answers))
	for i := range t.answers {
		a := &t.answers[i]
		if _, twice := t.kept[a.key]; twice {
			f.add(t.name, "key %q has two answers", a.key)
		}
		t.kept[a.key] = sha256.Sum256(a.answer)
		var body answerBody
		if err := json.Unmarshal(a.answer, &body); err != nil || body.Receipt == nil {
			f.add(t.name, "the answer kept for key %q is not one: %s", a.key, oneLine(string(a.answer)))
			continue
		}
		if other, taken := requests[body.RequestID]; taken {
			f.add(t.name, "keys %q and %q have the answer of one request", other, a.key)
		}
		requests[body.RequestID] = a.key
		if body.Receipt.FirstSeq != a.firstSeq || body.DecidedAt.UnixMicro() != a.at {
			f.add(t.name, "the answer kept for key %q is filed under entry %d and another instant or entry is in it", a.key, a.firstSeq)
		}
		if wrong := t.receiptFault(body.RequestID, *body.Receipt); wrong != "" {
			f.add(t.name, "the answer kept for key %q %s", a.key, wrong)
		}
	}
}

// receiptFault says how a receipt differs from the entries of its request, or "".
func (t *tenant) receiptFault(id uuid.UUID, receipt Receipt) string {
	r := t.requests[id]
	if r == nil {
		return "is about request " + id.String() + ", which is not in the ledger"
	}
	first, last := &t.entries[r.first], &t.entries[r.last]
	if first.seq != receipt.FirstSeq || last.seq != receipt.Seq {
		return "names other entries than those of its request"
	}
	if last.hash != receipt.Hash {
		return "has a receipt whose hash is not that of its entry"
	}
	return ""
}
