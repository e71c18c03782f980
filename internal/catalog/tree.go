package catalog

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// A tree is a document without its syntax: what every value is and where it stands.
// It keeps the text of numbers, so that none of them goes through a float.
type tree struct {
	kind   treeKind
	text   string // of a scalar
	quoted bool   // the scalar was certainly meant as text
	fields []treeField
	items  []*tree
	at     position
}

type treeField struct {
	name  string
	value *tree
	at    position
}

type treeKind int

const (
	treeNull treeKind = iota + 1
	treeScalar
	treeMap
	treeList
)

// buildTree translates the parser's nodes. Its recursion is as deep as the document,
// which plainFault and the file's size bound.
func buildTree(node ast.Node) (*tree, *Fault) {
	start := node.GetToken().Position
	t := &tree{at: position{start.Line, start.Column}}
	switch n := node.(type) {
	case *ast.NullNode:
		t.kind = treeNull
	case *ast.StringNode:
		t.kind, t.text, t.quoted = treeScalar, n.Value, n.Token.Type != token.StringType
	case *ast.LiteralNode:
		t.kind, t.text, t.quoted = treeScalar, n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		t.kind, t.text = treeScalar, node.GetToken().Value
	case *ast.MappingNode:
		t.kind = treeMap
		for _, value := range n.Values {
			if fault := t.addField(value); fault != nil {
				return nil, fault
			}
		}
	case *ast.MappingValueNode:
		t.kind = treeMap
		if fault := t.addField(n); fault != nil {
			return nil, fault
		}
	case *ast.SequenceNode:
		t.kind = treeList
		for _, value := range n.Values {
			item, fault := buildTree(value)
			if fault != nil {
				return nil, fault
			}
			t.items = append(t.items, item)
		}
	default:
		return nil, faultAt(node.GetToken(), "is not plain data")
	}
	if len(t.fields) > 0 && t.fields[0].at.column < t.at.column {
		t.at = t.fields[0].at // the parser says that a block map begins at its first colon
	}
	return t, nil
}

func (t *tree) addField(node *ast.MappingValueNode) *Fault {
	key, fault := buildTree(node.Key)
	if fault != nil {
		return fault
	}
	if key.kind != treeScalar {
		return faultAt(node.Key.GetToken(), "a key must be a text")
	}
	value, fault := buildTree(node.Value)
	if fault != nil {
		return fault
	}
	t.fields = append(t.fields, treeField{name: key.text, value: value, at: key.at})
	return nil
}

// A decoder fills structs from a tree, by their JSON tags, and goes on after a fault
// so that a file is told all of its faults at once; decoders of YAML stop at the
// first. It knows the kinds that a configuration is made of and no others.
type decoder struct {
	positions map[string]position
	faults    faultList
}

func (d *decoder) decodeInto(config *Config, root *tree) {
	d.positions[""] = root.at
	d.decode("", root, reflect.ValueOf(config).Elem())
}

func (d *decoder) decode(path string, t *tree, to reflect.Value) {
	if t.kind == treeNull {
		return // as in JSON: absent
	}
	switch to.Kind() {
	case reflect.Struct:
		d.decodeStruct(path, t, to)
	case reflect.Map:
		d.decodeMap(path, t, to)
	case reflect.Slice:
		d.decodeSlice(path, t, to)
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		d.decode(path, t, to.Elem())
	case reflect.String:
		if t.kind != treeScalar || t.text == "" {
			d.faults.add(path, "must be a text")
			return
		}
		to.SetString(t.text)
	case reflect.Bool:
		if t.kind != treeScalar || t.quoted || t.text != "true" && t.text != "false" {
			d.faults.add(path, "must be true or false")
			return
		}
		to.SetBool(t.text == "true")
	case reflect.Int, reflect.Int64:
		if t.kind != treeScalar || t.quoted || !wholePattern.MatchString(t.text) {
			d.faults.add(path, "must be a whole number in plain digits")
			return
		}
		to.SetInt(saturatingInt(t.text))
	default:
		panic(fmt.Sprintf("catalog: no decoding for a %s", to.Type()))
	}
}

var wholePattern = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

// saturatingInt reads a whole number; one that does not fit becomes the largest or
// smallest that does, which every rule of a field refuses in its own words.
func saturatingInt(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err == nil:
		return n
	case text[0] == '-':
		return math.MinInt64
	}
	return math.MaxInt64
}

func (d *decoder) decodeStruct(path string, t *tree, to reflect.Value) {
	if t.kind != treeMap {
		d.faults.add(path, "must be a map of fields")
		return
	}
	indexes, names := jsonFields(to.Type())
	for _, field := range d.distinct(path, t.fields) {
		at := fieldPath(path, field.name)
		index, known := indexes[field.name]
		if !known {
			d.faults.add(at, "is not a field here: %s are", strings.Join(names, ", "))
			continue
		}
		d.decode(at, field.value, to.Field(index))
	}
}

func (d *decoder) decodeMap(path string, t *tree, to reflect.Value) {
	if t.kind != treeMap {
		d.faults.add(path, "must be a map from names")
		return
	}
	fields := d.distinct(path, t.fields)
	to.Set(reflect.MakeMapWithSize(to.Type(), len(fields)))
	for _, field := range fields {
		value := reflect.New(to.Type().Elem()).Elem()
		d.decode(fieldPath(path, field.name), field.value, value)
		to.SetMapIndex(reflect.ValueOf(field.name), value)
	}
}

func (d *decoder) decodeSlice(path string, t *tree, to reflect.Value) {
	if t.kind != treeList {
		d.faults.add(path, "must be a list")
		return
	}
	to.Set(reflect.MakeSlice(to.Type(), len(t.items), len(t.items)))
	for i, item := range t.items {
		at := itemPath(path, i)
		d.positions[at] = item.at
		d.decode(at, item, to.Index(i))
	}
}

// distinct notes where each field stands and returns those that are not repeated.
func (d *decoder) distinct(path string, fields []treeField) []treeField {
	seen := make(map[string]position, len(fields))
	return slices.DeleteFunc(slices.Clone(fields), func(f treeField) bool {
		at := fieldPath(path, f.name)
		first, repeated := seen[f.name]
		if repeated {
			d.faults.add(at, "is given twice, on lines %d and %d", first.line, f.at.line)
			return true
		}
		seen[f.name] = f.at
		d.positions[at] = f.at
		return false
	})
}

// jsonFields returns the index of each field that has a JSON name, and the names in
// the order of the struct.
func jsonFields(of reflect.Type) (indexes map[string]int, names []string) {
	indexes = make(map[string]int, of.NumField())
	for i := range of.NumField() {
		name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
		if name != "" && name != "-" {
			indexes[name] = i
			names = append(names, name)
		}
	}
	return indexes, names
}
