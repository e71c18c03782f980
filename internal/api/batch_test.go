package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
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

// A text or a name that no request may hold is a fault of its item, named as if the item
// stood alone: one of a gateway's callers must not refuse the others.
func TestBatchRefusesABadTextForItsItemAlone(t *testing.T) {
	t.Parallel()
	s := newService(t)
	good := `{"tenant":"huge","meter":"api.calls"}`
	bad := []struct{ item, field, rule string }{
		{`{"tenant":"huge","meter":"api.calls","dims":{"a":"1","a":"2"}}`, "dims.a", "only once"},
		{`{"tenant":"huge","meter":"api.calls","tenant":"globex"}`, "tenant", "only once"},
		{`{"tenant":"huge","meter":"api.calls","\u0074enant":"globex"}`, "tenant", "only once"},
		{`{"tenant":"huge","charges":[{"meter":"api.calls","cost":1,"cost":2}]}`, "charges[0].cost", "only once"},
		{"{\"tenant\":\"huge\",\"meter\":\"api.calls\",\"subject\":\"\xff\"}", "subject", "UTF-8"},
		{"{\"tenant\":\"huge\",\"meter\":\"api.calls\",\"dims\":{\"\xff\":\"\"}}", "dims", "UTF-8"},
		{`{"tenant":"huge","meter":"api.calls","subject":"\ud800"}`, "subject", "UTF-8"},
		{`{"tenant":"huge","meter":"api.calls","extra":{"a":["\udfff\ud800"]}}`, "extra.a[0]", "UTF-8"},
		{`{"tenant":"huge","meter":"api.calls","idempotency_key":"\ud800"}`, "idempotency_key", "UTF-8"},
	}
	items := []string{good}
	for _, tt := range bad {
		items = append(items, tt.item, good)
	}
	results := s.batch(items...).results(t)
	for i, a := range results {
		if i%2 == 0 {
			a.want(t, 200)
			continue
		}
		a.wantFault(t, bad[i/2].field, bad[i/2].rule)
		if strings.Contains(bad[i/2].item, idempotencyKeyField) {
			continue // alone, it is in the header
		}
		alone := s.consume(bad[i/2].item)
		if got, want := a.problem(t).Errors, alone.problem(t).Errors; !slices.Equal(got, want) {
			t.Errorf("faults of %s = %v in a batch, want %v as alone", bad[i/2].item, got, want)
		}
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
		{`{"items":[` + good + `],"items":[` + good + `]}`, "items", "only once"},
		{"{\"items\":[" + good + "],\"\xff\":1}", "body", "UTF-8"},
		{`{"items":[` + good + `,{"tenant":"acme","meter":}]}`, "items[1]", "valid JSON"},
		{`{"items":[` + good + `,{"tenant":"acme","cost":01}]}`, "items[1]", "valid JSON"},
		{`{"items":[` + good + `,` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `]}`, "items[1]", "deeply nested"},
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
