package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/quota"
)

func TestUnknownPathsAndMethods(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, tt := range []struct {
		method, path string
		status       int
		code         code
		allow        string
	}{
		{"GET", "/v1/consume", 405, codeMethodNotAllowed, "POST"},
		{"DELETE", "/v1/consume", 405, codeMethodNotAllowed, "POST"},
		{"POST", "/v1/tenants/acme/limits", 405, codeMethodNotAllowed, "GET, HEAD"},
		{"POST", "/v1/tenants/a%2Fb", 405, codeMethodNotAllowed, "GET, HEAD, PUT"},
		{"PATCH", "/v1/keys", 405, codeMethodNotAllowed, "GET, HEAD, POST"},
		{"BREW", "/v1/consume", 405, codeMethodNotAllowed, "POST"},
		{"OPTIONS", "/v1/keys/x", 405, codeMethodNotAllowed, "DELETE"},
		{"GET", "/", 404, codeRouteNotFound, ""},
		{"POST", "/v1/consume/", 404, codeRouteNotFound, ""},
		{"POST", "/v1//consume", 404, codeRouteNotFound, ""},
		{"POST", "/v2/consume", 404, codeRouteNotFound, ""},
		{"GET", "/v1/tenants/a/b", 404, codeRouteNotFound, ""},
	} {
		a := s.do(request{method: tt.method, path: tt.path}).want(t, tt.status, tt.code)
		if got := a.header.Get("Allow"); got != tt.allow {
			t.Errorf("%s %s: Allow = %q, want %q", tt.method, tt.path, got, tt.allow)
		}
	}
	head := s.do(request{method: "HEAD", path: "/v1/meters", token: s.token(catalog.KeyRead, "")}).want(t, 200)
	if head.body != "" {
		t.Errorf("HEAD has a body: %s", head.body)
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200)
	golden(t, "healthz", s.do(request{method: "GET", path: "/healthz"}).want(t, 200))
	golden(t, "readyz", s.do(request{method: "GET", path: "/readyz"}).want(t, 200))
	s.handler.Drain()
	golden(t, "readyz_draining", s.do(request{method: "GET", path: "/readyz"}).want(t, 503))
	s.do(request{method: "GET", path: "/healthz"}).want(t, 200)
	s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200) // what still comes in is served

	s.stop()
	a := s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 503, codeShuttingDown)
	if got := a.header.Get("Retry-After"); got != "1" {
		t.Errorf("Retry-After of an instance that stops = %q, want 1", got)
	}
}

// With the database gone nothing is granted: every route says 503 with a time to come
// back, and nothing of what is wrong inside.
func TestDatabaseGoneIs503(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, devpg.Options{})
	s := newServiceOn(t, pgtest.On(t, server), 2*time.Second)
	tokens := map[catalog.KeyScope]string{}
	for _, scope := range catalog.KeyScopes() {
		tokens[scope] = s.token(scope, "")
		s.do(request{method: "GET", path: "/v1/meters", token: tokens[scope]}) // so that its key is cached
	}
	s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, rt := range s.handler.Routes() {
		if rt.Scope == "" {
			continue
		}
		r := request{
			method: rt.Method, token: tokens[rt.Scope],
			path: strings.NewReplacer("{tenant}", "acme", "{key}", "000000000000", "{hold}", noHold).
				Replace(matrixParams.Replace(rt.Pattern) + matrixQueries[rt.Method+" "+rt.Pattern]),
			header: matrixHeaders[rt.Pattern],
			body:   strings.ReplaceAll(matrixBodies[rt.Method+" "+rt.Pattern], "{tenant}", "acme"),
		}
		a := s.do(r)
		if rt.Tenancy == TenancyItems && a.status == http.StatusOK { // its key is still believed
			a = a.results(t)[0]
		}
		a.want(t, http.StatusServiceUnavailable, codeUnavailable)
		if (a.header.Get("Retry-After") == "" && rt.Tenancy != TenancyItems) || a.problem(t).RetryMS == 0 || strings.Contains(a.body, "dial") || strings.Contains(a.body, "connect") {
			t.Errorf("%s %s = %v %s, want Retry-After and nothing from inside", rt.Method, rt.Pattern, a.header, a.body)
		}
	}
	s.do(request{method: "GET", path: "/healthz"}).want(t, 200)
	for until := time.Now().Add(30 * time.Second); ; runtime.Gosched() { // a short outage does not show
		a := s.do(request{method: "GET", path: "/readyz"})
		if a.status == 503 && strings.Contains(a.body, "database") {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("readyz = %d %s, want 503 and that the database does not answer", a.status, a.body)
		}
	}
}

