package catalog_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

var update = flag.Bool("update", false, "rewrite the golden files from what the code says")

// Each file's golden is its faults, or else what it means: the canonical specs.
func TestFilesSayWhatTheirGoldensSay(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/config/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got := meaning(t, data, filepath.Base(file))
		golden := strings.TrimSuffix(file, ".yaml") + ".golden"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func meaning(t *testing.T, data []byte, name string) string {
	t.Helper()
	config, err := catalog.ParseFile(data, name)
	if err != nil {
		return err.Error() + "\n"
	}
	text, err := json.MarshalIndent(canonical(t, config), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "\n"
}

// canonical is a configuration with every spec in its one form.
func canonical(t testing.TB, config *catalog.Config) *catalog.Config {
	t.Helper()
	snapshot, tenants, err := config.Compile()
	if err != nil {
		t.Fatalf("Compile: %v", err)
	}
	out := &catalog.Config{
		Meters: map[string]catalog.MeterSpec{}, Plans: map[string]catalog.PlanSpec{}, Tenants: map[string]catalog.TenantSpec{},
	}
	for _, m := range snapshot.Meters() {
		out.Meters[m.Name] = m.Spec()
	}
	for _, p := range snapshot.Plans() {
		out.Plans[p.Name] = p.Spec()
	}
	for _, tenant := range tenants {
		out.Tenants[tenant.Name] = tenant.Spec()
	}
	return out
}

func TestFileThatIsNotPlainYAMLIsRefusedWithItsLine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{"", "f: is empty"},
		{"# nothing\n", "f: is empty"},
		{"{}", "f:1:1: must name at least one meter, plan or tenant"},
		{"meters:\nplans: {}\n", "f:1:1: must name at least one meter, plan or tenant"},
		{"text", "f:1:1: must be a map of fields"},
		{"- a", "f:1:1: must be a map of fields"},
		{"meters: {a: [}", "f:1:14: cannot be read as YAML: "},
		{"meters:\n\ta: b", "f:2:1: cannot be read as YAML: "},
		{"a: b: c", "f:1:4: cannot be read as YAML: "},
		{"meters: &m {a: {unit: b}}", "f:1:9: & is not supported here"},
		{"meters: *m", "f:1:9: * is not supported here"},
		{"meters: {<<: {a: b}}", "f:1:10: << is not supported here"},
		{"meters: !!map {a: {unit: b}}", "f:1:9: !!map is not supported here"},
		{"? a\n: b", "f:1:1: ? is not supported here"},
		{"meters: {a: {unit: b}}\n---\nplans: {}", "f:3:6: must be one document, not several"},
		{"---\nmeters: {a: {unit: b}}\n---\nplans: {}", "f:4:6: must be one document, not several"},
		{"meters: {a: {unit: \xff}}", "f: must be valid UTF-8"},
		{strings.Repeat("[", 1000), "f:1:17: must nest at most 16 deep"},
		{strings.Repeat("- ", 1000), "f:1:33: must nest at most 16 deep"},
		{strings.Repeat(" ", catalog.FileBytesMax+1), "f: must be at most 1048576 bytes long"},
		{"a:\n" + strings.Repeat(" b: c\n", 100_000), "f:11002:2: must hold at most 11000 lines in one block"},
		{"a: {" + strings.Repeat("b: c,", 100_001) + "}", "f:1:500001: must hold at most 100000 values"},
	} {
		_, err := catalog.ParseFile([]byte(test.text), "f")
		if err == nil || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("ParseFile(%.40q) = %v, want one fault %q", test.text, err, test.want)
		}
	}
}

func TestJSONIsAFileToo(t *testing.T) {
	t.Parallel()
	config, err := catalog.ParseFile([]byte("\ufeff{\n\t\"meters\": {\r\n\t\t\"a\": {\"unit\": \"x\"}\n\t}\n}\n"), "f.json")
	if err != nil || config.Meters["a"].Unit != "x" {
		t.Errorf("ParseFile = %+v, %v", config, err)
	}
}

func TestFaultsOfOneErrorAreBounded(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("meters:\n")
	for i := range 500 {
		fmt.Fprintf(&text, "  m%d: {}\n", i)
	}
	_, err := catalog.ParseFile([]byte(text.String()), "f")
	if n := len(catalog.Faults(err)); n != 100 || !strings.HasSuffix(err.Error(), "\nand 400 more faults") {
		t.Errorf("ParseFile lists %d faults, want 100 and a line about 400 more", n)
	}
}

func TestBoundsOfAFile(t *testing.T) {
	t.Parallel()
	limit := func(i int, meter string) catalog.LimitSpec {
		zero := int64(0)
		return catalog.LimitSpec{Name: fmt.Sprintf("l%d", i), Meter: meter, Algorithm: catalog.SlidingLog, Limit: &zero, Window: "1h"}
	}
	var many, onOne catalog.PlanSpec
	for i := range catalog.LimitsMax + 1 {
		many.Limits = append(many.Limits, limit(i, fmt.Sprintf("m%d", i)))
	}
	for i := range catalog.LimitsPerMeterMax + 2 {
		onOne.Limits = append(onOne.Limits, limit(i, "m"))
	}
	weights := map[string]catalog.WeightText{}
	for i := range catalog.PoolsMax + 1 {
		weights[fmt.Sprintf("p%d", i)] = "1"
	}
	tenants := map[string]catalog.TenantSpec{}
	for i := range catalog.TenantsMax + 1 {
		tenants[fmt.Sprintf("t%d", i)] = catalog.TenantSpec{Plan: "p"}
	}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"limits":           {many.Validate(), "limits: must hold at most 64, not 65"},
		"limits per meter": {onOne.Validate(), "limits[16].meter: a plan must have at most 16 limits on one meter"},
		"pools":            {catalog.MeterSpec{Unit: "x", Weights: weights}.Validate(), "weights: must hold at most 16, not 17"},
		"tenants":          {(&catalog.Config{Tenants: tenants}).Validate(), "tenants: must hold at most 10000, not 10001"},
	} {
		if test.err == nil || test.err.Error() != test.want {
			t.Errorf("%s: Validate = %v, want %s", name, test.err, test.want)
		}
	}
}
