package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/invopop/jsonschema"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// The OpenAPI document is made of the route table, the table of operations and the
// structs that requests and answers are, once per handler. What a word means is said
// once, in the glossary.

// apiVersion is the version of the contract, not of the program.
const apiVersion = "1.0.0"

// openAPI is GET /openapi.json.
func (h *Handler) openAPI(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	c.reply(http.StatusOK, headerJSON, h.document)
	return nil
}

// An object of the document. Maps are encoded in the order of their keys, so that the
// text is always the same.
type object map[string]any

// newDocument makes the OpenAPI 3.1 document of the routes.
func newDocument(routes []Route) ([]byte, error) {
	s := &schemas{components: object{}}
	paths := map[string]object{}
	for _, rt := range routes {
		op, known := operations[rt.Method+" "+rt.Pattern]
		if !known {
			return nil, fmt.Errorf("openapi: no operation describes %s %s", rt.Method, rt.Pattern)
		}
		if paths[rt.Pattern] == nil {
			paths[rt.Pattern] = object{}
		}
		paths[rt.Pattern][strings.ToLower(rt.Method)] = s.operation(rt, op)
	}
	document := object{
		"openapi": "3.1.0",
		"info": object{
			"title": "quotad", "version": apiVersion, "summary": "Exact, durable, explainable quotas.",
			"description": documentText, "license": object{"name": "Apache 2.0", "identifier": "Apache-2.0"},
		},
		"servers": []object{{"url": "/", "description": "This instance."}},
		"tags":    tags,
		"paths":   paths,
		"components": object{
			"schemas": s.components, "headers": headerObjects(),
			"securitySchemes": object{"key": object{
				"type": "http", "scheme": "bearer", "bearerFormat": "qk_<env>_<id>_<secret>",
				"description": "An API key. Its scopes are decide, read, audit and admin, which includes the others; it may be bound to one tenant.",
			}},
		},
	}
	text, err := json.MarshalIndent(document, "", " ")
	if err != nil {
		return nil, fmt.Errorf("openapi: %w", err)
	}
	return bytes.ReplaceAll(text, []byte(`"#/$defs/`), []byte(`"#/components/schemas/`)), s.err
}

// schemas gathers the schemas of the types that operations name.
type schemas struct {
	components object
	err        error
}

// operation is one operation as the document has it.
func (s *schemas) operation(rt Route, op operation) object {
	out := object{
		"operationId": op.id, "summary": op.summary, "tags": []string{op.tag},
		"parameters": s.parameters(rt, op), "responses": s.responses(rt, op),
	}
	if op.description != "" {
		out["description"] = op.description
	}
	if rt.Scope != "" {
		out["security"] = []object{{"key": []string{}}}
		out["x-scope"] = string(rt.Scope)
	} else {
		out["security"] = []object{}
	}
	if op.body != nil {
		content := object{"schema": s.of(op.body)}
		if example := exampleOf(op.id, "request"); example != nil {
			content["example"] = example
		}
		out["requestBody"] = object{"required": true, "content": object{"application/json": content}}
	}
	return out
}

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

func (s *schemas) parameters(rt Route, op operation) []object {
	parameters := []object{}
	for _, match := range pathParameter.FindAllStringSubmatch(rt.Pattern, -1) {
		parameters = append(parameters, s.parameter(op, "path", match[1]))
	}
	for _, name := range op.query {
		parameters = append(parameters, s.parameter(op, "query", name))
	}
	if op.tagged {
		op.requestHeaders = append(op.requestHeaders, ifHeaders...)
	}
	for _, name := range op.requestHeaders {
		parameters = append(parameters, s.parameter(op, "header", name))
	}
	return parameters
}

func (s *schemas) parameter(op operation, in, name string) object {
	p, known := parameters[op.id+"."+name]
	if !known {
		p, known = parameters[name]
	}
	if !known {
		s.err = fmt.Errorf("openapi: no parameter describes %s of %s", name, op.id)
	}
	required := in == "path" || slices.Contains(op.required, name)
	return object{"name": name, "in": in, "required": required, "description": p.description, "schema": p.schema}
}

