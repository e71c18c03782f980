package api

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

// insides are what no caller may read, nor anybody who reads the log: statements, the
// driver's words, where in the program something happened, and how to log in.
var insides = regexp.MustCompile(`(?i)\bselect\b.+\bfrom\b|insert into|update quotad|quotad\.\w+_?id\b|SQLSTATE|pgx|pgconn|goroutine \d|\w\.go:\d|runtime error|postgres(ql)?://|host=|password|/tmp/|quotad_test`)

// secretIn returns the first key's secret that a text holds.
func (s *service) secretIn(text string) string {
	for _, token := range s.tokens {
		if secret := token[strings.LastIndex(token, "_")+1:]; strings.Contains(text, secret) {
			return secret
		}
	}
	return ""
}

// No answer to any key on any route, and no line of the log, holds a key's secret or
// something of the inside; a new key's secret is in the one answer that gives it.
func TestNoAnswerAndNoLogLineGivesAnythingAway(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, scope := range catalog.KeyScopes() {
		s.token(scope, "")
		if scope != catalog.KeyAdmin {
			s.token(scope, "huge")
		}
	}
	stranger := "qk_live_000000000000_" + strings.Repeat("S", 33)
	s.tokens["stranger"], s.tokens["malformed"] = stranger, "qk_live_"+strings.Repeat("M", 46)
	check := func(r request, a answer) {
		t.Helper()
		text := a.body
		for name, values := range a.header {
			text += name + strings.Join(values, " ")
		}
		if secret := s.secretIn(text); secret != "" {
			t.Errorf("%s %s gives a secret away: %s", r.method, r.path, text)
		}
		if a.status == http.StatusOK && (strings.HasPrefix(r.path, "/openapi.json") || strings.HasPrefix(r.path, "/metrics")) {
			return // they are long, and have words of their own
		}
		if found := insides.FindString(a.body); found != "" {
			t.Errorf("%s %s shows %q: %s", r.method, r.path, found, a.body)
		}
	}
	for _, rt := range s.handler.Routes() {
		for _, token := range s.tokens {
			valid := s.matrixRequestOf(rt, "globex", token, noHold)
			for _, r := range hostile(valid) {
				a := s.send(r)
				if rt.Pattern != "/v1/keys" || a.status != http.StatusCreated {
					check(r, a) // that one gives a secret once, which no later answer is to hold
				}
			}
		}
	}
	made := s.admin("POST", "/v1/keys", `{"scopes":["read"]}`).want(t, http.StatusCreated)
	s.tokens["made"] = tokenPattern.FindString(made.body)
	for _, path := range []string{"/v1/keys", "/v1/changes?object=key", "/metrics", "/readyz", "/openapi.json"} {
		check(request{method: "GET", path: path}, s.admin("GET", path, "").want(t, 200))
	}
	if logs := s.logs.String(); s.secretIn(logs) != "" || insides.MatchString(logs) {
		t.Errorf("the log gives away %q: %s", insides.FindString(logs), logs)
	}
	s.wantNoSecretStored()
}

// hostile are a request as it is, and with what a careless server would quote or run.
func hostile(r request) []request {
	plain, _, _ := strings.Cut(r.path, "?")
	list := []request{r}
	for _, query := range []string{"?'+or+1=1", "?limit=%27+or+1%3D1&cursor=%27--&seq=x&at=%27"} {
		asked := r
		asked.path = plain + query
		list = append(list, asked)
	}
	if r.body != "" {
		broken := r
		broken.body = `{"tenant":"' or 1=1","meter":"` + r.token
		list = append(list, broken)
	}
	return list
}

// wantNoSecretStored looks for the secrets in the rows of keys and of the history.
func (s *service) wantNoSecretStored() {
	s.t.Helper()
	for _, table := range []string{"api_key", "config_change"} {
		var text string
		err := s.db.Owner(s.t).QueryRow(s.t.Context(), "select coalesce(string_agg(x::text, ' '), '') from quotad."+table+" x").Scan(&text)
		if err != nil {
			s.t.Fatal(err)
		}
		if text == "" || s.secretIn(text) != "" {
			s.t.Errorf("%s is empty or holds a key's secret", table)
		}
	}
}

// What is open to everyone says the same to whoever asks: with no key, a good one, or one
// that is unknown.
func TestOpenRoutesSayNoMoreToAKey(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"globex","subject":"secret-user","meter":"api.calls"}`).want(t, 200)
	numbers := regexp.MustCompile(`[0-9][0-9.e+-]*`)
	for _, route := range openRoutes {
		_, path, _ := strings.Cut(route, " ")
		var first string
		for i, token := range []string{"", s.token(catalog.KeyAdmin, ""), s.token(catalog.KeyRead, "huge"), "x"} {
			body := numbers.ReplaceAllString(s.do(request{method: "GET", path: path, token: token}).want(t, 200).body, "0")
			if i == 0 {
				first = body
			}
			if body != first {
				t.Errorf("%s with key %d differs from what it says without one", path, i)
			}
			for _, not := range []string{"globex", "secret-user", "huge"} {
				if strings.Contains(body, not) && path != "/openapi.json" {
					t.Errorf("%s names %s", path, not)
				}
			}
		}
	}
}
