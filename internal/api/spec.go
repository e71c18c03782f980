package api

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"

	"github.com/go-json-experiment/json"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// readSpec reads a body of configuration into its struct: strict about names and
// types here, about meaning in the catalog.
func readSpec[T any](c *call) (T, error) {
	var spec T
	if err := c.readBody(configBytesMax); err != nil {
		return spec, err
	}
	return spec, decodeSpec(c, &spec)
}

func decodeSpec(c *call, into any) error {
	text := c.in.text.Bytes()
	c.in.reset()
	c.in.refuseNull()
	if len(c.in.faults) > 0 {
		return c.in.problem()
	}
	err := json.Unmarshal(text, into, json.RejectUnknownMembers(true))
	if err == nil {
		return nil
	}
	var semantic *json.SemanticError
	if !errors.As(err, &semantic) {
		return invalid("body", "must be valid JSON") // refuseNull has read it all: not reached
	}
	return invalid(shorten(fieldOfPointer(semantic.JSONPointer)), semanticRule(semantic))
}

// refuseNull walks the whole body. A null is neither a value nor the absence of one:
// whether it resets a field or keeps it would be a guess.
func (b *bodyReader) refuseNull() {
	if !b.is('{', "", "must be an object") {
		return
	}
	for {
		token, err := b.dec.ReadToken()
		if err != nil {
			b.fail(err)
			return
		}
		if token.Kind() == 'n' {
			field := fieldOfPointer(b.dec.StackPointer())
			b.fault(field, nullRule(field))
		}
		if b.dec.StackDepth() == 0 {
			b.end()
			return
		}
	}
}

// requiredPattern matches the fields of configuration that have to be there, and the items
// of a list.
var requiredPattern = regexp.MustCompile(`^(unit|plan|limits|scopes)$|^limits\[\d+\]\.(name|meter|algorithm)$|^overrides\[\d+\]\.(name|until|reason)$|\]$`)

// nullRule is what a field that is null breaks, with the way out where there is one.
func nullRule(field string) string {
	if requiredPattern.MatchString(field) {
		return "must not be null"
	}
	return "must not be null: leave it out"
}

// semanticRule says what a value of the wrong kind should have been.
func semanticRule(e *json.SemanticError) string {
	if errors.Is(e.Err, json.ErrUnknownName) {
		if e.JSONPointer.LastToken() == "" {
			return emptyNameRule
		}
		return "is not a field of this request"
	}
	if faults := catalog.Faults(e.Err); len(faults) > 0 {
		return faults[0].Rule
	}
	if e.GoType == nil {
		return "has the wrong type"
	}
	goType := e.GoType
	for goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	switch goType.Kind() {
	case reflect.String:
		if e.Err != nil {
			return e.Err.Error() // a type with its own rule, such as a weight
		}
		return "must be a string"
	case reflect.Bool:
		return "must be true or false"
	case reflect.Int64:
		return wholeNumberRule
	case reflect.Int, reflect.Int32:
		return "must be a whole number"
	case reflect.Slice, reflect.Array:
		return "must be an array"
	case reflect.Struct, reflect.Map:
		return "must be an object"
	}
	return "has the wrong type"
}

// specProblem makes a problem of the catalog's faults.
func specProblem(faults []catalog.Fault) error {
	p := &problem{code: codeInvalidRequest}
	for _, f := range faults {
		field := f.Path
		if field == "" {
			field = "body"
		}
		p.faults = append(p.faults, quota.Fault{Field: shorten(field), Rule: f.Rule})
	}
	return p
}

// notFound turns a store's word that something is not there into a problem.
func notFound(err error, detail string) error {
	if errors.Is(err, catalog.ErrNotFound) || errors.Is(err, ledger.ErrNotFound) {
		return &problem{code: codeNotFound, detail: detail, cause: err}
	}
	return err
}

func tenantNotFound(err error) error {
	if errors.Is(err, catalog.ErrNotFound) {
		return &problem{code: codeTenantNotFound, cause: err}
	}
	return err
}

// json answers with a value that is no decision: state of now, which nobody may keep.
func (c *call) json(status int, value any) error { return c.encode(status, headerNoStore, value) }

func (c *call) encode(status int, cacheControl []string, value any) error {
	text := bytes.NewBuffer(c.out[:0])
	encoder := stdjson.NewEncoder(text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("encode an answer: %w", err)
	}
	c.out = text.Bytes()
	c.w.Header()["Cache-Control"] = cacheControl
	c.reply(status, headerJSON, c.out)
	return nil
}
