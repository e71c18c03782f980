package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quotad/quotad/internal/identity"
	"github.com/quotad/quotad/internal/quota"
)

// faultsMax bounds how many faults of one body are listed.
const faultsMax = 20

// wholeNumberRule is the rule of an amount, as quota.Request.Validate says it.
const wholeNumberRule = "must be a whole number from 0 to 999999999999999"

// A bodyReader walks a JSON body member by member. It is strict where JSON is not:
// a name may come once, text is valid UTF-8, and null, fractions and exponents are
// no amounts. A wrong value is noted and skipped, so that one answer lists every
// fault; broken JSON ends the walk. The zero value is ready for reset.
//
// A struct with tags and json.Unmarshal would be shorter. It cannot tell null or
// absent from zero without pointers, stops at the first fault, and takes twice as
// long on the path of every decision.
type bodyReader struct {
	text   bytes.Buffer
	dec    jsontext.Decoder
	faults []quota.Fault
	broken bool   // the rest cannot be read, or does not matter
	prefix string // of field names: "" or "charges[1]"
	name   []byte // of the current member, unquoted

	clients identity.Resolver // says which subject a client is
}

// reset starts the walk over the bytes in b.text, strictly unless options say otherwise.
func (b *bodyReader) reset(options ...jsontext.Options) {
	b.dec.Reset(&b.text, options...)
	b.faults, b.broken, b.prefix = nil, false, ""
}

// object enters an object; it reports false, with the value skipped, if the next
// value is something else.
func (b *bodyReader) object(field string) bool {
	return b.enter('{', field, "must be an object")
}

// array enters an array, as object does.
func (b *bodyReader) array(field string) bool {
	return b.enter('[', field, "must be an array")
}

func (b *bodyReader) enter(kind jsontext.Kind, field, rule string) bool {
	if !b.is(kind, field, rule) {
		return false
	}
	if _, err := b.dec.ReadToken(); err != nil {
		b.fail(err)
		return false
	}
	return true
}

// member reads the next name of an object into b.name; false after the last one.
func (b *bodyReader) member() bool {
	if !b.more() {
		return false
	}
	quoted, err := b.dec.ReadValue()
	if err == nil {
		b.name, err = jsontext.AppendUnquote(b.name[:0], quoted)
	}
	if err != nil {
		b.fail(err)
		return false
	}
	return true
}

// more reports whether the object or array entered last has more in it, and leaves
// it after its end.
func (b *bodyReader) more() bool {
	if b.broken {
		return false
	}
	switch b.dec.PeekKind() {
	case '}', ']':
		if _, err := b.dec.ReadToken(); err != nil {
			b.fail(err)
		}
		return false
	case 0:
		_, err := b.dec.ReadToken()
		b.fail(err)
		return false
	}
	return true
}

// end checks that nothing follows the value read.
func (b *bodyReader) end() {
	if b.broken {
		return
	}
	switch _, err := b.dec.ReadToken(); {
	case err == nil:
		b.fault("body", "must be one JSON object and nothing after it")
	case !errors.Is(err, io.EOF):
		b.fail(err)
	}
}

// string reads a text value.
func (b *bodyReader) string(field string) string {
	if !b.is('"', field, "must be a string") {
		return ""
	}
	token, err := b.dec.ReadToken()
	if err != nil {
		b.fail(err)
		return ""
	}
	return token.String()
}

// bool reads true or false.
func (b *bodyReader) bool(field string) bool {
	if b.broken {
		return false
	}
	if kind := b.dec.PeekKind(); kind != 't' && kind != 'f' {
		b.skip(field, "must be true or false")
		return false
	}
	token, err := b.dec.ReadToken()
	if err != nil {
		b.fail(err)
		return false
	}
	return token.Bool()
}

// units reads an amount. Only digits are one: 1.0 and 1e3 are whole to a
// mathematician and a rounding accident to everyone's JSON library.
func (b *bodyReader) units(field string) int64 { return b.whole(field, wholeNumberRule) }

// whole reads a whole number that is none of units, or has a rule of its own.
func (b *bodyReader) whole(field, rule string) int64 {
	if !b.is('0', field, rule) {
		return 0
	}
	digits, err := b.dec.ReadValue()
	if err != nil {
		b.fail(err)
		return 0
	}
	n, ok := parseUnits(digits)
	if !ok {
		b.fault(b.field(field), rule)
	}
	return n
}

