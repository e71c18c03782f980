package sim

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serverOf is a server that ends with the test.
func serverOf(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server.URL
}

func endless(url string) func(int, []Call) []Request {
	return func(int, []Call) []Request {
		return []Request{{URL: url, Tenant: "acme", Charges: []Charge{{Meter: "calls", Cost: 1}}, Tag: "a"}}
	}
}

// A slip in a test must end the test, not the machine.
func TestALoadWithoutBoundsIsRefused(t *testing.T) {
	t.Parallel()
	good := Load{Token: "t", Workers: 1, Calls: 1, Time: time.Second, Next: endless("")}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*Load){
		"Token and Next are required": func(l *Load) { l.Token = "" },
		"Workers must be":             func(l *Load) { l.Workers = connsMax + 1 },
		"Calls must be":               func(l *Load) { l.Calls = 0 },
		"Time must be":                func(l *Load) { l.Time = 0 },
	} {
		l := good
		change(&l)
		if _, err := l.Run(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run = %v, want an error with %q", err, want)
		}
	}
	many := good
	many.Next = func(int, []Call) []Request { return make([]Request, togetherMax+1) }
	if _, err := many.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "at once") {
		t.Errorf("Run = %v, want too many at once", err)
	}
}

func TestALoadEndsAtItsCountAndAtItsTime(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	url := serverOf(t, func(w http.ResponseWriter, _ *http.Request) {
		served.Add(1)
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, "{}")
	})
	calls, err := Load{Token: "t", Workers: 3, Calls: 20, Time: time.Minute, Next: endless(url)}.Run(t.Context())
	if err != nil || len(calls) != 20 || served.Load() != 20 {
		t.Errorf("Run made %d calls, %v; %d arrived; want 20", len(calls), err, served.Load())
	}
	if n := Count(calls)[OutcomeRefused]; n != 20 {
		t.Errorf("%d calls were refused, want 20", n)
	}
	started := time.Now()
	calls, err = Load{Token: "t", Workers: 2, Calls: callsMax, Time: 50 * time.Millisecond, Next: endless(url)}.Run(t.Context())
	if took := time.Since(started); err != nil || len(calls) == 0 || took > 20*time.Second {
		t.Errorf("Run made %d calls in %s, %v; want to end after 50 ms", len(calls), took, err)
	}
	for i := range calls[1:] {
		if calls[i+1].Started.Before(calls[i].Started) {
			t.Fatal("calls are not in the order they were begun")
		}
	}
}

func TestALoadStaysOnThisMachine(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"http://192.0.2.1:80", "http://example.invalid"} {
		calls, err := Load{Token: "t", Workers: 1, Calls: 1, Time: time.Minute, Next: endless(url)}.Run(t.Context())
		if err != nil || calls[0].Outcome != OutcomeUnknown || !strings.Contains(calls[0].Body, "not a loopback address") {
			t.Errorf("call to %s = %+v, %v; want that it is not a loopback address", url, calls, err)
		}
	}
}

// A transport that sends a keyed request again by itself would hide that an instance
// dropped it.
func TestARequestIsSentOnce(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	url := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		io.Copy(io.Discard, r.Body)
		if served.Load() > 1 {
			panic(http.ErrAbortHandler)
		}
		io.WriteString(w, `{}`)
	})
	calls, err := Load{Token: "t", Workers: 1, Calls: 2, Time: time.Minute, Next: func(int, []Call) []Request {
		return []Request{{URL: url, Tenant: "acme", Key: "k"}}
	}}.Run(t.Context())
	if err != nil || len(calls) != 2 || served.Load() != 2 {
		t.Fatalf("%d calls, %v; %d arrived; want 2", len(calls), err, served.Load())
	}
	if calls[1].Outcome != OutcomeUnknown || calls[1].Status != 0 {
		t.Errorf("the dropped call is %s with status %d, want unknown without one", calls[1].Outcome, calls[1].Status)
	}
}

// With Connect nobody sends before everybody is connected.
func TestWorkersBeginTogether(t *testing.T) {
	t.Parallel()
	const workers = 20
	var connected, early atomic.Int64
	url := serverOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" {
			connected.Add(1)
		} else if connected.Load() != workers {
			early.Add(1)
		}
		io.WriteString(w, "{}")
	})
	_, err := Load{
		Token: "t", Workers: workers, Calls: workers, Time: time.Minute, Next: endless(url),
		Connect: func(int) string { return url },
	}.Run(t.Context())
	if err != nil || early.Load() != 0 {
		t.Errorf("%d calls were early, %v", early.Load(), err)
	}
}

