package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// okMembers are those of a body that has nothing wrong with it.
const okMembers = `"tenant":"acme","meter":"api.calls"`

// badBodies break a rule each: the answer is a 400 that names field and rule.
var badBodies = []struct{ name, body, field, rule string }{
	{"unknown field", `{` + okMembers + `,"costs":1}`, "costs", "not a field"},
	{"wrong type", `{"tenant":["acme"],"meter":"api.calls"}`, "tenant", "must be a string"},
	{"NUL", `{"tenant":"ac\u0000me","meter":"api.calls"}`, "tenant", "control characters"},
	{"NUL in subject", `{` + okMembers + `,"subject":"\u0000"}`, "subject", "control characters"},
	{"NUL in a dimension", `{` + okMembers + `,"dims":{"a":"\u0000"}}`, "dims.a", "control characters"},
	{"tenant of 300 bytes", `{"tenant":"` + strings.Repeat("x", 300) + `","meter":"api.calls"}`, "tenant", "1 to 256 bytes"},
	{"tenant of 300 bytes in 150 characters", `{"tenant":"` + strings.Repeat("é", 150) + `","meter":"api.calls"}`, "tenant", "1 to 256 bytes"},
	{"tenant is ..", `{"tenant":"..","meter":"api.calls"}`, "tenant", "must not be . or .."},
	{"no tenant", `{"meter":"api.calls"}`, "tenant", "is required"},
	{"empty tenant", `{"tenant":"","meter":"api.calls"}`, "tenant", "1 to 256 bytes"},
	{"empty subject", `{` + okMembers + `,"subject":""}`, "subject", "1 to 256 bytes"},
	{"meter name", `{"tenant":"acme","meter":"API"}`, "meter", "must match"},
	{"cost -1", `{` + okMembers + `,"cost":-1}`, "cost", wholeNumberRule},
	{"cost 2^63", `{` + okMembers + `,"cost":9223372036854775808}`, "cost", wholeNumberRule},
	{"cost 1.5", `{` + okMembers + `,"cost":1.5}`, "cost", wholeNumberRule},
	{"cost 1e3", `{` + okMembers + `,"cost":1e3}`, "cost", wholeNumberRule},
	{"cost in quotes", `{` + okMembers + `,"cost":"1e3"}`, "cost", wholeNumberRule},
	{"cost null", `{` + okMembers + `,"cost":null}`, "cost", wholeNumberRule},
	{"cost of 16 digits", `{` + okMembers + `,"cost":1000000000000000}`, "cost", wholeNumberRule},
	{"cost in charges", `{"tenant":"acme","charges":[{"meter":"api.calls"},{"meter":"llm.tokens","cost":-1}]}`, "charges[1].cost", wholeNumberRule},
	{"no charges", `{"tenant":"acme","charges":[]}`, "charges", "at least one"},
	{"17 charges", `{"tenant":"acme","charges":[` + strings.Repeat(`{"meter":"api.calls"},`, 16) + `{"meter":"api.calls"}]}`, "charges", "at most 16"},
	{"pool amount", `{"tenant":"acme","meter":"llm.tokens","pools":{"input":-1}}`, "pools.input", wholeNumberRule},
	{"no pools", `{"tenant":"acme","meter":"llm.tokens","pools":{}}`, "pools", "1 to 16 pools"},
	{"unknown pool", `{"tenant":"acme","meter":"llm.tokens","pools":{"reasoning":1}}`, "pools.reasoning", "must be"},
	{"unknown pool in charges", `{"tenant":"acme","charges":[{"meter":"llm.tokens","pools":{"reasoning":1}}]}`, "charges[0].pools.reasoning", "must be"},
	{"unknown meter", `{"tenant":"acme","meter":"nope"}`, "meter", "must name a configured meter"},
	{"unknown meter in charges", `{"tenant":"acme","charges":[{"meter":"api.calls"},{"meter":"nope"}]}`, "charges[1].meter", "must name a configured meter"},
	{"no subject for a limit per subject", `{"tenant":"users","meter":"api.calls"}`, "subject", "required"},
	{"sum of charges overflows", `{"tenant":"huge","charges":[{"meter":"api.calls","cost":999999999999999},{"meter":"api.calls","cost":1}]}`, "charges[1].cost", "must sum to at most 999999999999999"},
	{"not JSON", `{"tenant":`, "tenant", "valid JSON"},
	{"empty body", ` `, "body", "must be a JSON object"},
	{"not UTF-8", "{\"tenant\":\"\xff\",\"meter\":\"api.calls\"}", "tenant", "UTF-8"},
}

func TestBadBodiesAreNamedAndWriteNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"huge","meter":"api.calls","cost":999999999999999}`).want(t, 200)
	rows := s.rows()
	for _, tt := range badBodies {
		t.Run(tt.name, func(t *testing.T) {
			s := *s
			s.t = t
			s.consume(tt.body, "Idempotency-Key", "bad").wantFault(t, tt.field, tt.rule)
		})
	}
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("bad requests wrote rows, before-, after+:\n%s", diff)
	}
}

// A badRequest has a fault outside its body's members.
type badRequest struct {
	name   string
	r      request
	status int
	code   code
}

func badRequests(s *service) []badRequest {
	decide := s.token(catalog.KeyDecide, "")
	const good = `{` + okMembers + `}`
	header := func(list ...string) map[string]string { return pairs(list) }
	return []badRequest{
		{"unknown tenant", request{body: `{"tenant":"nobody","meter":"api.calls"}`, token: decide}, 404, codeTenantNotFound},
		{"no key", request{body: good}, 401, codeUnauthenticated},
		{"malformed key", request{body: good, token: "qk_live_x"}, 401, codeUnauthenticated},
		{"wrong secret", request{body: good, token: decide[:len(decide)-1] + "!"}, 401, codeUnauthenticated},
		{"wrong scope", request{body: good, token: s.token(catalog.KeyRead, "")}, 403, codeInsufficientScope},
		{"another tenant's key", request{body: good, token: s.token(catalog.KeyDecide, "globex")}, 403, codeTenantForbidden},
		{"another tenant's key, no such tenant", request{body: `{"tenant":"nobody","meter":"api.calls"}`, token: s.token(catalog.KeyDecide, "globex")}, 403, codeTenantForbidden},
		{"65 KiB", request{body: `{` + okMembers + `,"subject":"` + strings.Repeat("x", 65<<10) + `"}`, token: decide}, 413, codeBodyTooLarge},
		{"form", request{body: "tenant=acme", token: decide, header: header("Content-Type", "application/x-www-form-urlencoded")}, 415, codeMediaType},
		{"another charset", request{body: good, token: decide, header: header("Content-Type", "application/json; charset=latin1")}, 415, codeMediaType},
		{"compressed", request{body: good, token: decide, header: header("Content-Encoding", "gzip")}, 415, codeMediaType},
		{"key of 256 bytes", request{body: good, token: decide, header: header("Idempotency-Key", strings.Repeat("k", 256))}, 400, codeInvalidRequest},
		{"key that ends early", request{body: good, token: decide, header: header("Idempotency-Key", `"k`)}, 400, codeInvalidRequest},
		{"key that is empty", request{body: good, token: decide, header: header("Idempotency-Key", `""`)}, 400, codeInvalidRequest},
		{"deny_status", request{path: "/v1/consume?deny_status=403", body: good, token: decide}, 400, codeInvalidRequest},
		{"deny_status is empty", request{path: "/v1/consume?deny_status=", body: good, token: decide}, 400, codeInvalidRequest},
		{"deny_status is signed", request{path: "/v1/consume?deny_status=%2B200", body: good, token: decide}, 400, codeInvalidRequest},
		{"deny_status twice", request{path: "/v1/consume?deny_status=200&deny_status=429", body: good, token: decide}, 400, codeInvalidRequest},
		{"unknown parameter", request{path: "/v1/consume?dry_run=true", body: good, token: decide}, 400, codeInvalidRequest},
		{"running total overflows", request{body: `{"tenant":"huge","meter":"api.calls"}`, token: decide}, 400, codeAmountOverflow},
		{"wrong method", request{method: http.MethodGet, token: decide}, 405, codeMethodNotAllowed},
	}
}

func TestBadRequestsWriteNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"huge","meter":"api.calls","cost":999999999999999}`).want(t, 200)
	rows := s.rows()
	for _, tt := range badRequests(s) {
		t.Run(tt.name, func(t *testing.T) {
			s := *s
			s.t = t
			if tt.r.path == "" {
				tt.r.path = "/v1/consume"
			}
			if tt.r.method == "" {
				tt.r.method = http.MethodPost
			}
			s.do(tt.r).want(t, tt.status, tt.code)
		})
	}
	if diff := cmp.Diff(rows, s.rows()); diff != "" {
		t.Errorf("bad requests wrote rows, before-, after+:\n%s", diff)
	}
}
