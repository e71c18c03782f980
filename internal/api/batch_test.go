package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

// results reads the answer to a batch: what each item would have got alone.
func (a answer) results(t *testing.T) []answer {
	t.Helper()
	var body struct {
		Results []struct {
			Status   int
			Replayed bool
			Body     json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(a.want(t, http.StatusOK).body), &body); err != nil {
		t.Fatalf("batch %s: %v", a.body, err)
	}
	var results []answer
	for _, r := range body.Results {
		header := http.Header{"Content-Type": headerJSON}
		if r.Status != http.StatusOK {
			header["Content-Type"] = headerProblem
		}
		if r.Replayed {
			header.Set("Idempotent-Replayed", "true")
		}
		results = append(results, answer{r.Status, header, string(r.Body)})
	}
	return results
}

// batch posts items with a key that may decide for every tenant.
func (s *service) batch(items ...string) answer {
	s.t.Helper()
	return s.do(request{
		method: http.MethodPost, path: "/v1/consume/batch", body: `{"items":[` + strings.Join(items, ",") + `]}`,
		token: s.token(catalog.KeyDecide, ""),
	})
}

// Every item of a batch gets what it would have got alone, in its place: one that is
// wrong, denied or foreign harms none of the others.
func TestBatchAnswersEachItemAsIfSentAlone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	item := `{"tenant":"acme","meter":"api.calls","cost":3,"idempotency_key":"k1"}`
	a := s.batch(
		item,
		`{"tenant":"acme","meter":"api.calls","cost":3}`,
		`{"tenant":"acme","meter":"api.calls","cost":-1}`,
		`{"tenant":"nobody","meter":"api.calls"}`,
		`{"tenant":"globex","charges":[{"meter":"api.calls"},{"meter":"llm.tokens","pools":{"input":7,"output":2}}]}`,
		item,
		`{"tenant":"acme","meter":"api.calls","cost":4,"idempotency_key":"k1"}`,
		`{"tenant":"acme","meter":"api.calls","idempotency_key":"k1","idempotency":"x"}`,
		`7`,
		`{"tenant":"acme","meter":"api.calls","cost":2}`,
	)
	golden(t, "batch", a)
	results := a.results(t)
	for i, want := range []int{200, 429, 400, 404, 200, 200, 422, 400, 400, 200} {
		if results[i].status != want {
			t.Errorf("item %d: status = %d, want %d; body %s", i, results[i].status, want, results[i].body)
		}
	}
	if results[5].body != results[0].body || results[5].header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("repeated item = %v, want the first answer again: %s", results[5], results[0].body)
	}
	results[2].wantFault(t, "cost", "whole number")
	results[6].want(t, 422, codeKeyReused)
	results[7].wantFault(t, "idempotency", "not a field")
	alone := s.consume(`{"tenant":"acme","meter":"api.calls","cost":3}`, "Idempotency-Key", "k1").want(t, 200)
	if alone.body != results[0].body {
		t.Errorf("the key alone = %s, want the item's answer %s", alone.body, results[0].body)
	}
}

// Items of one tenant are decided in their order, whatever else is in the batch.
func TestBatchKeepsTheOrderOfATenantsItems(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var items []string
	for range 500 {
		items = append(items,
			`{"tenant":"huge","meter":"api.calls"}`, `{"tenant":"globex","meter":"llm.tokens","cost":1}`)
	}
	for i, a := range s.batch(items...).results(t) {
		d := a.want(t, 200).decision(t)
		if want := int64(i/2 + 1); d.Receipt == nil || d.Receipt.Seq != want {
			t.Fatalf("item %d: receipt = %+v, want seq %d", i, d.Receipt, want)
		}
	}
}

// What is wrong with the batch itself is one problem, and nothing of it is done.
func TestBatchThatIsWrongAsAWholeDoesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t)
	before := s.rows()
	good := `{"tenant":"acme","meter":"api.calls"}`
	for _, test := range []struct{ body, field, rule string }{
		{``, "body", "empty"},
		{`[]`, "body", "must be an object"},
		{`{}`, "items", "is required"},
		{`{"items":[]}`, "items", "at least one"},
		{`{"items":{}}`, "items", "must be an array"},
		{`{"items":[` + good + `],"more":1}`, "more", "not a field"},
		{`{"items":[` + good + `]} x`, "body", ""},
		{`{"items":[` + good + `,{"tenant":"acme","tenant":"b"}]}`, "items[1].tenant", "only once"},
		{`{"items":[` + good + `,{"tenant":"acme"`, "items[1]", "ends early"},
		{`{"items":[` + strings.Repeat(good+",", 1000) + good + `]}`, "items", "at most 1000"},
	} {
		s.do(request{
			method: http.MethodPost, path: "/v1/consume/batch", body: test.body, token: s.token(catalog.KeyDecide, ""),
		}).wantFault(t, test.field, test.rule)
	}
	s.do(request{
		method: http.MethodPost, path: "/v1/consume/batch", token: s.token(catalog.KeyDecide, ""),
		body: `{"items":[` + good + `]}`, header: map[string]string{"Idempotency-Key": "k"},
	}).wantFault(t, "Idempotency-Key", "each item")
	s.do(request{
		method: http.MethodPost, path: "/v1/consume/batch", token: s.token(catalog.KeyDecide, ""),
		body: `{"items":[` + good + `]` + strings.Repeat(" ", batchBytesMax) + `}`,
	}).want(t, 413, codeBodyTooLarge)
	if after := s.rows(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("rows = %v, want none new: %v", after, before)
	}
}

// A bound key spends in a batch for its own tenant alone.
func TestBatchItemsOfForeignTenantsAreForbidden(t *testing.T) {
	t.Parallel()
	s := newService(t)
	a := s.do(request{
		method: http.MethodPost, path: "/v1/consume/batch", token: s.token(catalog.KeyDecide, "huge"),
		body: `{"items":[{"tenant":"globex","meter":"api.calls"},{"tenant":"huge","meter":"api.calls"},{"tenant":"nobody","meter":"api.calls"}]}`,
	})
	results := a.results(t)
	results[0].want(t, 403, codeTenantForbidden)
	results[1].want(t, 200)
	results[2].want(t, 403, codeTenantForbidden)
}
