package api

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/identity"
	"github.com/quotad/quotad/internal/quota"
)

// FuzzConsumeBody holds the body's reader to encoding/json: whatever the one accepts
// without a fault the other reads to the same values, and no input makes it panic.
func FuzzConsumeBody(f *testing.F) {
	for _, seed := range []string{
		`{"tenant":"acme","meter":"api.calls","cost":1}`,
		`{"tenant":"t","subject":"s","charges":[{"meter":"a","cost":3},{"meter":"b","pools":{"p":1}}],"dims":{"k":"v"},"dry_run":true}`,
		`{"tenant":"\ud83d\ude00","meter":"m","cost":1e3}`,
		`{"tenant":"t","client":{"peer":"[::1]:80","forwarded_for":["203.0.113.9, 10.1.1.1",""]},"meter":"m"}`,
		`{"tenant":"t","tenant":"u"}`, `[]`, `{`, `null`, "{\"tenant\":\"\xff\"}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, faults := decode(string(body))
		if len(faults) > faultsMax {
			t.Fatalf("%d faults, want at most %d", len(faults), faultsMax)
		}
		for _, fault := range faults {
			if fault.Field == "" || fault.Rule == "" || !utf8.ValidString(fault.Field) {
				t.Fatalf("fault %+v lacks a field or a rule", fault)
			}
		}
		if len(faults) > 0 {
			return
		}
		if diff := cmp.Diff(decodeByReflection(t, body), r); diff != "" {
			t.Fatalf("encoding/json reads it otherwise, encoding/json-, ours+:\n%s", diff)
		}
	})
}

// decodeByReflection reads a body that has no fault the other way.
func decodeByReflection(t *testing.T, body []byte) quota.Request {
	type charge struct {
		Meter string           `json:"meter"`
		Cost  *int64           `json:"cost"`
		Pools map[string]int64 `json:"pools"`
	}
	var in struct {
		charge
		Tenant  string `json:"tenant"`
		Subject string `json:"subject"`
		Client  *struct {
			Peer         string   `json:"peer"`
			ForwardedFor []string `json:"forwarded_for"`
		} `json:"client"`
		Charges []charge          `json:"charges"`
		Dims    map[string]string `json:"dims"`
		DryRun  bool              `json:"dry_run"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		t.Fatalf("encoding/json refuses what passed: %v", err)
	}
	r := quota.Request{Tenant: in.Tenant, Subject: in.Subject, Dims: in.Dims, DryRun: in.DryRun}
	if in.Client != nil {
		var err error
		if r.Subject, err = (identity.Resolver{}).Subject(in.Client.Peer, in.Client.ForwardedFor); err != nil {
			t.Fatalf("a client at %q passed: %v", in.Client.Peer, err)
		}
	}
	add := func(c charge, path string) {
		cost := int64(costDefault)
		if c.Cost != nil {
			cost = *c.Cost
		}
		r.Charges = append(r.Charges, quota.Charge{Meter: c.Meter, Cost: cost, Pools: c.Pools, Path: path})
	}
	if in.Charges == nil {
		add(in.charge, "")
		return r
	}
	r.Charges = []quota.Charge{}
	for i, c := range in.Charges {
		add(c, chargePath(i))
	}
	return r
}

// FuzzBatchItem holds the reader of batches to this: whatever is JSON harms no other item,
// and has the faults that it has alone.
func FuzzBatchItem(f *testing.F) {
	for _, seed := range []string{
		`{"tenant":"t","meter":"m"}`, `{"tenant":"t","tenant":"u"}`, "{\"tenant\":\"\xff\"}", `{"tenant":"\ud800"}`,
		`7`, `[[]]`, `{"":{"":1}}`, `{"tenant":"t","meter":"m"},{}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, item []byte) {
		if !jsontext.Value(item).IsValid(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true)) {
			return
		}
		const good = `{"tenant":"t","meter":"m"}`
		var b, alone bodyReader
		b.text.WriteString(`{"items":[` + good + `,`)
		b.text.Write(item)
		b.text.WriteString(`,` + good + `]}`)
		b.resetBatch()
		items := decodeBatch(&b, consumeForm)
		if len(items) != 3 || len(b.faults) > 0 || items[0].err != nil || items[2].err != nil {
			t.Fatalf("batch with %q = %+v, faults %v; want a good item on either side", item, items, b.faults)
		}
		alone.text.Write(item)
		alone.reset()
		request := decodeRequest(&alone, consumeForm, true)
		if diff := cmp.Diff(faultsIn(alone.check(request)), faultsIn(items[1].err)); diff != "" {
			t.Fatalf("faults of %q, alone-, in a batch+:\n%s", item, diff)
		}
	})
}

func faultsIn(err error) []quota.Fault {
	if err == nil {
		return nil
	}
	return problemOf(err).faults
}

// FuzzIdempotencyKey holds the parser to this: a key it reads, quoted again, is read
// as the same key.
func FuzzIdempotencyKey(f *testing.F) {
	for _, seed := range []string{`abc`, `"abc"`, `"a\"b\\"`, `"`, `""`, `"a" `, "\x00", "é"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		key, rule := parseIdempotencyKey(value)
		if (key == "") == (rule == "") {
			t.Fatalf("parseIdempotencyKey(%q) = %q, %q; want a key or a rule", value, key, rule)
		}
		if rule != "" || strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
			return
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, rule := parseIdempotencyKey(quoted); again != key || rule != "" {
			t.Fatalf("parseIdempotencyKey(%s) = %q, %q; want %q", quoted, again, rule, key)
		}
	})
}

// FuzzCursor holds cursors to this: what is accepted is exactly what was made.
func FuzzCursor(f *testing.F) {
	list := listDigest("entries", "acme")
	f.Add(encodeSeqCursor(list, 1))
	f.Add(encodeSeqCursor(list, 1<<40))
	f.Add(encodeSeqCursor(list, 1)[:8] + "\r" + encodeSeqCursor(list, 1)[8:])
	f.Add("\n" + encodeSeqCursor(list, 1))
	f.Add("")
	f.Fuzz(func(t *testing.T, cursor string) {
		seq, ok := decodeSeqCursor(list, cursor)
		if ok && encodeSeqCursor(list, seq) != cursor {
			t.Fatalf("decodeSeqCursor(%q) = %d, which encodes to %q", cursor, seq, encodeSeqCursor(list, seq))
		}
	})
}

// FuzzSpec holds the reader of configuration to this: no input makes it panic, and
// whatever it accepts encoding/json accepts too.
func FuzzSpec(f *testing.F) {
	for _, seed := range []string{
		`{"limits":[{"name":"l","meter":"m","algorithm":"gcra","rate":"6/1m","burst":5}]}`,
		`{"limits":[{"limit":1.5}]}`, `{"limits":null}`, `{"limits":[{"limit":1e400}]}`, `{}{}`, `[`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		c := &call{}
		c.in.text.Write(body)
		var spec, again catalog.PlanSpec
		err := decodeSpec(c, &spec)
		if err == nil {
			if err := json.Unmarshal(body, &again); err != nil {
				t.Fatalf("encoding/json refuses what passed: %v", err)
			}
			return
		}
		var p *problem
		if !errors.As(err, &p) || len(p.faults) == 0 || p.faults[0].Field == "" || p.faults[0].Rule == "" {
			t.Fatalf("decodeSpec(%q) = %v, want a problem that names field and rule", body, err)
		}
	})
}
