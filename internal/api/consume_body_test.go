package api

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// decode runs a body through the same steps as a request.
func decode(body string) (quota.Request, []quota.Fault) {
	var b bodyReader
	b.text.WriteString(body)
	b.reset()
	r := decodeBody(&b, consumeForm)
	return r, b.faults
}

func TestConsumeBodyIsReadAsWritten(t *testing.T) {
	tests := []struct {
		body string
		want quota.Request
	}{
		{
			`{"tenant":"acme","meter":"api.calls"}`,
			quota.Request{Tenant: "acme", Charges: []quota.Charge{{Meter: "api.calls", Cost: 1}}},
		},
		{
			` { "dry_run" : true , "cost" : 0 , "meter" : "m" , "subject" : "u/1" , "tenant" : "a b" } `,
			quota.Request{Tenant: "a b", Subject: "u/1", Charges: []quota.Charge{{Meter: "m"}}, DryRun: true},
		},
		{
			`{"tenant":"\u0061cm\u00e9","\u006deter":"m","cost":999999999999999,"dims":{"region":"eu","0":"x"}}`,
			quota.Request{
				Tenant: "acmé", Charges: []quota.Charge{{Meter: "m", Cost: 999999999999999}},
				Dims: map[string]string{"region": "eu", "0": "x"},
			},
		},
		{
			`{"tenant":"t","meter":"m","pools":{"input_tokens":7,"output_tokens":0}}`,
			quota.Request{Tenant: "t", Charges: []quota.Charge{
				{Meter: "m", Cost: 1, Pools: map[string]int64{"input_tokens": 7, "output_tokens": 0}},
			}},
		},
		{
			`{"tenant":"t","charges":[{"meter":"a","cost":3},{"meter":"b"},{"meter":"c","pools":{"p":1}}]}`,
			quota.Request{Tenant: "t", Charges: []quota.Charge{
				{Meter: "a", Cost: 3, Path: "charges[0]"},
				{Meter: "b", Cost: 1, Path: "charges[1]"},
				{Meter: "c", Cost: 1, Pools: map[string]int64{"p": 1}, Path: "charges[2]"},
			}},
		},
	}
	for _, tt := range tests {
		got, faults := decode(tt.body)
		if len(faults) > 0 {
			t.Errorf("decode(%s) has faults %v, want none", tt.body, faults)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("decode(%s), want-, got+:\n%s", tt.body, diff)
		}
	}
}