// Labels come from bounded sets: no tenant, key or path is one, whoever asks.
func TestMetricsNameNoCaller(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"acme","subject":"secret-user","meter":"api.calls"}`).want(t, 200)
	s.read(catalog.KeyRead, "/v1/tenants/globex/limits").want(t, 200)
	s.read(catalog.KeyRead, "/v1/there/is/no/such/path").want(t, 404)
	text := s.do(request{method: "GET", path: "/metrics"}).want(t, 200).body
	for _, want := range []string{
		`quotad_http_request_seconds_count{class="2xx",route="POST /v1/consume"} 1`,
		`quotad_http_request_seconds_count{class="2xx",route="GET /v1/tenants/{tenant}/limits"} 1`,
		`quotad_http_request_seconds_count{class="4xx",route="none"} 1`,
		"quotad_decisions_total",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	for _, not := range []string{"acme", "globex", "secret-user", "such/path", "qk_"} {
		if strings.Contains(text, not) {
			t.Errorf("metrics name %q", not)
		}
	}
}

// fails returns the answer to a request whose handler returns err, and the log.
func fails(t *testing.T, err error) (answer, string) {
	t.Helper()
	var log lockedBuffer
	h := &Handler{log: textLogger(&log)}
	h.NewID = func() uuid.UUID { return uuid.UUID{15: 7} }
	w := httptest.NewRecorder()
	c := &call{h: h, w: w, r: httptest.NewRequest("POST", "/v1/consume", nil), route: "/v1/consume"}
	h.fail(c, err)
	return answer{w.Code, w.Header(), w.Body.String()}, log.String()
}

// A driverError is as the driver's error of a connection that broke under a statement,
// whose own type it does not export.
type driverError struct{}

func (driverError) Error() string     { return "conn closed" }
func (driverError) SafeToRetry() bool { return false }

// closedConnectionError is what the driver says of a connection that broke earlier.
func closedConnectionError(t *testing.T) error {
	t.Helper()
	conn, err := pgconn.Connect(t.Context(), pgtest.New(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), "commit").ReadAll()
	return err
}

// Every code of the engine, and every kind of trouble below it, has its status; what
// went wrong inside is in the log, under the id that the caller sees, and nowhere else.
func TestEveryErrorIsAProblem(t *testing.T) {
	cause := errors.New("dial tcp 10.1.2.3:5432: password of quotad is hunter2")
	for _, tt := range []struct {
		name       string
		err        error
		status     int
		code       code
		retryAfter string
		logged     bool
	}{
		{"invalid", &quota.Error{Code: quota.CodeInvalidRequest, Faults: []quota.Fault{{Field: "a", Rule: "b"}}}, 400, codeInvalidRequest, "", false},
		{"meter", &quota.Error{Code: quota.CodeMeterNotFound}, 400, codeMeterNotFound, "", false},
		{"overflow", &quota.Error{Code: quota.CodeAmountOverflow}, 400, codeAmountOverflow, "", false},
		{"tenant", &quota.Error{Code: quota.CodeTenantNotFound}, 404, codeTenantNotFound, "", false},
		{"key", &quota.Error{Code: quota.CodeKeyReused}, 422, codeKeyReused, "", false},
		{"overloaded", &quota.Error{Code: quota.CodeOverloaded, RetryAfter: 1500 * time.Millisecond}, 503, codeOverloaded, "2", true},
		{"unavailable", &quota.Error{Code: quota.CodeUnavailable, Err: cause}, 503, codeUnavailable, "1", true},
		{"unknown outcome", &quota.Error{Code: quota.CodeOutcomeUnknown, Err: cause}, 503, codeOutcomeUnknown, "1", true},
		{"stopping", &quota.Error{Code: quota.CodeShuttingDown, RetryAfter: time.Second}, 503, codeShuttingDown, "1", true},
		{"ours", &quota.Error{Code: quota.CodeInternal, Err: cause}, 500, codeInternal, "", true},
		{"a code that nobody knows", &quota.Error{Code: "surprise", Err: cause}, 500, codeInternal, "", true},
		{"any error", fmt.Errorf("read: %w", cause), 500, codeInternal, "", true},
		{"deadline", fmt.Errorf("read: %w", context.DeadlineExceeded), 503, codeUnavailable, "1", true},
		{"no connection", fmt.Errorf("read: %w", &net.OpError{Op: "dial", Err: cause}), 503, codeUnavailable, "1", true},
		{"connection lost", fmt.Errorf("read: %w", io.ErrUnexpectedEOF), 503, codeUnavailable, "1", true},
		{"connection found closed", fmt.Errorf("commit: %w", closedConnectionError(t)), 503, codeUnavailable, "1", true},
		{"connection found closed at the reply", fmt.Errorf("begin: %w", driverError{}), 503, codeUnavailable, "1", true},
		{"server stops", &pgconn.PgError{Code: "57P01", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"too many clients", &pgconn.PgError{Code: "53300", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"unconfirmed", fmt.Errorf("commit: %w: hunter2", catalog.ErrUnconfirmed), 503, codeOutcomeUnknown, "1", true},
		{"login refused", &pgconn.PgError{SeverityUnlocalized: "FATAL", Code: "28P01", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"key not told", fmt.Errorf("look up: %w: hunter2", catalog.ErrNoAnswer), 503, codeUnavailable, "1", true},
		{"disk full", &pgconn.PgError{Code: "53100", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"disk broken", &pgconn.PgError{Code: "58030", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"read-only", &pgconn.PgError{Code: "25006", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"recovery conflict", &pgconn.PgError{Code: "40001", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"lock timeout", &pgconn.PgError{Code: "55P03", Message: "hunter2"}, 503, codeUnavailable, "1", true},
		{"statement refused", &pgconn.PgError{SeverityUnlocalized: "ERROR", Code: "42P01", Message: "hunter2"}, 500, codeInternal, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, log := fails(t, tt.err)
			a.want(t, tt.status, tt.code)
			if got := a.header.Get("Retry-After"); got != tt.retryAfter {
				t.Errorf("Retry-After = %q, want %q", got, tt.retryAfter)
			}
			if strings.Contains(a.body, "hunter2") || strings.Contains(a.body, "10.1.2.3") {
				t.Errorf("the answer shows what is inside: %s", a.body)
			}
			if logged := strings.Contains(log, "00000000-0000-0000-0000-000000000007"); logged != tt.logged {
				t.Errorf("log = %q, want a line with the request id: %v", log, tt.logged)
			}
		})
	}
	unknown, _ := fails(t, &quota.Error{Code: quota.CodeOutcomeUnknown})
	if p := unknown.problem(t); p.Outcome != "unknown" {
		t.Errorf("outcome = %q, want unknown", p.Outcome)
	}
}

// Every code has a row in the table, and every row a status that fits a problem.
func TestEveryCodeHasAStatus(t *testing.T) {
	for code, kind := range problemKinds {
		if kind.status < 400 || kind.status > 599 || kind.title == "" || strings.HasSuffix(kind.title, ".") {
			t.Errorf("problemKinds[%s] = %+v", code, kind)
		}
	}
	for _, code := range []code{
		codeInvalidRequest, codeTenantNotFound, codeMeterNotFound, codeKeyReused, codeOverloaded,
		codeUnavailable, codeOutcomeUnknown, codeShuttingDown, codeAmountOverflow, codeInternal,
	} {
		if _, ok := problemKinds[code]; !ok {
			t.Errorf("problemKinds has no row for %s", code)
		}
	}
}

// A panic is a problem like any other, and the instance goes on.
func TestPanicIsAProblem(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, answered := range []bool{false, true} {
		serve := s.handler.serve(Route{Method: "GET", Pattern: "/boom", handle: func(c *call) error {
			if answered {
				c.reply(http.StatusOK, headerJSON, []byte("{}"))
			}
			panic("hunter2")
		}})
		w := httptest.NewRecorder()
		serve(w, httptest.NewRequest("GET", "/boom", nil))
		a := answer{w.Code, w.Header(), w.Body.String()}
		if answered {
			a.want(t, http.StatusOK)
		} else {
			a.want(t, http.StatusInternalServerError, codeInternal)
		}
		if strings.Contains(a.body, "hunter2") {
			t.Errorf("the answer shows the panic: %s", a.body)
		}
		if log := s.logs.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "hunter2") {
			t.Errorf("log = %s, want an error with the panic", log)
		}
	}
	s.consume(`{"tenant":"acme","meter":"api.calls"}`).want(t, 200)
}

// A caller that hangs up is not a fault of ours: it counts as 4xx and logs nothing. If
// it still reads, it must not take an empty 200 for leave to spend.
func TestCallerGoneIsNoError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var log lockedBuffer
	h := &Handler{log: textLogger(&log)}
	h.NewID = uuid.New
	w := httptest.NewRecorder()
	c := &call{h: h, w: w, r: httptest.NewRequest("POST", "/v1/consume", nil).WithContext(ctx)}
	h.fail(c, fmt.Errorf("decide: %w", ctx.Err()))
	answer{w.Code, w.Header(), w.Body.String()}.want(t, http.StatusServiceUnavailable, codeOutcomeUnknown)
	if log.String() != "" || c.status != statusClientGone {
		t.Errorf("log %q, status %d; want no line and %d", log.String(), c.status, statusClientGone)
	}
}

// A body that trickles in ends with the server's patience, as a 408.
func TestSlowBodyIsTimedOut(t *testing.T) {
	t.Parallel()
	s := newService(t)
	slow := httptest.NewUnstartedServer(s.handler)
	slow.Config.ReadTimeout = 200 * time.Millisecond
	slow.Start()
	defer slow.Close()
	conn, err := net.Dial("tcp", strings.TrimPrefix(slow.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST /v1/consume HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", s.token(catalog.KeyDecide, ""))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	answer{response.StatusCode, response.Header, string(text)}.want(t, http.StatusRequestTimeout, codeRequestTimeout)
}

// A body without a length is bounded as one with a length is.
func TestChunkedBodyIsBounded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for size, want := range map[int]int{consumeBytesMax: 400, consumeBytesMax + 1: 413} {
		body := struct{ io.Reader }{strings.NewReader(strings.Repeat(" ", size))} // hides its length
		r, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/v1/consume", body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+s.token(catalog.KeyDecide, ""))
		response, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			t.Errorf("status of %d bytes = %d, want %d", size, response.StatusCode, want)
		}
	}
}

// During an outage every request fails the same way; the log must not grow by each.
func TestWarningsAreLimited(t *testing.T) {
	var l lineLimit
	now := time.Unix(1_800_000_000, 0)
	passed := 0
	for range 1000 {
		if l.allow(now) {
			passed++
		}
	}
	if passed != linesPerSecondMax || !l.allow(now.Add(time.Second)) {
		t.Errorf("%d lines in a second, want %d, and more in the next", passed, linesPerSecondMax)
	}
}

// The bodies of errors do not change unnoticed either.
func TestProblemBodies(t *testing.T) {
	t.Parallel()
	s := newService(t)
	golden(t, "problem_400", s.consume(`{"tenant":7,"meter":"API","cost":1.5}`).want(t, 400))
	golden(t, "problem_401", s.do(request{method: "GET", path: "/v1/meters"}).want(t, 401))
	golden(t, "problem_403", s.do(request{method: "GET", path: "/v1/meters", token: s.token(catalog.KeyDecide, "")}).want(t, 403))
	golden(t, "problem_404", s.read(catalog.KeyAudit, "/v1/tenants/acme/entries/1").want(t, 404))
	golden(t, "problem_405", s.read(catalog.KeyRead, "/v1/consume").want(t, 405))
	s.consume(`{"tenant":"acme","meter":"api.calls"}`, "Idempotency-Key", "k").want(t, 200)
	golden(t, "problem_422", s.consume(`{"tenant":"acme","meter":"api.calls","cost":2}`, "Idempotency-Key", "k").want(t, 422))
	a, _ := fails(t, &quota.Error{Code: quota.CodeOutcomeUnknown})
	golden(t, "problem_503", a)
}
