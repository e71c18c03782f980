package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// small is a module with a test for one of its two functions.
var small = map[string]string{
	"go.mod": "module small\n\ngo 1.21\n",
	"p/p.go": "package p\n\nfunc add(x, y int) int { return x + y }\n\nfunc sub(x, y int) int { return x - y }\n",
	"p/p_test.go": `package p

import "testing"

func TestAdd(t *testing.T) {
	t.Run("small", func(t *testing.T) {
		if add(1, 2) != 3 {
			t.Error("add(1, 2) is not 3")
		}
	})
}

func TestSub(t *testing.T) { sub(2, 1) }
`,
}

func write(t *testing.T, files map[string]string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Nothing but the failure of a mutant's own test is a kill.
func TestOnlyAFailureOfItsTestKillsAMutant(t *testing.T) {
	t.Parallel()
	var progress bytes.Buffer
	h := newHunt(3*time.Second, &progress)
	h.root = write(t, small)
	want := map[outcome]mutant{
		killed:        {old: "x + y", new: "x - y", test: "TestAdd/small"},
		survived:      {old: "x - y", new: "x + y", test: "TestSub"},
		notApplicable: {old: "x * y", new: "x", test: "TestAdd"},
		notCompiled:   {old: "x + y", new: "x + z", test: "TestAdd"},
		outOfTime:     {old: "return x + y", new: "for { x += y }", test: "TestAdd/small"},
		otherFailure:  {old: "return x - y", new: "go panic(x); select {}", test: "TestSub"},
	}
	var mutants []mutant
	for what, m := range want {
		m.name, m.file, m.pkg = string(what), "p/p.go", "p"
		mutants = append(mutants, m)
	}
	results, err := h.all(t.Context(), mutants)
	if err != nil {
		t.Fatal(err)
	}
	for i := range results {
		if r := &results[i]; string(r.outcome) != r.name {
			t.Errorf("a mutant is called %q, want %q:\n%s", r.outcome, r.name, r.detail)
		}
	}
	var out bytes.Buffer
	if report(&out, results) || !strings.Contains(out.String(), "1 of 6 killed") {
		t.Errorf("the report is a success, or does not count the killed one:\n%s", &out)
	}
	kills := results[:0]
	for i := range results {
		if results[i].outcome == killed {
			kills = append(kills, results[i])
		}
	}
	if !report(&out, kills) || report(&out, nil) {
		t.Error("a report of kills alone is no success, or one of nothing is")
	}
	after, err := os.ReadFile(filepath.Join(h.root, "p", "p.go"))
	if diff := cmp.Diff(small["p/p.go"], string(after)); err != nil || diff != "" {
		t.Errorf("the tree has changed (%v):\n%s", err, diff)
	}
}

// A test that fails anyway, or is not there, would kill every mutant, or none.
func TestTestsMustPassWithoutAMutant(t *testing.T) {
	t.Parallel()
	failing := map[string]string{"p/f_test.go": "package p\n\nimport \"testing\"\n\nfunc TestFails(t *testing.T) { t.Error(\"as ever\") }\n"}
	for name, text := range small {
		failing[name] = text
	}
	for test, want := range map[string]string{"TestFails": "FAIL: TestFails", "TestGone": "has no test TestGone", "TestAdd/large": "has no test"} {
		h := newHunt(time.Minute, new(bytes.Buffer))
		h.root = write(t, failing)
		_, err := h.all(t.Context(), []mutant{{name: "any", file: "p/p.go", old: "x + y", new: "x - y", pkg: "p", test: test}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: the error is %v, want one with %q", test, err, want)
		}
	}
}

func TestMutantsAreSelectedByNameFileOrTest(t *testing.T) {
	t.Parallel()
	all := []mutant{{name: "a lock", file: "x.go", test: "TestX"}, {name: "a key", file: "y.go", test: "TestY"}}
	for pattern, want := range map[string]int{"": 2, "lock": 1, `y\.go`: 1, "TestX|key": 2, "none": 0} {
		if got := selected(all, regexp.MustCompile(pattern)); len(got) != want {
			t.Errorf("%q selects %d, want %d", pattern, len(got), want)
		}
	}
	m := mutant{test: "TestX/a.b/c"}
	if got := m.pattern(); got != `^TestX$/^a\.b$/^c$` {
		t.Errorf("the pattern of %s is %s", m.test, got)
	}
}

func TestTheCommandSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		argument string
		code     int
	}{{"--help", 0}, {"--run=(", 2}, {"--nothing", 2}} {
		var out bytes.Buffer
		if code := run(t.Context(), []string{tt.argument}, &out, &out); code != tt.code || out.Len() == 0 {
			t.Errorf("%s: exit code %d, want %d:\n%s", tt.argument, code, tt.code, &out)
		}
	}
}
