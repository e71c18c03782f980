package tidy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A rule that finds nothing may be a rule that is broken, so each is shown a breach
// and something near it that is fine.
func TestEveryRuleSeesItsBreach(t *testing.T) {
	t.Parallel()
	const quota = "internal/quota/planted.go"
	long := strings.Repeat("\t_ = 1\n", functionLinesMax)
	planted := []struct {
		rule, path, breach, fine string
	}{
		{"file-length", quota, strings.Repeat("//\n", fileLinesMax), strings.Repeat("//\n", fileLinesMax-1)},
		{"function-length", quota, "func f() {\n" + long + "}", "func f() {\n" + long[:7*(functionLinesMax-2)] + "}"},
		{
			"function-length", "internal/quota/planted_test.go", "func f() {\n" + long + "}",
			"func f() {\n\tx := []int{\n" + strings.Repeat("\t\t1,\n", functionLinesMax) + "\t}\n}",
		},
		{"no-sleep", quota, `import "time"; func f() { time.Sleep(1) }`, `import "time"; func f() { time.NewTimer(1) }`},
		{"no-sleep", "internal/quota/planted_test.go", `import clock "time"; var wait = clock.Sleep`, `var x = time.Sleep`},
		{"no-fresh-context", quota, `import "context"; func f() { context.TODO() }`, `import "context"; func f(context.Context) {}`},
		{"no-exit", quota, `import "os"; func f() { os.Exit(1) }`, `import "os"; func f() { os.Getpid() }`},
		{"no-exit", quota, `import "log"; func f() { log.Fatalf("x") }`, `import "log"; func f() { log.Print("x") }`},
		{"no-clock", quota, `import "time"; func f() { time.Since(start) }`, `import "time"; func f() { time.Unix(0, 0) }`},
		{"no-float", quota, `func f(x float64) {}`, `func f(x int64) {}`},
		{"no-float", quota, `const x = 0.5`, `const x = "0.5"`},
		{"no-globals", quota, `var cache = map[string]int{}; func f() { cache["x"] = 1 }`, `var table = map[string]int{"x": 1}`},
		{"no-globals", quota, `var once sync.Once`, `var errGone = errors.New("gone")`},
		{"no-globals", quota, `var log = slog.Default()`, `var _ fmt.Stringer = (*T)(nil)`},
		{"no-globals", quota, `var n = 0; func f() { n++ }`, `const n = 0`},
		{"no-globals", quota, `var server = start()`, `var fields = []field{text("x"), text("y")}`},
		{"no-init", quota, `func init() {}`, `func (T) init() {}`},
		{"no-dot-import", quota, `import . "fmt"`, `import _ "embed"`},
		{"no-skip", "internal/quota/planted_test.go", `func f(t T) { t.Skip("later") }`, `func f(s S) { s.Skip("line") }`},
		{"secret-compare", quota, `func f(t T) bool { return t.Secret == sent }`, `func f(t T) bool { return t.Secret == "" }`},
		{"secret-compare", quota, `import "bytes"; var ok = func() bool { return bytes.Equal(stored.secretHash, sent) }`, `import "bytes"; func f() { bytes.Equal(hash, sent) }`},
		{"secret-compare", quota, `func f() bool { return sent != secretHash }`, `func f() { subtle.ConstantTimeCompare(secretHash, sent) }`},
		{"import-groups", quota, "import (\n\"fmt\"\n\"github.com/x/y\"\n)", "import (\n\"fmt\"\n\n\"github.com/x/y\"\n)"},
		{"import-groups", quota, "import (\n\"" + module + "/x\"\n\n\"fmt\"\n)", "import (\n\"fmt\"\n\n\"" + module + "/x\"\n)"},
		{"doc-comment", quota, `func F() {}`, "// F is.\nfunc F() {}"},
		{"doc-comment", quota, `type T int`, "// Days.\nconst (\n\tMonday = 1\n)"},
		{"no-todo", quota, "// TODO: later\nvar x = 1", "// Later it is done.\nvar x = 1"},
	}
	seen := map[string]bool{}
	for i, p := range planted {
		seen[p.rule] = true
		check := goRules[slices.IndexFunc(goRules, func(r rule) bool { return r.name == p.rule })].check
		if got := check(parse(t, p.path, "package planted\n"+p.breach)); len(got) != 1 {
			t.Errorf("%d: %s found %v in its breach, want one:\n%s", i, p.rule, got, p.breach)
		}
		if got := check(parse(t, p.path, "package planted\n"+p.fine)); len(got) != 0 {
			t.Errorf("%d: %s found %v in what is fine:\n%s", i, p.rule, got, p.fine)
		}
	}
	for _, r := range goRules {
		if !seen[r.name] {
			t.Errorf("no breach is planted for %s", r.name)
		}
	}
}

func TestMachinePathsAreSeen(t *testing.T) {
	t.Parallel()
	for _, base := range []string{"work", "root", "home", "Users"} {
		text := fmt.Sprintf("see /%s/someone/notes", base)
		if got := machinePaths(&file{text: text}); len(got) != 1 {
			t.Errorf("machinePaths(%q) = %v, want one", text, got)
		}
	}
	if got := machinePaths(&file{text: "a.com/work and /var/lib/quotad"}); got != nil {
		t.Errorf("machinePaths found %v in what is fine", got)
	}
}