// Each of these is money lost or an hour of searching if it passes in silence.
func TestConsumeBodyNamesFieldAndRule(t *testing.T) {
	fault := func(field, rule string) []quota.Fault { return []quota.Fault{{Field: field, Rule: rule}} }
	ok := `"tenant":"t","meter":"m"`
	tests := []struct {
		name, body string
		want       []quota.Fault
	}{
		{"empty", ``, fault("body", "must be a JSON object; it is empty")},
		{"null", `null`, fault("body", "must be an object")},
		{"array", `[]`, fault("body", "must be an object")},
		{"cut", `{"tenant":"t"`, fault("body", "must be valid JSON; it ends early, at byte 13")},
		{"two objects", `{` + ok + `}{}`, fault("body", "must be one JSON object and nothing after it")},
		{"trailing text", `{` + ok + `}x`, fault("body", "must be valid JSON; byte 26 is where it is not")},
		{"nested too deep", `{` + ok + `,"dims":` + strings.Repeat(`[`, 20_000), fault("dims[0]", "must be less deeply nested")},
		{"unknown field", `{` + ok + `,"cots":1}`, fault("cots", "is not a field of this request")},
		{"field in other case", `{` + ok + `,"Cost":1}`, fault("Cost", "is not a field of this request")},
		{"duplicate name", `{` + ok + `,"tenant":"u"}`, fault("tenant", "must be given only once")},
		{"duplicate name, escaped", `{` + ok + `,"\u0074enant":"u"}`, fault("tenant", "must be given only once")},
		{"duplicate in a charge", `{"tenant":"t","charges":[{"meter":"m"},{"meter":"m","cost":1,"cost":2}]}`, fault("charges[1].cost", "must be given only once")},
		{"invalid UTF-8", "{\"tenant\":\"t\xff\",\"meter\":\"m\"}", fault("tenant", "must be valid UTF-8")},
		{"lone surrogate", `{"tenant":"\ud800","meter":"m"}`, fault("tenant", "must be valid UTF-8")},
		{"tenant is a number", `{"tenant":7,"meter":"m"}`, fault("tenant", "must be a string")},
		{"tenant is null", `{"tenant":null,"meter":"m"}`, fault("tenant", "must be a string")},
		{"subject is empty", `{` + ok + `,"subject":""}`, fault("subject", "must be 1 to 256 bytes long")},
		{"subject is null", `{` + ok + `,"subject":null}`, fault("subject", "must be a string")},
		{"cost is negative", `{` + ok + `,"cost":-1}`, fault("cost", wholeNumberRule)},
		{"cost is minus zero", `{` + ok + `,"cost":-0}`, fault("cost", wholeNumberRule)},
		{"cost has a fraction", `{` + ok + `,"cost":1.5}`, fault("cost", wholeNumberRule)},
		{"cost has an exponent", `{` + ok + `,"cost":1e3}`, fault("cost", wholeNumberRule)},
		{"cost is text", `{` + ok + `,"cost":"1e3"}`, fault("cost", wholeNumberRule)},
		{"cost is null", `{` + ok + `,"cost":null}`, fault("cost", wholeNumberRule)},
		{"cost is 2^63", `{` + ok + `,"cost":9223372036854775808}`, fault("cost", wholeNumberRule)},
		{"cost has 16 digits", `{` + ok + `,"cost":1000000000000000}`, fault("cost", wholeNumberRule)},
		{"cost in a charge", `{"tenant":"t","charges":[{"meter":"m"},{"meter":"m","cost":1.5}]}`, fault("charges[1].cost", wholeNumberRule)},
		{"pool amount", `{` + ok + `,"pools":{"in":1.5}}`, fault("pools.in", wholeNumberRule)},
		{"pool amount in a charge", `{"tenant":"t","charges":[{"meter":"m","pools":{"in":true}}]}`, fault("charges[0].pools.in", wholeNumberRule)},
		{"pool name", `{` + ok + `,"pools":{"In put":1}}`, fault("pools", "names must match [a-z0-9][a-z0-9._-]{0,63}")},
		{"pools is null", `{` + ok + `,"pools":null}`, fault("pools", "must be an object")},
		{"cost and pools", `{` + ok + `,"pools":{"in":1},"cost":1}`, fault("pools", "must not be given together with cost")},
		{"neither meter nor charges", `{"tenant":"t"}`, fault("meter", "is required")},
		{"both forms", `{` + ok + `,"charges":[{"meter":"m"}]}`, fault("charges", "must not be given together with meter, cost or pools")},
		{"cost beside charges", `{"tenant":"t","cost":1,"charges":[{"meter":"m"}]}`, fault("charges", "must not be given together with meter, cost or pools")},
		{"charges is an object", `{"tenant":"t","charges":{}}`, fault("charges", "must be an array")},
		{"charges is null", `{"tenant":"t","charges":null}`, fault("charges", "must be an array")},
		{"charge is a number", `{"tenant":"t","charges":[{"meter":"m"},7]}`, fault("charges[1]", "must be an object")},
		{"charge without meter", `{"tenant":"t","charges":[{"cost":1}]}`, fault("charges[0].meter", "is required")},
		{"charge with an unknown field", `{"tenant":"t","charges":[{"meter":"m","dims":{}}]}`, fault("charges[0].dims", "is not a field of this request")},
		{"dims is null", `{` + ok + `,"dims":null}`, fault("dims", "must be an object")},
		{"dim is a number", `{` + ok + `,"dims":{"a":"b","n":1}}`, fault("dims.n", "must be a string")},
		{"dims without a name", `{` + ok + `,"dims":{"":1}}`, fault("dims", emptyNameRule)},
		{"field without a name", `{` + ok + `,"":1}`, fault("body", emptyNameRule)},
		{"field without a name in a charge", `{"tenant":"t","charges":[{"meter":"m","":1}]}`, fault("charges[0]", emptyNameRule)},
		{"duplicate in a field without a name", `{` + ok + `,"":{"a":1,"a":2}}`, fault("body", "must be given only once")},
		{"lists in a list", strings.Repeat("[", 50), fault("body", "must be valid JSON; it ends early, at byte 50")},
		{"lists in a field", `{"dims":` + strings.Repeat("[", 50), fault("dims[0]", "must be valid JSON; it ends early, at byte 58")},
		{"objects in a list", `[{"tenant":{"a":1,"a":2}}]`, fault("body", "must be given only once")},
		{"no tenant", `{"meter":"m"}`, fault("tenant", "is required")},
		{"dry_run is text", `{` + ok + `,"dry_run":"true"}`, fault("dry_run", "must be true or false")},
		{
			"several at once", `{"tenant":1,"meter":2,"cost":3.5,"x":4}`,
			[]quota.Fault{
				{Field: "tenant", Rule: "must be a string"},
				{Field: "meter", Rule: "must be a string"},
				{Field: "cost", Rule: wholeNumberRule},
				{Field: "x", Rule: "is not a field of this request"},
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got := decode(tt.body)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("faults of %s, want-, got+:\n%s", tt.body, diff)
			}
		})
	}
}

