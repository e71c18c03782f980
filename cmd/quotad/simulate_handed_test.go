package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// handedTraces is where real traces lie beside a checkout that came with them, with
// the decisions of an independent program in rational arithmetic.
const handedTraces = "../../../shared/data"

// handedScenario is one plan, and what it must make of a trace.
type handedScenario struct {
	Name     string `json:"name"`
	Trace    string `json:"trace"`
	Scenario struct {
		Weights map[string]string `json:"weights"`
		Limits  []struct {
			Name      string `json:"name"`
			Algorithm string `json:"algorithm"`
			Limit     int64  `json:"limit"`
			WindowUS  int64  `json:"window_us"`
			Capacity  int64  `json:"capacity"`
			Refill    int64  `json:"refill"`
			Rate      int64  `json:"rate"`
			PerUS     int64  `json:"per_us"`
			Burst     int64  `json:"burst"`
			Queue     int64  `json:"queue"`
		} `json:"limits"`
	} `json:"scenario"`
}

func TestSimulateEqualsTheHandedDecisions(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join(handedTraces, "expected.json"))
	if os.IsNotExist(err) {
		t.Logf("the handed traces are absent: nothing in %s was compared", handedTraces)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	var scenarios []handedScenario
	var wants []map[string]any
	if err := json.Unmarshal(data, &scenarios); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &wants); err != nil {
		t.Fatal(err)
	}
	if len(scenarios) != 14 {
		t.Errorf("%d scenarios, want 14", len(scenarios))
	}
	for i, scenario := range scenarios {
		out, err := runSimulate(t, simulateCmd{
			Config: writeTemp(t, "q.yaml", scenario.config()),
			Trace:  filepath.Join(handedTraces, scenario.Trace),
			Top:    3, JSON: true,
		})
		if err != nil {
			t.Errorf("%s: %v", scenario.Name, err)
			continue
		}
		var got map[string]any
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		want := wants[i]
		delete(got, "reasons") // says more than the scenarios do
		for _, description := range []string{"name", "trace", "scenario"} {
			delete(want, description)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: result (-want +got):\n%s", scenario.Name, diff)
		}
	}
}

// config writes the scenario as a configuration file.
func (s handedScenario) config() string {
	var b strings.Builder
	fmt.Fprintf(&b, "meters:\n  m: {unit: unit, weights: {")
	for pool, weight := range s.Scenario.Weights {
		fmt.Fprintf(&b, "%s: %q, ", pool, weight)
	}
	fmt.Fprintf(&b, "}}\nplans:\n  p:\n    limits:\n")
	for _, l := range s.Scenario.Limits {
		fmt.Fprintf(&b, "      - {name: %s, meter: m, algorithm: %s", l.Name, l.Algorithm)
		per := fmt.Sprintf("%dus", l.PerUS)
		switch l.Algorithm {
		case "token_bucket":
			fmt.Fprintf(&b, ", capacity: %d, refill: %d/%s", l.Capacity, l.Refill, per)
		case "gcra":
			fmt.Fprintf(&b, ", rate: %d/%s, burst: %d", l.Rate, per, l.Burst)
		case "leaky_bucket":
			fmt.Fprintf(&b, ", rate: %d/%s, queue: %d", l.Rate, per, l.Queue)
		default:
			fmt.Fprintf(&b, ", limit: %d, window: %dus", l.Limit, l.WindowUS)
		}
		fmt.Fprintf(&b, "}\n")
	}
	return b.String()
}
