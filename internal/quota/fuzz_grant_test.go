package quota

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// FuzzGrant holds the reader of grants on disk to this: what it accepts is the same grant
// when it is written and read again.
func FuzzGrant(f *testing.F) {
	for _, seed := range []string{
		`{"request_id":"0198c5d7-8f5e-7c4e-9d6c-3f2a1b0c9d8e","at":"2026-01-31T12:00:00Z","tenant":"t","charges":[{"meter":"m","cost":1}],"fingerprint":"00"}`,
		`{"key":"k","answer":{"allowed":true,"tenant":"t","charges":[],"limits":[]},"dims":{"a":"b"}}`, `{"answer":7}`, `{"at":"x"}`, `null`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, record []byte) {
		kept, err := readGrant(record)
		if err != nil {
			return
		}
		text, err := json.Marshal(kept)
		if err != nil {
			return // an instant that JSON cannot write, which posting it refuses
		}
		again, err := readGrant(text)
		if err != nil {
			t.Fatalf("%s is read and, written as %s, is not: %v", record, text, err)
		}
		same := cmp.Options{
			cmp.AllowUnexported(grant{}), cmpopts.IgnoreFields(grant{}, "done", "Answer"), cmpopts.IgnoreFields(Decision{}, "Encoded"), cmpopts.EquateEmpty(),
		}
		if diff := cmp.Diff(kept, again, same); diff != "" {
			t.Fatalf("%s written again (-first +again):\n%s", record, diff)
		}
	})
}