// What an answer says decides what is asked of the ledger, so each kind is pinned.
func TestAnAnswerIsReadAsWhatItIs(t *testing.T) {
	t.Parallel()
	const (
		id      = `"request_id":"0198b7a0-0000-7000-8000-000000000001"`
		receipt = `"receipt":{"first_seq":1,"seq":1,"hash":"00"}`
		limits  = `"limits":[{"name":"log","meter":"calls","limit":5,"violated":true}]`
	)
	for _, tt := range []struct {
		status      int
		retry, body string
		outcome     Outcome
		fault       string
	}{
		{200, "", `{"allowed":true,"tenant":"acme",` + id + `,` + receipt + `}`, OutcomeAllowed, ""},
		{200, "", `{"allowed":true,"tenant":"acme",` + id + `}`, OutcomeAllowed, "receipt"},
		{200, "", `{"allowed":true,"tenant":"acme",` + receipt + `}`, OutcomeAllowed, "request_id"},
		{200, "", `{"allowed":true,"tenant":"globex",` + id + `,` + receipt + `}`, OutcomeAllowed, "about tenant"},
		{200, "", `{"allowed":false,"tenant":"acme",` + id + `}`, OutcomeAllowed, "allowed: false"},
		{200, "", `{"allowed":`, OutcomeUnknown, "not JSON"},
		{429, "2", `{"allowed":false,"tenant":"acme",` + id + `,"retry_after_ms":1001,` + limits + `}`, OutcomeDenied, ""},
		{429, "1", `{"allowed":false,"tenant":"acme",` + id + `,"retry_after_ms":1001,` + limits + `}`, OutcomeDenied, "Retry-After"},
		{429, "", `{"allowed":false,"tenant":"acme",` + id + `,` + limits + `}`, OutcomeDenied, ""},
		{429, "", `{"allowed":false,"tenant":"acme",` + id + `}`, OutcomeDenied, "names no limit"},
		{429, "", `{"allowed":false,"reason":"tenant_suspended","tenant":"acme",` + id + `}`, OutcomeDenied, ""},
		{429, "", `{"allowed":false,"reason":"tenant_suspended","tenant":"acme",` + id + `,` + limits + `}`, OutcomeDenied, "blames limits"},
		{429, "", `{"allowed":false,"reason":"meter_not_in_plan","tenant":"acme",` + id + `,` + limits + `}`, OutcomeDenied, "blames limits"},
		{404, "", `{"code":"tenant_not_found"}`, OutcomeRefused, ""},
		{503, "1", `{"code":"unavailable"}`, OutcomeRefused, ""},
		{503, "1", `{"code":"outcome_unknown","outcome":"unknown"}`, OutcomeUnknown, ""},
		{500, "", `{"code":"internal"}`, OutcomeUnknown, ""},
	} {
		c := Call{Request: Request{Tenant: "acme"}}
		c.answered(tt.status, http.Header{"Retry-After": {tt.retry}}, []byte(tt.body))
		if c.Outcome != tt.outcome || (c.Fault == "") != (tt.fault == "") || !strings.Contains(c.Fault, tt.fault) {
			t.Errorf("%d %s is %s with fault %q, want %s with %q", tt.status, tt.body, c.Outcome, c.Fault, tt.outcome, tt.fault)
		}
	}
}

func TestQuantilesAreOfAnsweredCalls(t *testing.T) {
	t.Parallel()
	calls := []Call{{Took: time.Hour}}
	if got := TookAt(calls, 500); got != 0 {
		t.Errorf("TookAt without an answer = %s, want 0", got)
	}
	for i := range 1000 {
		calls = append(calls, Call{Status: 200, Took: time.Duration(i) * time.Millisecond})
	}
	if got := fmt.Sprint(TookAt(calls, 500), TookAt(calls, 990), TookAt(calls, 1000)); got != "500ms 990ms 999ms" {
		t.Errorf("p50, p99, most = %s", got)
	}
	if got := Statuses(calls); got[0] != 1 || got[200] != 1000 {
		t.Errorf("Statuses = %v", got)
	}
}
