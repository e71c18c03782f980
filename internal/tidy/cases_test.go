package tidy

import (
	"go/ast"
	"path"
	"regexp"
	"strings"
	"testing"
)

// casesDeferred is the section whose rows have no test yet.
const casesDeferred = "## With the feature they belong to"

// rowsMin are the documents that map what may go wrong to tests, and how many rows each
// has at least.
var rowsMin = map[string]int{"docs/cases.md": 50, "docs/security.md": 25}

// citedTest is a test as a document names it: its package and itself.
var citedTest = regexp.MustCompile("`([a-z]+)\\.((?:Test|Fuzz)[A-Za-z0-9]+)`")

// A map of faults to tests is worth nothing once a test has another name.
func TestEveryCaseHasItsTest(t *testing.T) {
	t.Parallel()
	have := map[string]bool{}
	maps := map[string]string{}
	for _, f := range tree(t) {
		if rowsMin[f.path] > 0 {
			maps[f.path] = f.text
		}
		if f.syntax == nil || !f.isTest() {
			continue
		}
		for _, decl := range f.syntax.Decls {
			if function, ok := decl.(*ast.FuncDecl); ok && function.Recv == nil {
				have[path.Base(f.dir())+"."+function.Name.Name] = true
			}
		}
	}
	for document, min := range rowsMin {
		rows, breaches := casesBreaches(maps[document], have)
		for _, breach := range breaches {
			t.Errorf("%s: %s", document, breach)
		}
		if rows < min {
			t.Errorf("%s has %d rows, want %d at least", document, rows, min)
		}
	}
}

// casesBreaches counts the rows of the map, and says which of them name no test, or one
// that is not there.
func casesBreaches(text string, have map[string]bool) (rows int, breaches []string) {
	mapped, _, _ := strings.Cut(text, casesDeferred)
	for _, line := range strings.Split(mapped, "\n") {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| reports |") || strings.HasPrefix(line, "| attack |") {
			continue
		}
		rows++
		cited := citedTest.FindAllStringSubmatch(line, -1)
		if len(cited) == 0 {
			breaches = append(breaches, "a row names no test: "+line)
		}
		for _, c := range cited {
			if name := c[1] + "." + c[2]; !have[name] {
				breaches = append(breaches, "there is no test "+name)
			}
		}
	}
	return rows, breaches
}

func TestBreachesOfTheCasesAreSeen(t *testing.T) {
	t.Parallel()
	const text = "| reports | tests |\n|---|---|\n" +
		"| a/b#1 | `api.TestOne`, `api.TestGone` (processes) |\n" +
		"| a/b#2 | none |\n" +
		"| a/b#3 | `api.TestOne` |\n" +
		casesDeferred + "\n| a/b#4 | holds |\n"
	rows, got := casesBreaches(text, map[string]bool{"api.TestOne": true})
	if rows != 3 || len(got) != 2 || !strings.Contains(got[0], "api.TestGone") || !strings.Contains(got[1], "a/b#2") {
		t.Errorf("casesBreaches: %d rows and %q, want 3 rows, a test that is gone and a row without", rows, got)
	}
}
