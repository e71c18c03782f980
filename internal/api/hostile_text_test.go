package api

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

// controls are characters that move a terminal's cursor, end a line of a log or a header,
// or end a C string.
var controls = []string{"\x00", "\t", "\n", "\r", "\r\nX-Injected: 1", "\x1b[2J", "\x7f", "\u0085", "\u009b31m"}

// disguises are characters that a reader does not see. In an id of the caller's own they
// are as good as others: what looks alike is still two.
var disguises = []string{"\u202e", "\u2066", "\u200b", "\u2028", "\ufeff", "\u00a0", "=", "<script>", `"`, `\`, "%0d%0a"}

// A textField is a text that some request takes. at makes the request with it.
type textField struct {
	name string
	ids  bool // takes any text that has no control characters
	at   func(text string) request
}

// jsonText is a text as a JSON string, with every byte that JSON allows as it is.
func jsonText(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func textFields(s *service) []textField {
	decide, admin := s.token(catalog.KeyDecide, ""), s.token(catalog.KeyAdmin, "")
	post := func(path, body, token string) request {
		return request{method: "POST", path: path, body: body, token: token}
	}
	put := func(path, body string) request { return request{method: "PUT", path: path, body: body, token: admin} }
	get := func(path string) request { return request{method: "GET", path: path, token: admin} }
	query := func(path, name string) func(string) request {
		return func(text string) request { return get(path + "?" + name + "=" + url.QueryEscape(text)) }
	}
	consume := func(members string) func(string) request {
		return func(text string) request {
			return post("/v1/consume?deny_status=200", `{"meter":"api.calls",`+strings.ReplaceAll(members, "{}", jsonText(text))+`}`, decide)
		}
	}
	const acme = `"tenant":"acme",`
	fields := []textField{
		{"tenant", false, consume(`"tenant":{}`)}, // there is none of that name
		{"subject", true, consume(acme + `"subject":{}`)},
		{"a dimension", true, consume(acme + `"dims":{"d":{}}`)},
		{"a dimension's name", true, consume(acme + `"dims":{{}:"v"}`)},
		{"client.peer", false, consume(acme + `"client":{"peer":{}}`)},
		{"meter", false, consume(acme + `"charges":[{"meter":{}}]`)},
		{"a field's name", false, consume(acme + `{}:1`)},
		{"a hold's subject", true, func(text string) request {
			return post("/v1/holds?deny_status=200", `{"tenant":"acme","meter":"api.calls","subject":`+jsonText(text)+`}`, decide)
		}},
		{"a key of a batch", false, func(text string) request {
			return post("/v1/consume/batch", `{"items":[{"tenant":"acme","meter":"api.calls","idempotency_key":`+jsonText(text)+`}]}`, decide)
		}},
		{"a new tenant", true, func(text string) request { return put("/v1/tenants/"+url.PathEscape(text), `{"plan":"pro"}`) }},
		{"a new meter", false, func(text string) request { return put("/v1/meters/"+url.PathEscape(text), `{"unit":"call"}`) }},
		{"a new plan", false, func(text string) request { return put("/v1/plans/"+url.PathEscape(text), `{"limits":[]}`) }},
		{"a unit", true, func(text string) request { return put("/v1/meters/other", `{"unit":`+jsonText(text)+`}`) }},
		{"a time zone", false, func(text string) request {
			return put("/v1/tenants/other", `{"plan":"pro","timezone":`+jsonText(text)+`}`)
		}},
		{"a key's name", true, func(text string) request {
			return post("/v1/keys", `{"scopes":["read"],"name":`+jsonText(text)+`}`, admin)
		}},
		{"a key's env", false, func(text string) request {
			return post("/v1/keys", `{"scopes":["read"],"env":`+jsonText(text)+`}`, admin)
		}},
		{"an override's reason", true, func(text string) request {
			return put("/v1/tenants/other", `{"plan":"pro","overrides":[{"name":"hourly","limit":5,"until":"2027-01-01T00:00:00Z","reason":`+jsonText(text)+`}]}`)
		}},
	}
	fields = append(fields, textField{"a parameter's name", false, func(text string) request { return get("/v1/meters?" + url.QueryEscape(text) + "=1") }},
		textField{"a field's name in the configuration", false, func(text string) request { return put("/v1/plans/p", `{`+jsonText(text)+`:1}`) }})
	for name, route := range operations {
		method, path, _ := strings.Cut(name, " ")
		for _, parameter := range route.query {
			if method == http.MethodGet {
				path := strings.NewReplacer("{tenant}", "acme", "{hold}", noHold).Replace(matrixParams.Replace(path))
				fields = append(fields, textField{"parameter " + parameter + " of " + path, false, query(path, parameter)})
			}
		}
	}
	return fields
}

// No text that a request may hold gets a control character past the door, and none that
// is let in does more than be there: no answer, header field or line of the log is other
// than without it.
func TestNoTextOfACallerIsMoreThanText(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, field := range textFields(s) {
		for _, text := range slices.Concat(controls, disguises) {
			value := "a" + text + "z"
			a := s.send(field.at(value))
			control := slices.Contains(controls, text)
			switch {
			case a.status >= 500, control && (a.status < 400 || a.status == 429) && !strings.Contains(a.body, `{"status":400,`):
				t.Errorf("%s %q: status = %d, want a refusal; body %s", field.name, value, a.status, a.body)
			case !control && field.ids && a.status >= 300 && a.status != 429:
				t.Errorf("%s %q: status = %d, want that it is taken; body %s", field.name, value, a.status, a.body)
			}
			if !json.Valid([]byte(a.body)) || unescaped.MatchString(strings.TrimSuffix(a.body, "\n")) {
				t.Errorf("%s %q: the answer is no JSON without control characters: %q", field.name, value, a.body)
			}
			for name, values := range a.header {
				if line := strings.Join(values, ""); strings.Contains(line, text) && len(text) > 1 || name == "X-Injected" {
					t.Errorf("%s %q is in the header field %s: %q", field.name, value, name, line)
				}
			}
		}
	}
	logs := s.logs.String()
	if strings.Count(logs, " msg=ready\n") != 1 {
		t.Errorf("the log is %q, want one line that the instance is ready", logs)
	}
	for line := range strings.Lines(logs) {
		// A machine that stalls may look like a clock that was set.
		if !strings.Contains(line, " msg=ready\n") && !strings.Contains(line, ` msg="the database's clock was set" `) {
			t.Errorf("the log has %q, which no call shall add", line)
		}
	}
	s.wantTextsInExports()
}

var unescaped = regexp.MustCompile("[\x00-\x1f\x7f\u0080-\u009f]")

// wantTextsInExports reads the ids that were taken from an export, each as it was sent.
func (s *service) wantTextsInExports() {
	s.t.Helper()
	for _, text := range disguises {
		s.consume(fmt.Sprintf(`{"tenant":"huge","meter":"api.calls","subject":%s}`, jsonText(text+"z"))).want(s.t, 200)
	}
	body := s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?format=csv").want(s.t, 200).body
	rows, err := csv.NewReader(strings.NewReader(body)).ReadAll()
	if err != nil || len(rows) != len(disguises)+1 {
		s.t.Fatalf("CSV has %d rows, %v; want one for each of %d subjects", len(rows), err, len(disguises))
	}
	for i, text := range disguises {
		subject := rows[i+1][slices.Index(rows[0], "subject")]
		if strings.TrimPrefix(subject, "'") != text+"z" || strings.HasPrefix(subject, "=") {
			s.t.Errorf("subject %q is %q in CSV", text+"z", subject)
		}
	}
}