// responses are the answers of an operation: its success, and its problems by status.
func (s *schemas) responses(rt Route, op operation) object {
	if op.tagged {
		op.answerHeaders = append(op.answerHeaders, "ETag")
	}
	success := object{"description": op.answers, "headers": headerRefs(op.answerHeaders)}
	content := object{}
	if op.answer != nil {
		answer := object{"schema": s.of(op.answer)}
		if example := exampleOf(op.id, strconv.Itoa(op.successStatus())); example != nil {
			answer["example"] = example
		}
		content["application/json"] = answer
	}
	for _, mediaType := range op.otherTypes {
		content[mediaType] = object{"schema": object{"type": "string"}}
	}
	success["content"] = content
	responses := object{strconv.Itoa(op.successStatus()): success}
	for _, status := range op.alsoStatus {
		responses[strconv.Itoa(status)] = success
	}
	if op.tagged && rt.Method == http.MethodGet {
		responses["304"] = object{"description": "What If-None-Match names is still so.", "headers": headerRefs([]string{"ETag"})}
	}
	problems := map[int][]code{}
	for _, code := range op.problems(rt) {
		status := problemKinds[code].status
		problems[status] = append(problems[status], code)
	}
	for status, codes := range problems {
		responses[strconv.Itoa(status)] = s.problemResponse(status, codes, op)
	}
	if op.denies {
		denied := object{"schema": s.of(denialProblem{})}
		if example := exampleOf(op.id, "429"); example != nil {
			denied["example"] = example
		}
		responses["429"] = object{
			"description": "Denied: nothing was charged, and nothing changed.",
			"headers":     headerRefs(append(slices.Clone(op.answerHeaders), "Retry-After", "Cache-Control")),
			"content":     object{"application/problem+json": denied},
		}
	}
	return responses
}

func (s *schemas) problemResponse(status int, codes []code, op operation) object {
	slices.Sort(codes)
	lines := make([]string, len(codes))
	for i, code := range codes {
		lines[i] = "`" + string(code) + "`: " + problemKinds[code].title + "."
	}
	headers := []string{"Cache-Control"}
	switch status {
	case http.StatusServiceUnavailable:
		headers = append(headers, "Retry-After")
	case http.StatusUnauthorized:
		headers = append(headers, "WWW-Authenticate")
	case http.StatusPreconditionFailed:
		headers = append(headers, "ETag")
	}
	content := object{"schema": s.of(problemBody{})}
	if example := exampleOf(op.id, strconv.Itoa(status)); example != nil {
		content["example"] = example
	}
	return object{
		"description": strings.Join(lines, " "), "headers": headerRefs(headers), "x-codes": codes,
		"content": object{"application/problem+json": content},
	}
}

// of returns a reference to the schema of a value's type.
func (s *schemas) of(value any) any {
	if schema, ok := value.(object); ok {
		return schema
	}
	reflector := jsonschema.Reflector{
		Anonymous: true, Mapper: mapType, Namer: typeName, LookupComment: s.comment,
	}
	root := reflector.Reflect(value)
	for name, schema := range root.Definitions {
		s.components[name] = finish(name, schema)
	}
	return object{"$ref": root.Ref}
}

// finish adjusts what a type cannot say of itself.
func finish(name string, schema *jsonschema.Schema) *jsonschema.Schema {
	if name == typeName(reflect.TypeFor[batchResult]()) {
		body, _ := schema.Properties.Get("body")
		*body = jsonschema.Schema{Description: body.Description, OneOf: []*jsonschema.Schema{
			{Ref: "#/$defs/Decision"}, {Ref: "#/$defs/DenialProblem"}, {Ref: "#/$defs/Problem"},
		}}
	}
	if optional, ok := optionalFields[name]; ok {
		schema.Required = slices.DeleteFunc(schema.Required, func(field string) bool { return slices.Contains(optional, field) })
	}
	return schema
}

