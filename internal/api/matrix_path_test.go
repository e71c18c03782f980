package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

// raw sends bytes as they are, which no client library would, and reads the answer to the
// method that they begin with.
func (s *service) raw(text string) answer {
	s.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(s.t.Context(), "tcp", s.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
	method, _, _ := strings.Cut(text, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		s.t.Fatalf("%.200q: %v", text, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatalf("%.200q: %v", text, err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// rawRequest is a request to the letter: its target goes out as it is.
func rawRequest(method, target, token, body string, header ...string) string {
	text := method + " " + target + " HTTP/1.1\r\nHost: quotad\r\nConnection: close\r\n"
	if token != "" {
		text += "Authorization: Bearer " + token + "\r\n"
	}
	for _, line := range header {
		text += line + "\r\n"
	}
	return text + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body)
}

// target is where a valid request of the route goes, and its body.
func (rt Route) target(tenant string) (path, body string) {
	name := rt.Method + " " + rt.Pattern
	path = strings.NewReplacer("{tenant}", tenant, "{key}", "000000000000", "{hold}", noHold).
		Replace(matrixParams.Replace(rt.Pattern) + matrixQueries[name])
	return path, strings.ReplaceAll(matrixBodies[name], "{tenant}", tenant)
}

// A path takes the methods of the table and no other, whatever headers say: the rest is
// 405 with those that it takes, and carries nothing out.
func TestEveryPathAgainstEveryMethod(t *testing.T) {
	t.Parallel()
	s := newService(t)
	takes := func(path string) (methods []string) { // one path may fit two patterns
		for _, rt := range s.handler.Routes() {
			pattern := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(rt.Pattern, "[^/]+")
			if !regexp.MustCompile("^" + pattern + "$").MatchString(path) {
				continue
			}
			methods = append(methods, rt.Method)
			if rt.Method == http.MethodGet {
				methods = append(methods, http.MethodHead)
			}
		}
		return methods
	}
	admin := s.token(catalog.KeyAdmin, "")
	methods := []string{"GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "get", "PRI"}
	for _, rt := range s.handler.Routes() {
		path, _ := rt.target("huge")
		plain, _, _ := strings.Cut(path, "?")
		for _, method := range methods {
			if slices.Contains(takes(plain), method) {
				continue
			}
			a := s.raw(rawRequest(method, path, admin, "", "X-HTTP-Method-Override: "+rt.Method, "X-Secret: quoted-back"))
			if a.status != http.StatusMethodNotAllowed {
				t.Errorf("%s %s = %d %s, want 405", method, path, a.status, a.body)
			}
			for _, allowed := range takes(plain) {
				if !slices.Contains(strings.Split(a.header.Get("Allow"), ", "), allowed) {
					t.Errorf("%s %s: Allow = %q lacks %s", method, path, a.header.Get("Allow"), allowed)
				}
			}
			if strings.Contains(a.body, "quoted-back") || strings.Contains(a.body, admin) {
				t.Errorf("%s %s gives the request back: %s", method, path, a.body)
			}
		}
		if rt.Method == http.MethodGet { // HEAD is let in as GET is, and no further
			for _, token := range []string{"", admin, s.token(catalog.KeyDecide, "globex")} {
				get, head := s.raw(rawRequest("GET", path, token, "")), s.raw(rawRequest("HEAD", path, token, ""))
				if get.status != head.status || head.body != "" {
					t.Errorf("HEAD %s = %d %q, and GET is %d", path, head.status, head.body, get.status)
				}
			}
		}
	}
	a := s.raw(rawRequest("GET", "/v1/meters/api.calls", admin, "", "X-HTTP-Method-Override: PUT", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE"))
	if a.status != 200 || !strings.Contains(a.body, `"unit":"call"`) {
		t.Errorf("GET with another method in a header = %d %s, want what GET gives", a.status, a.body)
	}
}

// foreignTenants are ways to write globex into a path where a key of huge is looked at:
// as it is to be understood, or as something between the caller and quotad may have.
var foreignTenants = []string{
	"globex", "%67lobex", "%67%6c%6f%62%65%78", "%2567lobex", "globex%00", "globex%20", "globex%2F", "globex%2f..%2fhuge",
	"huge%2F..%2Fglobex", "huge%2f%2e%2e%2fglobex", "huge/../globex", "./globex", "%2e/globex", "../tenants/globex", "/globex",
	"huge%5C..%5Cglobex", `huge\..\globex`, "globex;x", "globex;huge", "huge;globex", "globex,huge", "huge%0Aglobex", "huge%0D%0Aglobex",
	"GLOBEX", "globex.", "{tenant}", "*", "%", "%g", "%2", "%c0%ae%c0%ae%c0%afglobex", "globex%ff", "huge%23globex", "huge%3Fglobex",
	"huge?tenant=globex", "huge?tenant=globex&x=", "huge?x=1#globex", "huge#/../globex", "huge%2Fglobex",
}

// However another tenant is written into a path, a bound key sees nothing of it.
func TestNoPathLeadsToAnotherTenant(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, tenant := range []string{"globex", "huge"} {
		s.consume(`{"tenant":"`+tenant+`","subject":"subject-of-`+tenant+`","meter":"api.calls"}`).want(t, 200)
	}
	for _, rt := range s.handler.Routes() {
		if rt.Tenancy != TenancyPath && rt.Tenancy != TenancyQuery {
			continue
		}
		token := s.token(rt.boundScope(), "huge")
		for _, written := range foreignTenants {
			path, body := rt.target(written)
			a := s.raw(rawRequest(rt.Method, path, token, body))
			known := a.status >= 400 && a.status < 500 && a.header.Get("Content-Type") == headerProblem[0]
			if bare := a.status == http.StatusBadRequest && a.header.Get("Content-Type") == "text/plain; charset=utf-8"; !known && !bare {
				if a.status != 200 || strings.Contains(a.body, "globex") || !strings.HasPrefix(written, "huge") {
					t.Errorf("%s %s = %d %s", rt.Method, path, a.status, a.body)
				}
			}
			if strings.Contains(a.body, "subject-of-globex") || strings.Contains(a.body, "Asia/Jakarta") {
				t.Errorf("%s %s shows %s", rt.Method, path, a.body)
			}
		}
	}
}

// respelt are other spellings of a path that a proxy may have let through under a rule
// for the plain one.
func respelt(path string) []string {
	plain, query, _ := strings.Cut(path, "?")
	if query != "" {
		query = "?" + query
	}
	return []string{
		plain + "/" + query, "/" + path, "//" + path, "/." + path, "/x/.." + path, "/%2e" + path, plain + "/." + query, plain + "//" + query,
		plain + "/.." + query, plain + "%20" + query, plain + "%00" + query, plain + "%2F" + query, plain + ";x" + query, plain + ".json" + query,
		strings.ToUpper(plain) + query, strings.ReplaceAll(plain, "/", "%2F") + query, strings.ReplaceAll(plain, "/", `\`) + query,
		strings.ReplaceAll(plain, "/", "//") + query, "/healthz/.." + path, "/healthz;" + path, "/metrics/.." + path, "/openapi.json#" + path,
	}
}

// No spelling of a path gets past the door: without a key nothing but the open routes
// answers, and with the wrong scope nothing at all.
func TestNoSpellingOfAPathNeedsLess(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, rt := range s.handler.Routes() {
		if rt.Scope == "" {
			continue
		}
		path, body := rt.target("huge")
		wrong := s.token(catalog.KeyDecide, "")
		if rt.Scope == catalog.KeyDecide {
			wrong = s.token(catalog.KeyAudit, "")
		}
		for _, token := range []string{"", wrong} {
			plain := s.raw(rawRequest(rt.Method, path, token, body))
			absolute := s.raw(rawRequest(rt.Method, "http://elsewhere.example"+path, token, body))
			if plain.status != absolute.status || plain.status != 401 && plain.status != 403 {
				t.Errorf("%s %s = %d, in absolute form %d; want 401 or 403", rt.Method, path, plain.status, absolute.status)
			}
			for _, target := range respelt(path) {
				if a := s.raw(rawRequest(rt.Method, target, token, body)); a.status < 400 || a.status >= 500 {
					t.Errorf("%s %s with key %.12q = %d %s, want a 4xx", rt.Method, target, token, a.status, a.body)
				}
			}
		}
	}
}

// What a proxy or a browser may add changes nothing about who is let in, or where to.
func TestHeadersOfTheWayLetNobodyIn(t *testing.T) {
	t.Parallel()
	s := newService(t)
	admin, bound := s.token(catalog.KeyAdmin, ""), s.token(catalog.KeyRead, "huge")
	const path = "/v1/tenants/globex"
	get := func(target string, lines ...string) string {
		return "GET " + target + " HTTP/1.1\r\n" + strings.Join(append(lines, "Connection: close"), "\r\n") + "\r\n\r\n"
	}
	key := "Authorization: Bearer " + bound
	for _, tt := range []struct {
		name, text string
		status     int
	}{
		{"another host", get(path, "Host: elsewhere.example", key), 403},
		{"no host", get(path, key), 400},
		{"two hosts", get(path, "Host: a", "Host: b", key), 400},
		{"a host that is none", get(path, "Host: a b", key), 400},
		{"a host with a path", get(path, "Host: a/v1/keys", key), 400},
		{"forwarded as another", get(path, "Host: a", key, "X-Forwarded-Host: localhost", "X-Forwarded-For: 127.0.0.1", "X-Real-IP: ::1", "Forwarded: for=127.0.0.1"), 403},
		{"rewritten", get("/v1/meters", "Host: a", "X-Original-URL: /v1/keys", "X-Rewrite-URL: /healthz"), 401},
		{"rewritten to what is open", get(path, "Host: a", "X-Original-URL: /healthz", "X-Forwarded-Prefix: /healthz"), 401},
		{"a user named by a proxy", get(path, "Host: a", "X-Forwarded-User: admin", "Remote-User: admin", "X-Tenant: globex"), 401},
		{"two keys", get(path, "Host: a", key, "Authorization: Bearer "+admin), 401},
		{"two keys in one line", get(path, "Host: a", key+", Bearer "+admin), 401},
		{"a key with more behind it", get(path, "Host: a", "Authorization: Bearer "+admin+" x"), 401},
		{"another scheme", get(path, "Host: a", "Authorization: Basic "+admin), 401},
		{"no scheme", get(path, "Host: a", "Authorization: "+admin), 401},
		{"a cookie", get(path, "Host: a", "Cookie: token="+admin), 401},
		{"in the query", get(path+"?access_token="+admin, "Host: a"), 401},
		{"for the proxy", get(path, "Host: a", "Proxy-Authorization: Bearer "+admin), 401},
		{"NUL behind it", get(path, "Host: a", "Authorization: Bearer "+admin+"\x00"), 400},
		{"folded", get(path, "Host: a", "Authorization: Bearer", " "+admin), 200}, // one line, as RFC 9112 lets it be read
		{"scheme in capitals", get(path, "Host: a", "Authorization: BEARER "+admin), 200},
		{"a name before its colon has a space", get(path, "Host: a", "Authorization : Bearer "+admin), 400},
	} {
		if a := s.raw(tt.text); a.status != tt.status {
			t.Errorf("%s: status = %d, want %d; body %s", tt.name, a.status, tt.status, a.body)
		}
	}
}