// parseUnits reads up to 15 digits and nothing else. Leading zeros are no JSON, and in a
// query or a path one number would have many names.
func parseUnits(digits []byte) (int64, bool) {
	if len(digits) == 0 || len(digits) > 15 || len(digits) > 1 && digits[0] == '0' {
		return 0, false
	}
	var units int64
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		units = units*10 + int64(d-'0')
	}
	return units, true
}

// emptyNameRule is the rule that a field named "" breaks: a fault of what it is in, as no
// reader of the answer would see such a name.
const emptyNameRule = "must not have a field with an empty name"

// unknown notes the current member as one that the request does not have.
func (b *bodyReader) unknown() {
	if len(b.name) == 0 {
		b.skip("", emptyNameRule)
		return
	}
	b.skip(string(b.name), "is not a field of this request")
}

// is reports whether the next value is of a kind; if not it is noted and skipped.
func (b *bodyReader) is(kind jsontext.Kind, field, rule string) bool {
	if b.broken {
		return false
	}
	if b.dec.PeekKind() != kind {
		b.skip(field, rule)
		return false
	}
	return true
}

// skip passes over the next value and notes that it breaks rule.
func (b *bodyReader) skip(field, rule string) {
	if b.broken {
		return
	}
	if err := b.dec.SkipValue(); err != nil {
		b.fail(err)
		return
	}
	b.fault(b.field(field), rule)
}

// field is the full name of a member here or, without one, of what the members are of.
func (b *bodyReader) field(name string) string {
	switch {
	case name == "" && b.prefix == "":
		return "body"
	case name == "":
		return b.prefix
	case b.prefix == "":
		return name
	}
	return b.prefix + "." + name
}

// faulted reports whether a fault of the field is already noted.
func (b *bodyReader) faulted(field string) bool {
	return slices.ContainsFunc(b.faults, func(f quota.Fault) bool { return f.Field == field })
}

func (b *bodyReader) fault(field, rule string) {
	if len(b.faults) < faultsMax {
		b.faults = append(b.faults, quota.Fault{Field: shorten(field), Rule: rule})
	}
}

// fail notes what is wrong with the JSON itself and ends the walk.
func (b *bodyReader) fail(err error) {
	b.broken = true
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) {
		if errors.Is(err, io.EOF) {
			b.fault("body", "must be a JSON object; it is empty")
			return
		}
		b.fault("body", "must be valid JSON")
		return
	}
	field := fieldOfPointer(syntax.JSONPointer)
	if b.dec.StackDepth() > 0 {
		if kind, _ := b.dec.StackIndex(1); kind != '{' {
			field = "body" // has no fields
		}
	}
	switch {
	case errors.Is(syntax.Err, jsontext.ErrDuplicateName):
		b.fault(field, "must be given only once")
	case errors.Is(syntax.Err, io.ErrUnexpectedEOF):
		b.fault(field, fmt.Sprintf("must be valid JSON; it ends early, at byte %d", syntax.ByteOffset))
	case strings.Contains(syntax.Err.Error(), "UTF-8"), strings.Contains(syntax.Err.Error(), "surrogate"):
		b.fault(field, "must be valid UTF-8")
	case strings.Contains(syntax.Err.Error(), "max depth"):
		b.fault(field, "must be less deeply nested")
	default:
		b.fault(field, fmt.Sprintf("must be valid JSON; byte %d is where it is not", syntax.ByteOffset))
	}
}

// fieldOfPointer turns "/charges/1/cost" into "charges[1].cost". No request has a list
// in a list or a field without a name: what is around them is the nearest field.
func fieldOfPointer(pointer jsontext.Pointer) string {
	var field strings.Builder
	indexed := false
	for token := range pointer.Tokens() {
		_, err := strconv.ParseUint(token, 10, 16)
		index := err == nil && field.Len() > 0
		if token == "" || index && indexed {
			break
		}
		switch {
		case index:
			field.WriteString("[" + token + "]")
		case field.Len() > 0:
			field.WriteString("." + token)
		default:
			field.WriteString(token)
		}
		indexed = index
	}
	if field.Len() == 0 {
		return "body"
	}
	return field.String()
}

// fieldBytesMax bounds a field name that the caller made up and an answer repeats.
const fieldBytesMax = 128

// shorten makes a caller's field name fit to be repeated: in bounds, and without control
// characters, some of which JSON leaves as they are for the terminal that shows an answer.
func shorten(field string) string {
	field = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return unicode.ReplacementChar
		}
		return r
	}, field)
	if len(field) <= fieldBytesMax {
		return field
	}
	return strings.ToValidUTF8(field[:fieldBytesMax], "") + "…"
}
