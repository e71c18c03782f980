package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// runSimulate runs the command as main would and returns what it printed.
func runSimulate(t *testing.T, cmd simulateCmd) (stdout string, err error) {
	t.Helper()
	out, errTo := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "err")
	s := &streams{Out: createFile(t, out), Err: createFile(t, errTo)}
	err = cmd.Run(context.Background(), s)
	text, readErr := os.ReadFile(out)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(text), err
}

func createFile(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func writeTemp(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const simulateConfig = "testdata/simulate/config.yaml"

// Each row is a trace with the decisions that anyone can work out by hand.
func TestSimulateDecidesATrace(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, plan, meter, trace string
		decisions                string
		want                     map[string]any
	}{
		{
			name: "a log, and a bucket in shadow mode", plan: "basic",
			trace: `time,tenant,method
2024-05-10T12:00:00Z,acme,GET
2024-05-10T12:00:01Z,acme,GET
2024-05-10T12:00:02Z,acme,GET
2024-05-10T12:00:09.999999Z,acme,GET
2024-05-10T12:00:10Z,acme,GET
2024-05-10T19:00:10+07:00,globex,GET
2024-05-10T12:00:10Z,acme,GET
`,
			decisions: "1100110",
			want: map[string]any{
				"admitted_cost": 4.0, "denied_by": map[string]any{"recent": 3.0}, "would_deny_by": map[string]any{"burst": 1.0},
				"reasons": map[string]any{"quota_exceeded": 3.0}, "top_denied": []any{[]any{"acme", 3.0}},
			},
		},
		{
			name: "a tenant's clock never runs backwards: the queue is 1 long, not 6", plan: "shaped",
			trace: `time,tenant
2024-05-10T12:00:10Z,acme
2024-05-10T12:00:00Z,acme
2024-05-10T12:00:00Z,globex
`,
			decisions: "111",
			want: map[string]any{
				"admitted_cost": 3.0, "denied_by": map[string]any{}, "delay_ms_total": 8000.0,
				"reasons": map[string]any{}, "top_denied": []any{},
			},
		},
		{
			name: "a queue: departures every 2 s", plan: "shaped",
			trace: `time,tenant
2024-05-10T12:00:00Z,acme
2024-05-10T12:00:00Z,acme
2024-05-10T12:00:00Z,acme
2024-05-10T12:00:01Z,acme
2024-05-10T12:00:02Z,acme
`,
			decisions: "11001",
			want: map[string]any{
				"admitted_cost": 3.0, "denied_by": map[string]any{"shape": 2.0}, "delay_ms_total": 10000.0,
				"reasons": map[string]any{"quota_exceeded": 2.0}, "top_denied": []any{[]any{"acme", 2.0}},
			},
		},
		{
			name: "pools, subjects, and a meter for each row", plan: "tokens", meter: "llm.tokens",
			trace: "\ufefftenant,subject,input_tokens,output_tokens,meter,time\r\n" +
				"acme,ann,4,1,,2024-05-10T12:00:00Z\r\n" + // 4.5, rounded up: 5
				"acme,ann,,3,,2024-05-10T12:00:01Z\r\n" + // 2: 7 of ann's 6
				"acme,bob,4,2,,2024-05-10T12:00:01Z\r\n" + // 5
				"acme,eve,1,,,2024-05-10T12:00:01Z\r\n" + // 11 of everyone's 10
				"acme,eve,7,0,,2024-05-10T12:01:00Z\r\n" + // could never fit eve's 6
				"acme,,,,api.calls,2024-05-10T12:01:00Z\r\n" +
				"acme,,,,api.calls,2024-05-10T12:01:00Z\r\n" +
				"acme,\"a, b\",0,0,llm.tokens,2024-05-10T12:01:00Z\r\n",
			decisions: "10100101",
			want: map[string]any{
				"admitted_cost": 11.0, "denied_by": map[string]any{"each": 2.0, "tpm": 1.0, "calls": 1.0},
				"reasons":    map[string]any{"quota_exceeded": 3.0, "cost_exceeds_limit": 1.0},
				"top_denied": []any{[]any{"acme", 4.0}},
			},
		},
		{
			name: "days of the tenant's own zone, and UTC for strangers", plan: "daily",
			trace: `time,tenant,cost
2024-05-10T16:59:59.999999Z,acme,
2024-05-10T16:59:59.999999Z,globex,1
2024-05-10T17:00:00Z,acme,1
2024-05-10T17:00:00Z,globex,0
2024-05-10T17:00:00Z,globex,1
2024-05-11T00:00:00Z,globex,1
2024-05-11T00:00:00Z,acme,2
`,
			decisions: "1111010",
			want: map[string]any{
				"admitted_cost": 4.0, "denied_by": map[string]any{"daily": 2.0},
				"reasons":    map[string]any{"quota_exceeded": 1.0, "cost_exceeds_limit": 1.0},
				"top_denied": []any{[]any{"acme", 1.0}, []any{"globex", 1.0}},
			},
		},
		{
			name: "a meter the plan does not name", plan: "shaped", meter: "llm.tokens",
			trace:     "time,tenant\n2024-05-10T12:00:00Z,acme\n",
			decisions: "0",
			want: map[string]any{
				"admitted_cost": 0.0, "denied_by": map[string]any{}, "delay_ms_total": 0.0,
				"reasons": map[string]any{"meter_not_in_plan": 1.0}, "top_denied": []any{[]any{"acme", 1.0}},
			},
		},
		{
			name: "no rows", plan: "basic", trace: "time,tenant\n",
			want: map[string]any{
				"admitted_cost": 0.0, "denied_by": map[string]any{}, "reasons": map[string]any{}, "top_denied": []any{},
			},
		},
	} {
		sum := sha256.Sum256([]byte(row.decisions))
		row.want["decisions_sha256"] = hex.EncodeToString(sum[:])
		row.want["events"] = float64(len(row.decisions))
		row.want["allowed"] = float64(strings.Count(row.decisions, "1"))
		row.want["denied"] = float64(strings.Count(row.decisions, "0"))
		out, err := runSimulate(t, simulateCmd{
			Config: simulateConfig, Trace: writeTemp(t, "trace.csv", row.trace),
			Plan: row.plan, Meter: row.meter, Top: 3, JSON: true,
		})
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%s: %v in %s", row.name, err, out)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: result (-want +got):\n%s", row.name, diff)
		}
	}
}

