package tidy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// machinePath is a path that exists on one machine only. It is put together so that
// this file does not break its own rule.
var machinePath = regexp.MustCompile(strings.Join([]string{"/work", "/root", "/home", "/Users"}, `/[a-z]|`) + `/[a-z]`)

func TestHouseRules(t *testing.T) {
	t.Parallel()
	files := tree(t)
	used := make([]bool, len(exceptions))
	report := func(rule string, f *file, findings []finding) {
		for _, found := range findings {
			if i := excepted(rule, f.path, found.symbol); i >= 0 {
				used[i] = true
				continue
			}
			t.Errorf("%s:%d: %s: %s", f.path, found.line, rule, found.what)
		}
	}
	goFiles := 0
	for _, f := range files {
		report("machine-paths", f, machinePaths(f))
		if f.syntax == nil {
			continue
		}
		goFiles++
		for _, r := range goRules {
			report(r.name, f, r.check(f))
		}
	}
	if goFiles < 10 {
		t.Fatalf("only %d Go files were found under %s", goFiles, root)
	}
	for i, e := range exceptions {
		if !used[i] {
			t.Errorf("the exception from %s in %s for %s is not needed any more", e.rule, e.path, e.symbol)
		}
	}
}

// excepted returns the index of the exception that covers a finding, -1 if none does.
func excepted(rule, path, symbol string) int {
	return slices.IndexFunc(exceptions, func(e exception) bool {
		return e.rule == rule && e.path == path && (e.symbol == "" || e.symbol == symbol)
	})
}

func machinePaths(f *file) (found []finding) {
	for i, line := range strings.Split(f.text, "\n") {
		if path := machinePath.FindString(line); path != "" {
			found = append(found, finding{
				line: i + 1, symbol: path,
				what: fmt.Sprintf("%s… is a path of one machine", path),
			})
		}
	}
	return found
}

func TestEveryPackageSaysWhatItGuarantees(t *testing.T) {
	t.Parallel()
	documented := map[string]bool{}
	for _, f := range tree(t) {
		if f.syntax != nil && !f.isTest() {
			documented[f.dir()] = documented[f.dir()] || f.syntax.Doc != nil
		}
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", dir)
		}
	}
}

func TestEveryExceptionHasAReason(t *testing.T) {
	t.Parallel()
	for _, e := range exceptions {
		if len(e.reason) < 20 {
			t.Errorf("the exception from %s in %s needs a reason, has %q", e.rule, e.path, e.reason)
		}
	}
}