// typeName names a type in the document: entriesPage is EntriesPage, entryBody Entry.
func typeName(t reflect.Type) string {
	name := strings.TrimSuffix(t.Name(), "Body")
	if name == "" {
		return ""
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

// comment is the description of a type, or of one of its fields.
func (s *schemas) comment(t reflect.Type, field string) string {
	owner := typeName(t)
	if field == "" {
		return glossary[owner]
	}
	f, ok := t.FieldByName(field)
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if text := glossary[owner+"."+name]; text != "" {
		return text
	}
	text := glossary[name]
	if text == "" && name != "" && name != "-" {
		s.err = fmt.Errorf("openapi: the glossary has no word for %q of %s", name, owner)
	}
	return text
}

// mapType gives the types that encode themselves their schema.
func mapType(t reflect.Type) *jsonschema.Schema {
	switch t {
	case reflect.TypeFor[time.Time]():
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	case reflect.TypeFor[uuid.UUID]():
		return &jsonschema.Schema{Type: "string", Format: "uuid"}
	case reflect.TypeFor[quota.Hash]():
		return &jsonschema.Schema{Type: "string", Pattern: "^[0-9a-f]{64}$"}
	case reflect.TypeFor[json.RawMessage]():
		return &jsonschema.Schema{Extras: map[string]any{"type": []string{"object", "null"}}}
	case reflect.TypeFor[catalog.WeightText]():
		return &jsonschema.Schema{Extras: map[string]any{"type": []string{"number", "string"}}}
	}
	if words := enums[t]; words != nil {
		return &jsonschema.Schema{Type: "string", Enum: words}
	}
	return nil
}

// enums are the words that a type of text may be.
var enums = map[reflect.Type][]any{
	reflect.TypeFor[catalog.Algorithm](): wordsOf(catalog.Algorithms()...),
	reflect.TypeFor[catalog.Scope]():     wordsOf(catalog.ScopeTenant, catalog.ScopeSubject),
	reflect.TypeFor[catalog.OnError]():   wordsOf(catalog.OnErrorDeny, catalog.OnErrorAllow, catalog.OnErrorLocal),
	reflect.TypeFor[catalog.PlanFrom]():  wordsOf(catalog.PlanFromNow, catalog.PlanFromNextPeriod),
	reflect.TypeFor[catalog.Mode]():      wordsOf(catalog.ModeEnforce, catalog.ModeShadow, catalog.ModeOff),
	reflect.TypeFor[catalog.Status]():    wordsOf(catalog.StatusActive, catalog.StatusSuspended, catalog.StatusClosed),
	reflect.TypeFor[catalog.KeyScope]():  wordsOf(catalog.KeyScopes()...),
	reflect.TypeFor[quota.Reason]():      wordsOf(reasons...),
	reflect.TypeFor[quota.HoldState]():   wordsOf(holdStates...),
	reflect.TypeFor[ledger.Kind]():       wordsOf(entryKinds...),
	reflect.TypeFor[code]():              wordsOf(slices.Sorted(maps.Keys(problemKinds))...),
}

func wordsOf[T ~string](words ...T) []any {
	out := make([]any, len(words))
	for i, word := range words {
		out[i] = string(word)
	}
	return out
}

// headerObjects are the header fields of answers.
func headerObjects() object {
	out := object{}
	for name, h := range headers {
		out[name] = object{"description": h.description, "schema": h.schema, "example": h.example}
	}
	return out
}

func headerRefs(names []string) object {
	out := object{}
	for _, name := range names {
		out[name] = object{"$ref": "#/components/headers/" + name}
	}
	return out
}

// exampleOf returns a real answer or request that the tests recorded; nil if none is.
func exampleOf(id, what string) json.RawMessage {
	text, err := examples.ReadFile("examples/" + id + "." + what + ".json")
	if err != nil {
		return nil
	}
	return json.RawMessage(bytes.TrimSpace(text))
}