// A field that could not be read has that one fault: what it lacks follows from it.
func TestConsumeBodyFaultsDoNotFollowFromOthers(t *testing.T) {
	for body, want := range map[string][]quota.Fault{
		`[]`:                          {{Field: "body", Rule: "must be an object"}},
		`[{"tenant":"t"}]`:            {{Field: "body", Rule: "must be an object"}},
		`7`:                           {{Field: "body", Rule: "must be an object"}},
		`null`:                        {{Field: "body", Rule: "must be an object"}},
		`{"tenant":7,"meter":"m"}`:    {{Field: "tenant", Rule: "must be a string"}},
		`{"meter":"m"}`:               {{Field: "tenant", Rule: "is required"}},
		`{"tenant":"t","charges":{}}`: {{Field: "charges", Rule: "must be an array"}},
		`{"tenant":"t","charges":[7,{"meter":"M"}]}`: {
			{Field: "charges[0]", Rule: "must be an object"}, {Field: "charges[1].meter", Rule: catalog.NameRule},
		},
		`{"body":7,"tenant":"t","meter":"M"}`: {
			{Field: "body", Rule: "is not a field of this request"}, {Field: "meter", Rule: catalog.NameRule},
		},
	} {
		var b bodyReader
		b.text.WriteString(body)
		b.reset()
		r := decodeBody(&b, consumeForm)
		if diff := cmp.Diff(want, faultsIn(b.check(r))); diff != "" {
			t.Errorf("faults of %s, want-, got+:\n%s", body, diff)
		}
	}
}

// A field name that the caller made up must not come back at any length.
func TestConsumeBodyFaultsAreBounded(t *testing.T) {
	var body strings.Builder
	body.WriteString(`{`)
	for range 100 {
		body.WriteString(`"` + strings.Repeat("é", 300) + strings.Repeat("x", body.Len()%97) + `":1,`)
	}
	body.WriteString(`"z":1}`)
	_, faults := decode(body.String())
	if len(faults) == 0 || len(faults) > faultsMax {
		t.Errorf("decode gives %d faults, want 1 to %d", len(faults), faultsMax)
	}
	for _, f := range faults {
		if len(f.Field) > fieldBytesMax+len("…") {
			t.Errorf("a fault's field is %d bytes long, want at most %d", len(f.Field), fieldBytesMax)
		}
	}
}

// Nesting as deep as a body allows is refused, not a stack overflow.
func TestConsumeBodySurvivesDeepNesting(t *testing.T) {
	_, faults := decode(`{"tenant":"t","meter":"m","dims":` + strings.Repeat("[", 60_000))
	if len(faults) == 0 {
		t.Error("decode accepts 60,000 open brackets")
	}
}

func BenchmarkDecodeConsume(b *testing.B) {
	const body = `{"tenant":"tenant-000123","subject":"user-7","meter":"api.calls","cost":1}`
	var reader bodyReader
	b.ReportAllocs()
	for b.Loop() {
		reader.text.Reset()
		reader.text.WriteString(body)
		reader.reset()
		r := decodeBody(&reader, consumeForm)
		if err := r.Validate(); err != nil || len(reader.faults) > 0 {
			b.Fatal(err, reader.faults)
		}
	}
}
