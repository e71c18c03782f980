package tidy

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// constructors make values that nothing changes afterwards, so a package-level
// variable may hold what they return.
var constructors = []string{
	"errors.New", "fmt.Errorf", "regexp.MustCompile", "template.Must", "strings.NewReplacer",
	"big.NewInt", "sha256.Sum256", "netip.MustParsePrefix", "uuid.MustParse", "time.Date",
	"time.FixedZone", "reflect.TypeFor", "language.NewMatcher", "template.New",
}

// noGlobals allows package-level variables that are constants but for Go's syntax:
// made in place, by a literal or a constructor from the list, and never written in
// their file.
func noGlobals(f *file) (found []finding) {
	if f.isTest() {
		return nil
	}
	for _, decl := range f.syntax.Decls {
		variables, ok := decl.(*ast.GenDecl)
		if !ok || variables.Tok != token.VAR {
			continue
		}
		embedded := strings.Contains(docText(f, variables), "go:embed")
		for _, spec := range variables.Specs {
			value := spec.(*ast.ValueSpec)
			for i, name := range value.Names {
				switch {
				case name.Name == "_": // an assertion that a type implements an interface
				case embedded && len(value.Values) == 0:
				case i >= len(value.Values) || !constant(value.Values[i]):
					found = append(found, f.at(name, name.Name, "package-level "+name.Name+" may change: wire it where it is used"))
				case f.writes(name.Name):
					found = append(found, f.at(name, name.Name, "package-level "+name.Name+" is written"))
				}
			}
		}
	}
	return found
}

// docText is the text just above a declaration, directives included.
func docText(f *file, decl *ast.GenDecl) string {
	if decl.Doc == nil {
		return ""
	}
	var text strings.Builder
	for _, comment := range decl.Doc.List {
		text.WriteString(comment.Text)
	}
	return text.String()
}

// constant reports whether an expression makes a value that is only read later.
func constant(expr ast.Expr) bool {
	switch e := expr.(type) {
	case *ast.BasicLit, *ast.Ident, *ast.SelectorExpr, *ast.FuncLit:
		return true
	case *ast.CompositeLit:
		return !slices.ContainsFunc(e.Elts, func(element ast.Expr) bool {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				element = pair.Value
			}
			return !constant(element) && !row(element)
		})
	case *ast.ParenExpr:
		return constant(e.X)
	case *ast.UnaryExpr:
		_, literal := e.X.(*ast.CompositeLit)
		return e.Op != token.AND && constant(e.X) || e.Op == token.AND && literal && constant(e.X)
	case *ast.BinaryExpr:
		return constant(e.X) && constant(e.Y)
	case *ast.CallExpr:
		switch e.Fun.(type) {
		case *ast.ArrayType, *ast.FuncLit: // []byte("text"); a table that a loop makes
			return true
		}
		return slices.Contains(constructors, types.ExprString(e.Fun))
	}
	return false
}

// row reports whether an element of a table is made by a function of its package.
func row(element ast.Expr) bool {
	call, ok := element.(*ast.CallExpr)
	if !ok {
		return false
	}
	_, local := call.Fun.(*ast.Ident)
	return local
}

// writes reports whether the file assigns to a name, its elements or its fields. A
// local variable of the same name counts as well: it should have another one.
func (f *file) writes(name string) bool {
	written := false
	base := func(expr ast.Expr) bool {
		for {
			switch e := expr.(type) {
			case *ast.IndexExpr:
				expr = e.X
			case *ast.SelectorExpr:
				expr = e.X
			case *ast.Ident:
				return e.Name == name
			default:
				return false
			}
		}
	}
	ast.Inspect(f.syntax, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.AssignStmt:
			written = written || (n.Tok != token.DEFINE && slices.ContainsFunc(n.Lhs, base))
		case *ast.IncDecStmt:
			written = written || base(n.X)
		case *ast.CallExpr:
			if function, ok := n.Fun.(*ast.Ident); ok && slices.Contains([]string{"delete", "clear", "copy"}, function.Name) {
				written = written || base(n.Args[0])
			}
		}
		return true
	})
	return written
}

// docComment wants a comment on everything exported. A comment on a group speaks for
// its members, and a type for the constants that are its values.
func docComment(f *file) (found []finding) {
	if f.isTest() {
		return nil
	}
	missing := func(node ast.Node, name string) {
		found = append(found, f.at(node, name, name+" is exported and has no doc comment"))
	}
	for _, decl := range f.syntax.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) {
				missing(d, d.Name.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
						missing(s, s.Name.Name)
					}
				case *ast.ValueSpec:
					typed := d.Tok == token.CONST && d.Specs[0].(*ast.ValueSpec).Type != nil
					if s.Names[0].IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil && !typed {
						missing(s, s.Names[0].Name)
					}
				}
			}
		}
	}
	return found
}

// exportedReceiver reports whether a function is one that other packages can name.
func exportedReceiver(function *ast.FuncDecl) bool {
	if function.Recv == nil {
		return true
	}
	receiver := function.Recv.List[0].Type
	if pointer, ok := receiver.(*ast.StarExpr); ok {
		receiver = pointer.X
	}
	if generic, ok := receiver.(*ast.IndexExpr); ok {
		receiver = generic.X
	}
	name, ok := receiver.(*ast.Ident)
	return ok && name.IsExported()
}
