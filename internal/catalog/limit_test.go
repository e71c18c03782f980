package catalog_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// fieldsOf is what each algorithm must have. It says again what the table in the code
// says, from the documents.
var fieldsOf = map[string][]string{
	"sliding_log":     {`"limit": 1`, `"window": "1h"`},
	"sliding_counter": {`"limit": 1`, `"window": "1h"`},
	"fixed_window":    {`"limit": 1`, `"window": "month"`},
	"token_bucket":    {`"capacity": 1`, `"refill": "1/1s"`},
	"gcra":            {`"rate": "1/1s"`, `"burst": 1`},
	"leaky_bucket":    {`"rate": "1/1s"`, `"queue": 1`},
	"concurrency":     {`"limit": 1`},
}

func limitOf(t *testing.T, algorithm string, fields ...string) catalog.PlanSpec {
	t.Helper()
	fields = append(fields, `"name": "l"`, `"meter": "m"`, `"algorithm": "`+algorithm+`"`)
	var spec catalog.PlanSpec
	if err := json.Unmarshal([]byte(`{"limits": [{`+strings.Join(fields, ", ")+`}]}`), &spec); err != nil {
		t.Fatal(err)
	}
	return spec
}

func TestEachAlgorithmRequiresItsFieldsAndRefusesTheOthers(t *testing.T) {
	t.Parallel()
	if got, want := len(catalog.Algorithms()), len(fieldsOf); got != want {
		t.Errorf("%d algorithms, want %d", got, want)
	}
	for algorithm, fields := range fieldsOf {
		if err := limitOf(t, algorithm, fields...).Validate(); err != nil {
			t.Errorf("%s with %v: %v", algorithm, fields, err)
		}
		for i, missing := range fields {
			name := strings.Split(missing, `"`)[1]
			err := limitOf(t, algorithm, slices.Delete(slices.Clone(fields), i, i+1)...).Validate()
			want := fmt.Sprintf("limits[0].%s: is required by %s", name, algorithm)
			if err == nil || err.Error() != want {
				t.Errorf("%s without %s: %v, want %s", algorithm, name, err, want)
			}
		}
		for _, other := range []string{
			`"limit": 1`, `"unlimited": true`, `"window": "1h"`, `"capacity": 1`, `"refill": "1/1s"`,
			`"rate": "1/1s"`, `"burst": 1`, `"queue": 1`,
		} {
			name := strings.Split(other, `"`)[1]
			windowed := strings.Contains(strings.Join(fields, ""), `"limit"`)
			if strings.Contains(strings.Join(fields, ""), `"`+name+`"`) || name == "unlimited" && windowed {
				continue
			}
			err := limitOf(t, algorithm, append(slices.Clone(fields), other)...).Validate()
			want := fmt.Sprintf("limits[0].%s: is not a field of %s", name, algorithm)
			if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s with %s: %v, want %s", algorithm, name, err, want)
			}
		}
	}
}

func TestTextFormsOfSpansAndRates(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text   string
		window catalog.Window
		back   string
	}{
		{"1h", catalog.Window{DurationMicros: 3_600_000_000}, "1h"},
		{"60m", catalog.Window{DurationMicros: 3_600_000_000}, "1h"},
		{"1h0m30s", catalog.Window{DurationMicros: 3_630_000_000}, "1h30s"},
		{"1.5s", catalog.Window{DurationMicros: 1_500_000}, "1s500ms"},
		{"1ms", catalog.Window{DurationMicros: 1_000}, "1ms"},
		{"1001µs", catalog.Window{DurationMicros: 1_001}, "1ms1us"},
		{"87660h", catalog.Window{DurationMicros: 315_576_000_000_000}, "87660h"},
		{"week", catalog.Window{Calendar: catalog.CalendarWeek}, "week"},
	} {
		got, err := catalog.ParseWindow(test.text)
		if err != nil || got != test.window || got.String() != test.back {
			t.Errorf("ParseWindow(%q) = %+v (%s), %v; want %+v (%s)", test.text, got, got, err, test.window, test.back)
		}
	}
	for _, test := range []struct {
		text string
		rate catalog.Rate
		back string
	}{
		{"2/1s", catalog.Rate{Units: 2, PerMicros: 1_000_000}, "2/1s"},
		{"2/s", catalog.Rate{Units: 2, PerMicros: 1_000_000}, "2/1s"},
		{"7/m", catalog.Rate{Units: 7, PerMicros: 60_000_000}, "7/1m"},
		{"0/1us", catalog.Rate{PerMicros: 1}, "0/1us"},
		{"1/87660h", catalog.Rate{Units: 1, PerMicros: 315_576_000_000_000}, "1/87660h"},
	} {
		got, err := catalog.ParseRate(test.text)
		if err != nil || got != test.rate || got.String() != test.back {
			t.Errorf("ParseRate(%q) = %+v (%s), %v; want %+v (%s)", test.text, got, got, err, test.rate, test.back)
		}
	}
	if text := (catalog.Window{}).String() + (catalog.Rate{}).String(); text != "" {
		t.Errorf("no window and no rate are %q, want nothing", text)
	}
}

