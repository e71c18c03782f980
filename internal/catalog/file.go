package catalog

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// FileBytesMax bounds a configuration file: ten thousand tenants fit.
const FileBytesMax = 1 << 20

// The parser's time grows with the square of depth and of the lines in a block, so a
// file could take minutes. The format needs a depth of 4, and ten thousand tenants
// are fifty thousand values.
const (
	nestingMax    = 16
	valuesMax     = 100_000
	blockLinesMax = TenantsMax + 1_000 // a few tenants too many get the better fault
)

// ParseFile reads a configuration from YAML, of which JSON is a part. name is the
// file's name in errors. An error lists every [Fault] with its line; if the text
// cannot be read as YAML at all, that is the only one.
//
// The file is plain data: anchors, aliases, tags and merge keys are refused, so that
// what a reviewer sees is what is applied.
func ParseFile(data []byte, name string) (*Config, error) {
	root, fault := parseTree(data)
	if fault != nil {
		fault.File = name
		return nil, errors.Join(*fault)
	}
	config := &Config{source: source{file: name, positions: map[string]position{}}}
	d := decoder{positions: config.source.positions}
	d.decodeInto(config, root)

	// A field that could not be read is missing now; that it is missing is no news.
	unread := make(map[string]bool, len(d.faults.faults))
	for _, f := range d.faults.faults {
		unread[f.Path] = true
	}
	var faults faultList
	config.compile(&faults)
	d.faults.faults = append(d.faults.faults, without(faults.faults, unread)...)
	if err := config.source.locate(d.faults); err != nil {
		return nil, err
	}
	return config, nil
}

// A source is where a configuration was read from; zero if it is from no file.
type source struct {
	file      string
	positions map[string]position // by field path
}

type position struct{ line, column int }

// of returns where path stands, or else where the nearest thing around it does.
func (s source) of(path string) position {
	for {
		if p, ok := s.positions[path]; ok || path == "" {
			return p
		}
		path = parentPath(path)
	}
}

// locate gives each fault its place in the file and returns them as one error, in
// the order they stand in.
func (s source) locate(l faultList) error {
	if s.file == "" {
		return l.err()
	}
	for i, f := range l.faults {
		at := s.of(f.Path)
		l.faults[i].File, l.faults[i].Line, l.faults[i].Column = s.file, at.line, at.column
	}
	slices.SortStableFunc(l.faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return l.err()
}

// parseTree reads data as one YAML document of plain data; a nil tree is an empty one.
func parseTree(data []byte) (*tree, *Fault) {
	if len(data) > FileBytesMax {
		return nil, &Fault{Rule: fmt.Sprintf("must be at most %d bytes long", FileBytesMax)}
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if !utf8.Valid(data) {
		return nil, &Fault{Rule: "must be valid UTF-8"}
	}
	tokens := lexer.Tokenize(string(data))
	if fault := plainFault(tokens); fault != nil {
		return nil, fault
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, syntaxFault(err)
	}
	var root ast.Node
	for _, document := range file.Docs {
		switch {
		case document.Body == nil:
		case root != nil:
			return nil, faultAt(document.Body.GetToken(), "must be one document, not several")
		default:
			root = document.Body
		}
	}
	if root == nil {
		return nil, &Fault{Rule: "is empty"}
	}
	return buildTree(root)
}

// plainFault looks for what a file of plain data does not need, before the parser
// spends time on it.
func plainFault(tokens token.Tokens) *Fault {
	var depth, dashes, line, values int
	var blocks blockStack
	for _, t := range tokens {
		if t.Position.Line != line {
			line, dashes = t.Position.Line, 0
			if blocks.add(t.Position.Column) > blockLinesMax {
				return faultAt(t, fmt.Sprintf("must hold at most %d lines in one block", blockLinesMax))
			}
		}
		switch t.Type {
		case token.AnchorType, token.AliasType, token.TagType, token.MergeKeyType,
			token.MappingKeyType, token.DirectiveType:
			return faultAt(t, fmt.Sprintf("%s is not supported here: write plain values (quote a text that begins with it)", t.Value))
		case token.SequenceStartType, token.MappingStartType:
			depth++
		case token.SequenceEndType, token.MappingEndType:
			depth--
		case token.SequenceEntryType:
			dashes++
			values++
		case token.MappingValueType:
			values++
		}
		switch {
		case depth > nestingMax || dashes > nestingMax:
			return faultAt(t, fmt.Sprintf("must nest at most %d deep", nestingMax))
		case values > valuesMax:
			return faultAt(t, fmt.Sprintf("must hold at most %d values", valuesMax))
		}
	}
	return nil
}

// A blockStack counts the lines of each indented block that a line stands in.
type blockStack []struct{ column, lines int }

// add counts a line that begins at column, and returns how many there are like it.
func (b *blockStack) add(column int) int {
	top := len(*b) - 1
	for top >= 0 && (*b)[top].column > column {
		top--
	}
	*b = (*b)[:top+1]
	if top < 0 || (*b)[top].column < column {
		*b = append(*b, struct{ column, lines int }{column, 0})
		top++
	}
	(*b)[top].lines++
	return (*b)[top].lines
}

func faultAt(t *token.Token, rule string) *Fault {
	return &Fault{Rule: rule, Line: t.Position.Line, Column: t.Position.Column}
}

// syntaxFault turns the parser's error, which draws a picture of the source, into one
// line.
func syntaxFault(err error) *Fault {
	var syntax interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if !errors.As(err, &syntax) || syntax.GetToken() == nil {
		return &Fault{Rule: "cannot be read as YAML: " + err.Error()}
	}
	return faultAt(syntax.GetToken(), "cannot be read as YAML: "+syntax.GetMessage())
}
