package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// The served document is what its golden file shows, so that a change of the contract
// is seen in review.
func TestOpenAPIDocument(t *testing.T) {
	t.Parallel()
	s := newService(t)
	a := s.do(request{method: http.MethodGet, path: "/openapi.json"}).want(t, 200)
	const file = "testdata/openapi.golden.json"
	if *update {
		if err := os.WriteFile(file, []byte(a.body+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), a.body+"\n"); diff != "" {
		t.Errorf("%s, want-, got+:\n%s", file, diff)
	}
}

// Every route is described, and nothing else; no two share an id; every word is used.
func TestOpenAPIDescribesTheRouteTable(t *testing.T) {
	t.Parallel()
	s := newService(t)
	left := map[string]bool{}
	for name := range operations {
		left[name] = true
	}
	ids := map[string]bool{}
	for _, rt := range s.handler.Routes() {
		op := operations[rt.Method+" "+rt.Pattern]
		if ids[op.id] || op.summary == "" || op.answers == "" {
			t.Errorf("%s %s: id %q is used twice, or its summary or answers are missing", rt.Method, rt.Pattern, op.id)
		}
		ids[op.id] = true
		delete(left, rt.Method+" "+rt.Pattern)
	}
	for name := range left {
		t.Errorf("%s is described and no route", name)
	}
	document := string(s.handler.document)
	for name, text := range glossary {
		quoted, _ := json.Marshal(text)
		if !strings.Contains(document, string(quoted)) {
			t.Errorf("the glossary's %q is not used", name)
		}
	}
	for name := range headers {
		if !strings.Contains(document, `"#/components/headers/`+name+`"`) {
			t.Errorf("header %s is described and in no answer", name)
		}
	}
}

// Every parameter that the document names is taken, and one that it does not is not.
func TestOpenAPIParametersAreTaken(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200)
	for _, rt := range s.handler.Routes() {
		op := operations[rt.Method+" "+rt.Pattern]
		for _, name := range append(slices.Clone(op.query), "nonsense") {
			if rt.Scope == "" {
				continue
			}
			r := s.matrixRequest(rt, "acme", s.token(rt.Scope, ""))
			separator := "?"
			if strings.Contains(r.path, "?") {
				separator = "&"
			}
			r.path += separator + url.QueryEscape(name) + "=%00"
			a := s.do(r)
			refused := strings.Contains(a.body, "is not a parameter")
			if taken := name != "nonsense"; refused == taken {
				t.Errorf("%s %s with parameter %s: %s", rt.Method, rt.Pattern, name, a.body)
			}
		}
	}
}

// openAPIValidator holds the document's schemas, compiled.
type openAPIValidator struct {
	document any
	compiler *jsonschema.Compiler
	mu       sync.Mutex
	schemas  map[string]*jsonschema.Schema
}

const documentURL = "https://quotad.test/openapi.json"

// validators makes the one validator: every handler serves the same document.
var validators struct {
	once sync.Once
	*openAPIValidator
	err error
}

func newValidator(text []byte) (*openAPIValidator, error) {
	validators.once.Do(func() { validators.openAPIValidator, validators.err = compileDocument(text) })
	return validators.openAPIValidator, validators.err
}

func compileDocument(text []byte) (*openAPIValidator, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	if err := compiler.AddResource(documentURL, document); err != nil {
		return nil, err
	}
	return &openAPIValidator{document: document, compiler: compiler, schemas: map[string]*jsonschema.Schema{}}, nil
}

// at returns the part of the document that a path of names leads to.
func (v *openAPIValidator) at(names ...string) (any, bool) {
	at := v.document
	for _, name := range names {
		parts, ok := at.(map[string]any)
		if !ok {
			return nil, false
		}
		if at, ok = parts[name]; !ok {
			return nil, false
		}
	}
	return at, true
}

// check validates a JSON text by the schema that a path of names leads to.
func (v *openAPIValidator) check(text string, names ...string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	pointer := documentURL + "#"
	for _, name := range names {
		pointer += "/" + url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
	}
	schema := v.schemas[pointer]
	if schema == nil {
		var err error
		if schema, err = v.compiler.Compile(pointer); err != nil {
			return err
		}
		v.schemas[pointer] = schema
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		return err
	}
	return schema.Validate(value)
}

// holdToDocument checks an answer against the document: its status is described, its
// body has the described form and nothing beyond it, a problem's code is one of the
// operation's; and what was carried out was described as a request, too.
func (s *service) holdToDocument(r request, a answer) {
	s.t.Helper()
	path, _, _ := strings.Cut(r.path, "?")
	routed := chi.NewRouteContext()
	if r.method == http.MethodHead || !s.handler.router.Match(routed, r.method, path) {
		return
	}
	v, err := newValidator(s.handler.document)
	if err != nil {
		s.t.Fatal(err)
	}
	at := []string{"paths", routed.RoutePattern(), strings.ToLower(r.method)}
	described := append(slices.Clone(at), "responses", strconv.Itoa(a.status))
	if _, ok := v.at(described...); !ok {
		s.t.Errorf("%s %s: the document has no answer %d; body %s", r.method, r.path, a.status, a.body)
		return
	}
	mediaType, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
	content := append(described, "content", mediaType, "schema")
	if _, ok := v.at(content...); !ok && mediaType != "" {
		s.t.Errorf("%s %s: the document has no %s in answer %d", r.method, r.path, mediaType, a.status)
		return
	}
	if strings.HasSuffix(mediaType, "json") && mediaType != "application/x-ndjson" {
		if err := v.check(a.body, content...); err != nil {
			s.t.Errorf("%s %s: the document does not describe %s: %v", r.method, r.path, a.body, err)
		}
	}
	s.checkCode(v, described, a)
	if a.status < 300 && r.body != "" && !strings.Contains(a.body, `{"status":400,`) { // but for an item that is wrong
		if err := v.check(r.body, append(at, "requestBody", "content", "application/json", "schema")...); err != nil {
			s.t.Errorf("%s %s: the document does not describe the request %s: %v", r.method, r.path, r.body, err)
		}
	}
}

// checkCode checks that the code of a problem is one that the document lists there.
func (s *service) checkCode(v *openAPIValidator, described []string, a answer) {
	s.t.Helper()
	listed, ok := v.at(append(slices.Clone(described), "x-codes")...)
	if !ok || a.header.Get("Content-Type") != headerProblem[0] {
		return
	}
	var p problemBody
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		s.t.Error(err)
	}
	if !slices.Contains(listed.([]any), any(string(p.Code))) {
		s.t.Errorf("%v: code %s is not listed: %v", described, p.Code, listed)
	}
}