// A float would make 0.1 something else, and a JSON number is a float to most readers.
func TestWeightsKeepTheirTextFromJSON(t *testing.T) {
	t.Parallel()
	var spec catalog.MeterSpec
	body := `{"unit": "token", "weights": {"a": 0.1, "b": "0.1", "c": 0.300000, "d": 12, "e": 1e2}}`
	if err := json.Unmarshal([]byte(body), &spec); err != nil {
		t.Fatal(err)
	}
	want := map[string]catalog.WeightText{"a": "0.1", "b": "0.1", "c": "0.300000", "d": "12", "e": "1e2"}
	if diff := cmp.Diff(want, spec.Weights); diff != "" {
		t.Errorf("weights (-want +got):\n%s", diff)
	}
	wantFault(t, spec.Validate(), "weights.e: must be a decimal number")
	if err := json.Unmarshal([]byte(`{"weights": {"a": [1]}}`), &spec); err != nil {
		t.Fatal(err) // kept as it is: Validate refuses it in the words of the rule
	}
	wantFault(t, spec.Validate(), "weights.a: must be a decimal number")
}

func TestDifferencesNameTheLimitsThatDiffer(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.apply(t, configFree, catalog.ApplyOptions{})
	changes := db.apply(t, `
meters:
  llm.tokens: {unit: token, weights: {input: 1, output: 5}}
plans:
  free:
    limits:
      - {name: burst, meter: api.calls, algorithm: gcra, rate: 2/1s, burst: 10}
      - {name: daily, meter: api.calls, algorithm: fixed_window, unlimited: true, window: day}
tenants:
  acme: {plan: free, status: closed, billing_anchor: 1}`, catalog.ApplyOptions{})
	want := [][]string{
		{"weights.cached 0.1 -> none", "weights.output 4 -> 5"},
		{
			"~ burst: algorithm token_bucket -> gcra, burst none -> 10, capacity 10 -> none, rate none -> 2/1s, refill 2/1s -> none",
			"+ daily",
			"- hourly",
		},
		{"billing_anchor 15 -> 1", "status active -> closed"}, // what is absent stays as it was
	}
	var got [][]string
	for _, c := range changes.Items {
		got = append(got, c.Differs)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Differs (-want +got):\n%s", diff)
	}
}

func TestOnErrorAndItsShareAreCheckedTogether(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ algorithm, fields, want string }{
		{"gcra", `"on_error": "deny"`, ""},
		{"gcra", `"on_error": "allow"`, ""},
		{"gcra", `"on_error": "local", "local_share": 1`, ""},
		{"sliding_log", `"on_error": "local", "local_share": 100`, ""},
		{"gcra", `"on_error": "panic"`, "limits[0].on_error: must be one of deny, allow, local"},
		{"gcra", `"on_error": "local"`, "limits[0].local_share: is required by on_error: local"},
		{"gcra", `"on_error": "local", "local_share": 0`, "limits[0].local_share: must be a whole percentage from 1 to 100"},
		{"gcra", `"on_error": "local", "local_share": 101`, "limits[0].local_share: must be a whole percentage from 1 to 100"},
		{"gcra", `"on_error": "allow", "local_share": 50`, "limits[0].local_share: is only for on_error: local"},
		{"gcra", `"local_share": 50`, "limits[0].local_share: is only for on_error: local"},
		{"concurrency", `"on_error": "deny"`, ""},
		{"concurrency", `"on_error": "allow"`, "limits[0].on_error: must be deny for concurrency: a hold is never granted without the database"},
	} {
		err := limitOf(t, test.algorithm, append(slices.Clone(fieldsOf[test.algorithm]), test.fields)...).Validate()
		if got := fmt.Sprint(err); err == nil && test.want != "" || err != nil && got != test.want {
			t.Errorf("%s with %s: %v, want %s", test.algorithm, test.fields, err, test.want)
		}
	}
	unbounded := limitOf(t, "sliding_log", `"unlimited": true`, `"window": "1h"`, `"on_error": "local", "local_share": 5`)
	if err := unbounded.Validate(); err == nil || !strings.Contains(err.Error(), "no numbers to share") {
		t.Errorf("an unlimited limit with a share: %v", err)
	}
}

// A plan that says nothing of outages keeps the text that it was stored with.
func TestOnErrorDenyIsLeftOutOfTheCanonicalForm(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit catalog.Limit
		want  string
	}{
		{catalog.Limit{}, ""},
		{catalog.Limit{OnError: catalog.OnErrorAllow}, `,"on_error":"allow"`},
		{catalog.Limit{OnError: catalog.OnErrorLocal, LocalShare: 25}, `,"on_error":"local","local_share":25`},
	} {
		got, err := json.Marshal(test.limit.Spec())
		if want := `{"name":"","meter":"","algorithm":""` + test.want + "}"; err != nil || string(got) != want {
			t.Errorf("%+v becomes %s, %v; want %s", test.limit, got, err, want)
		}
	}
}
