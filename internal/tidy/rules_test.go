package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

const (
	fileLinesMax     = 499
	functionLinesMax = 69
)

// rule looks at one Go file at a time.
type rule struct {
	name  string
	check func(*file) []finding
}

// goRules are the rules about Go files; the tables of exceptions name them.
var goRules = []rule{
	{"file-length", fileLength},
	{"function-length", functionLength},
	{"no-sleep", noSleep},
	{"no-fresh-context", noFreshContext},
	{"no-exit", noExit},
	{"no-clock", noClock},
	{"no-float", noFloat},
	{"no-globals", noGlobals},
	{"no-init", noInit},
	{"no-dot-import", noDotImport},
	{"no-skip", noSkip},
	{"secret-compare", secretCompare},
	{"import-groups", importGroups},
	{"doc-comment", docComment},
	{"no-todo", noTodo},
}

func fileLength(f *file) []finding {
	lines := strings.Count(f.text, "\n")
	if lines <= fileLinesMax {
		return nil
	}
	return []finding{{line: lines, what: fmt.Sprintf("file has %d lines, at most %d", lines, fileLinesMax)}}
}

// functionLength does not count the rows of a table in a test: splitting them would
// make nothing easier to read.
func functionLength(f *file) (found []finding) {
	for _, decl := range f.syntax.Decls {
		function, ok := decl.(*ast.FuncDecl)
		if !ok {
			continue
		}
		lines := f.line(function.End()) - f.line(function.Pos()) + 1
		if f.isTest() {
			lines -= f.tableLines(function)
		}
		if lines > functionLinesMax {
			found = append(found, f.at(function, function.Name.Name,
				fmt.Sprintf("%s has %d lines, at most %d", function.Name.Name, lines, functionLinesMax)))
		}
	}
	return found
}

// tableLines is how many lines the outermost literals in a function take, less one each.
func (f *file) tableLines(function *ast.FuncDecl) (lines int) {
	ast.Inspect(function, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if ok {
			lines += f.line(literal.End()) - f.line(literal.Pos())
		}
		return !ok
	})
	return lines
}

func noSleep(f *file) []finding {
	return f.banned("wait for a signal, a timer in a select, or a fake clock", "time", "Sleep")
}

func noFreshContext(f *file) []finding {
	if f.isTest() || strings.HasPrefix(f.path, "cmd/") {
		return nil
	}
	return f.banned("take the caller's context", "context", "Background", "TODO")
}

func noExit(f *file) []finding {
	found := f.banned("return an error; main exits", "os", "Exit")
	return append(found, f.banned("return an error; main exits", "log",
		"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln")...)
}

// noClock keeps decisions on the database's time, which arrives as an argument.
func noClock(f *file) []finding {
	if f.isTest() || !aboutAmounts(f) {
		return nil
	}
	return f.banned("time arrives as an argument", "time", "Now", "Since", "Until")
}

func noFloat(f *file) (found []finding) {
	if f.isTest() || !aboutAmounts(f) {
		return nil
	}
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.Ident:
			if n.Name == "float64" || n.Name == "float32" {
				found = append(found, f.at(n, n.Name, n.Name+": amounts are integers"))
			}
		case *ast.BasicLit:
			if n.Kind == token.FLOAT {
				found = append(found, f.at(n, n.Value, n.Value+": amounts are integers"))
			}
		}
		return true
	})
	return found
}

// aboutAmounts reports whether the file is of a package that decides, counts money, or
// says when either begins.
func aboutAmounts(f *file) bool {
	return slices.Contains([]string{"internal/quota", "internal/ledger", "internal/billing", "internal/calendar"}, f.dir())
}

func noInit(f *file) (found []finding) {
	for _, decl := range f.syntax.Decls {
		if function, ok := decl.(*ast.FuncDecl); ok && function.Recv == nil && function.Name.Name == "init" {
			found = append(found, f.at(function, "init", "init runs unseen: wire it where it is used"))
		}
	}
	return found
}