func TestSimulatePrintsATable(t *testing.T) {
	t.Parallel()
	trace := writeTemp(t, "trace.csv", `time,tenant
2024-05-10T12:00:00Z,acme
2024-05-10T12:00:01Z,acme
2024-05-10T12:00:02Z,acme
2024-05-10T12:00:02Z,globex
`)
	got, err := runSimulate(t, simulateCmd{Config: simulateConfig, Trace: trace, Plan: "basic", Top: 3})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/simulate/table.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// A bad row stops with line, column and reason.
func TestSimulateNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ plan, trace, want string }{
		{"basic", "", ":1:1: must begin with a line of column names"},
		{"basic", "time,cost\n", ":1:1: tenant is a column that a trace must have"},
		{"basic", "time,tenant,time\n", ":1:13: time is there twice"},
		{"basic", "time,tenant\n12:00,acme\n", ":2:1: time must be an RFC 3339 time such as 2024-05-10T12:00:00.25Z"},
		{"basic", "time,tenant\n1969-12-31T23:59:59Z,acme\n", ":2:1: time must be 1970 or later"},
		{"basic", "time,tenant\n2024-05-10T12:00:00Z,acme\n2024-05-10T12:00:00Z,\n", ":3:22: tenant must be 1 to 256 bytes long"},
		{"basic", "time,tenant\n2024-05-10T12:00:00Z\n", ":2:1: wrong number of fields"},
		{"basic", "time,tenant\n2024-05-10T12:00:00Z,\"acme\n", `:2:28: extraneous or missing " in quoted-field`},
		{"basic", "time,tenant,cost\n2024-05-10T12:00:00Z,acme,-1\n", ":2:27: cost must be a whole number from 0 to 999999999999999"},
		{"basic", "time,tenant,cost\n2024-05-10T12:00:00Z,acme,1.5\n", ":2:27: cost must be a whole number from 0 to 999999999999999"},
		{"basic", "time,tenant,cost\n2024-05-10T12:00:00Z,acme,1000000000000000\n", ":2:27: cost must be a whole number from 0 to 999999999999999"},
		{"basic", "time,tenant,meter\n2024-05-10T12:00:00Z,acme,gpu.hours\n", ":2:27: meter must be a meter of the configuration, gpu.hours is not"},
		{"tokens", "time,tenant\n2024-05-10T12:00:00Z,acme\n", ":2:1: meter is required, or a default with --meter: the plan limits several"},
		{"tokens", "time,tenant,meter,input_tokens\n2024-05-10T12:00:00Z,acme,llm.tokens,x\n", ":2:38: input_tokens must be a whole number from 0 to 999999999999999"},
		{"tokens", "time,tenant,meter,input_tokens,cost\n2024-05-10T12:00:00Z,acme,llm.tokens,1,1\n", ":2:40: cost must be empty where the meter's pools have columns"},
		{"tokens", "time,tenant,meter,input_tokens\n2024-05-10T12:00:00Z,acme,llm.tokens,1\n", `:2:1: subject is required: limit "each" on meter "llm.tokens" counts per subject`},
	} {
		trace := writeTemp(t, "trace.csv", row.trace)
		_, err := runSimulate(t, simulateCmd{Config: simulateConfig, Trace: trace, Plan: row.plan})
		if err == nil || err.Error() != trace+row.want {
			t.Errorf("trace %q: error %v, want %s", row.trace, err, trace+row.want)
		}
	}
}

func TestSimulateChoosesWhatThereIsOnlyOneOf(t *testing.T) {
	t.Parallel()
	trace := writeTemp(t, "trace.csv", "time,tenant\n2024-05-10T12:00:00Z,acme\n")
	_, err := runSimulate(t, simulateCmd{Config: simulateConfig, Trace: trace})
	if want := "--plan must be one of basic, daily, shaped, tokens"; err == nil || err.Error() != want {
		t.Errorf("several plans: error %v, want %s", err, want)
	}
	one := writeTemp(t, "one.yaml", `
meters: {api.calls: {unit: call}}
plans: {free: {limits: [{name: daily, meter: api.calls, algorithm: fixed_window, limit: 1, window: day}]}}
`)
	if _, err := runSimulate(t, simulateCmd{Config: one, Trace: trace}); err != nil {
		t.Errorf("one plan on one meter: %v", err)
	}
	none := writeTemp(t, "none.yaml", "meters: {api.calls: {unit: call}}\n")
	if _, err := runSimulate(t, simulateCmd{Config: none, Trace: trace}); err == nil || err.Error() != none+" has no plan" {
		t.Errorf("no plan: error %v", err)
	}
}
