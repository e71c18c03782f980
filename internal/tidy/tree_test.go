package tidy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// root is the module's directory, seen from this package.
const root = "../.."

// textBytesMax keeps data files out of the rules about text.
const textBytesMax = 1 << 20

// file is one file of the tree; syntax is nil unless it is Go.
type file struct {
	path   string // from the module's root, with slashes
	text   string
	fset   *token.FileSet
	syntax *ast.File
}

// finding is one breach of a rule. Symbol names what broke it, for exceptions that
// are about one thing in a file.
type finding struct {
	line   int
	symbol string
	what   string
}

func (f *file) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// dir is the file's directory from the module's root: its package.
func (f *file) dir() string { return path.Dir(f.path) }

func (f *file) line(p token.Pos) int { return f.fset.Position(p).Line }

// at makes a finding about node.
func (f *file) at(node ast.Node, symbol, what string) finding {
	return finding{line: f.line(node.Pos()), symbol: symbol, what: what}
}

func parse(t *testing.T, name, text string) *file {
	t.Helper()
	f := &file{path: name, text: text, fset: token.NewFileSet()}
	if path.Ext(name) == ".go" {
		syntax, err := parser.ParseFile(f.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatalf("parse: %v", err)
		}
		f.syntax = syntax
	}
	return f
}

// tree reads every text file of the module.
func tree(t *testing.T) []*file {
	t.Helper()
	var files []*file
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case ".git", "testdata", "bin", ".cache":
				return fs.SkipDir
			}
			return nil
		}
		if entry.Name() == ".git" {
			return nil // of a worktree: a file that says where the repository is
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() || info.Size() > textBytesMax {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if strings.ContainsRune(string(text), 0) {
			return nil // not text
		}
		files = append(files, parse(t, filepath.ToSlash(relative), string(text)))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// importName returns the name under which the file imports a package, "" if it does not.
func (f *file) importName(importPath string) string {
	for _, spec := range f.syntax.Imports {
		if strings.Trim(spec.Path.Value, `"`) != importPath {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(importPath)
	}
	return ""
}

// uses returns every use of a function of an imported package, called or not: a
// stored time.Sleep sleeps too.
func (f *file) uses(importPath string, names ...string) []*ast.SelectorExpr {
	local := f.importName(importPath)
	if local == "" {
		return nil
	}
	var found []*ast.SelectorExpr
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		selector, ok := node.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := selector.X.(*ast.Ident); ok && x.Name == local {
			for _, name := range names {
				if selector.Sel.Name == name {
					found = append(found, selector)
				}
			}
		}
		return true
	})
	return found
}
