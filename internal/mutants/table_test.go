package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// A table that rots plants nothing: every mutant must still apply to the code, as Go, and
// its test must be there.
func TestEveryMutantApplies(t *testing.T) {
	t.Parallel()
	names := make(map[string]bool)
	for i := range table {
		m := &table[i]
		if names[m.name] || strings.Contains(m.name, "|") {
			t.Errorf("%s: the name is there twice, or is not one for a table", m.name)
		}
		names[m.name] = true
		text, err := m.apply(root)
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
			continue
		}
		if _, err := parser.ParseFile(token.NewFileSet(), m.file, text, parser.SkipObjectResolution); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		if !hasTest(t, m) {
			t.Errorf("%s: %s has no test %s", m.name, m.pkg, m.function())
		}
	}
}

func hasTest(t *testing.T, m *mutant) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "\nfunc "+m.function()+"(t *testing.T)") {
			return true
		}
	}
	return false
}

// The document lists what is planted, in the order of the table, and nothing else.
func TestTheDocumentListsEveryMutant(t *testing.T) {
	t.Parallel()
	document, err := os.ReadFile(filepath.Join(root, "docs", "reliability.md"))
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| planted | noticed by |\n|---|---|\n")
	for i := range table {
		want.WriteString("| " + table[i].name + " | `" + table[i].pkg + "` `" + table[i].test + "` |\n")
	}
	want.WriteString("\n")
	if !strings.Contains(string(document)+"\n", want.String()) {
		t.Errorf("docs/reliability.md has another table of planted bugs, want:\n%s", want.String())
	}
}