func noDotImport(f *file) (found []finding) {
	for _, spec := range f.syntax.Imports {
		if spec.Name != nil && spec.Name.Name == "." {
			found = append(found, f.at(spec, spec.Path.Value, "dot import of "+spec.Path.Value))
		}
	}
	return found
}

// noSkip looks at the method's name alone: a test that skips in silence proves
// nothing, whatever it calls its T.
func noSkip(f *file) (found []finding) {
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		call, ok := node.(*ast.CallExpr)
		if !ok {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, selector.Sel.Name) {
			return true
		}
		if x, ok := selector.X.(*ast.Ident); ok && slices.Contains([]string{"t", "b", "f", "tb"}, x.Name) {
			found = append(found, f.at(call, selector.Sel.Name, "a skipped test proves nothing"))
		}
		return true
	})
	return found
}

// importGroups wants the standard library, then others, then ours, with a blank line
// between two groups.
func importGroups(f *file) (found []finding) {
	group := func(spec *ast.ImportSpec) int {
		importPath := strings.Trim(spec.Path.Value, `"`)
		first, _, _ := strings.Cut(importPath, "/")
		switch {
		case importPath == module || strings.HasPrefix(importPath, module+"/"):
			return 2
		case strings.Contains(first, "."):
			return 1
		default:
			return 0
		}
	}
	for _, decl := range f.syntax.Decls {
		imports, ok := decl.(*ast.GenDecl)
		if !ok || imports.Tok != token.IMPORT {
			continue
		}
		for i := 1; i < len(imports.Specs); i++ {
			before, spec := imports.Specs[i-1].(*ast.ImportSpec), imports.Specs[i].(*ast.ImportSpec)
			start := spec.Pos()
			if spec.Doc != nil {
				start = spec.Doc.Pos()
			}
			apart := f.line(start)-f.line(before.End()) > 1
			if group(before) > group(spec) || (group(before) < group(spec)) != apart {
				found = append(found, f.at(spec, spec.Path.Value,
					"imports come in three groups: the standard library, others, ours"))
			}
		}
	}
	return found
}

var todo = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)

func noTodo(f *file) (found []finding) {
	for _, group := range f.syntax.Comments {
		if word := todo.FindString(group.Text()); word != "" {
			found = append(found, f.at(group, word, word+" does not land"))
		}
	}
	return found
}

// banned makes findings of every use of the named functions.
func (f *file) banned(instead, importPath string, names ...string) (found []finding) {
	for _, use := range f.uses(importPath, names...) {
		call := importPath + "." + use.Sel.Name
		found = append(found, f.at(use, call, call+": "+instead))
	}
	return found
}

// secretPattern is how what must not be guessed, and its hash, are called.
var secretPattern = regexp.MustCompile(`(?i)secret`)

// secretCompare keeps secrets and their hashes out of comparisons that end at the first
// byte that differs, which tell how much of a guess was right. An empty one is no guess.
func secretCompare(f *file) (found []finding) {
	if f.isTest() {
		return nil
	}
	secret := func(expr ast.Expr) bool {
		switch e := expr.(type) {
		case *ast.Ident:
			return secretPattern.MatchString(e.Name)
		case *ast.SelectorExpr:
			return secretPattern.MatchString(e.Sel.Name)
		}
		return false
	}
	empty := func(expr ast.Expr) bool {
		literal, ok := expr.(*ast.BasicLit)
		return ok && literal.Value == `""`
	}
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		var compared []ast.Expr
		switch n := node.(type) {
		case *ast.BinaryExpr:
			if n.Op == token.EQL || n.Op == token.NEQ {
				compared = []ast.Expr{n.X, n.Y}
			}
		case *ast.CallExpr:
			called, ok := n.Fun.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Equal", "Compare", "HasPrefix", "EqualFold"}, called.Sel.Name) {
				compared = n.Args
			}
		}
		if slices.ContainsFunc(compared, secret) && !slices.ContainsFunc(compared, empty) {
			found = append(found, f.at(node, "compare", "compare secrets with subtle.ConstantTimeCompare"))
		}
		return true
	})
	return found
}
