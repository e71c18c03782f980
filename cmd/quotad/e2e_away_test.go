package main

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pgtest"
)

const awayConfig = `
meters:
  api.calls:  {unit: call}
  auth.login: {unit: attempt}
plans:
  all:
    limits:
      - {name: hourly, meter: api.calls,  algorithm: sliding_log, limit: 1000, window: 1h, on_error: allow}
      - {name: login,  meter: auth.login, algorithm: sliding_log, limit: 10, window: 1h, on_error: local, local_share: 20}
tenants:
  acme: {plan: all}
`

// awayAnswer is what a test looks at of an answer.
type awayAnswer struct {
	status int
	took   time.Duration
	header http.Header
	body   struct {
		Allowed        bool   `json:"allowed"`
		RequestID      string `json:"request_id"`
		Degraded       bool   `json:"degraded"`
		Receipt        any    `json:"receipt"`
		DegradedLimits []struct {
			Name    string `json:"name"`
			OnError string `json:"on_error"`
		} `json:"degraded_limits"`
	}
}

// ask sends one request to consume; key may be "".
func ask(t *testing.T, url, token, meter, key string) awayAnswer {
	t.Helper()
	body := strings.NewReader(`{"tenant":"acme","meter":"` + meter + `","dims":{"model":"small"}}`)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/consume", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	started := time.Now()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := awayAnswer{status: response.StatusCode, took: time.Since(started), header: response.Header}
	if err := json.Unmarshal(text, &a.body); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return a
}

// wantDegraded wants an answer that says in every way that the database was away.
func (a awayAnswer) wantDegraded(t *testing.T, by string) {
	t.Helper()
	if a.status != http.StatusOK || !a.body.Degraded || a.body.Receipt != nil || a.header.Get("Quotad-Degraded") != by ||
		a.header.Get("RateLimit") != "" || a.header.Get("X-RateLimit-Limit") != "" || len(a.body.DegradedLimits) != 1 ||
		a.body.DegradedLimits[0].OnError != by {
		t.Errorf("status %d, header %v, %+v; want it degraded by %s, marked, and without a receipt", a.status, a.header, a.body, by)
	}
}

// fetch reads what needs no key.
func fetch(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url) //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The whole life of an outage over HTTP: answers at once and marked, an instance that is
// killed in it, and a ledger that has every grant once when all is back.
func TestAnOutageIsAnsweredMarkedAndRecordedOnce(t *testing.T) {
	t.Parallel()
	options := devpg.Options{Dir: pgtest.Dir(t), Fsync: true}
	server := pgtest.Server(t, options)
	db := pgtest.On(t, server)
	token := configure(t, db, awayConfig)
	dir := t.TempDir() + "/grants"
	flags := []string{"--degraded-dir", dir, "--degraded-key-age", "10m"}
	serve := startServe(t, db, flags...)
	before := ask(t, serve.url, token, "api.calls", "before")
	if before.status != http.StatusOK || before.body.Degraded {
		t.Fatalf("before the outage: %+v", before)
	}
	pgtest.Crash(t, server)
	granted := map[string]bool{}
	first := ask(t, serve.url, token, "api.calls", "first")
	first.wantDegraded(t, "allow")
	if first.took > 3*time.Second {
		t.Errorf("the first answer took %s", first.took)
	}
	granted[first.body.RequestID] = true
	again := ask(t, serve.url, token, "api.calls", "first")
	if again.body.RequestID != first.body.RequestID || again.header.Get("Idempotent-Replayed") != "true" || again.took > time.Second {
		t.Errorf("a retry in the outage got %+v, want the first answer at once", again)
	}
	for range 10 {
		a := ask(t, serve.url, token, "api.calls", "")
		a.wantDegraded(t, "allow")
		granted[a.body.RequestID] = true
	}
	// It was allowed before the outage and is asked again by who never got the answer.
	ask(t, serve.url, token, "api.calls", "before").wantDegraded(t, "allow")
	for i := range 3 {
		a := ask(t, serve.url, token, "auth.login", "")
		if i == 2 {
			if a.status != http.StatusTooManyRequests || a.header.Get("Quotad-Degraded") != "local" || a.header.Get("Retry-After") == "" {
				t.Errorf("beyond the share: %d %v", a.status, a.header)
			}
			continue
		}
		a.wantDegraded(t, "local")
		granted[a.body.RequestID] = true
	}
	wantOutageShown(t, serve.url, token)
	if err := serve.signal(sigkill); err != nil {
		t.Fatal(err)
	}
	serve.wait(t)
	pgtest.Server(t, options)
	serve = startServe(t, db, flags...)
	eventually(t, "every grant is in the ledger", func() bool {
		return strings.Contains(fetch(t, serve.url+"/metrics"), "quotad_degraded_pending 0")
	})
	if a := ask(t, serve.url, token, "api.calls", "first"); a.body.RequestID != first.body.RequestID || a.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("a retry after the outage got %+v, want the answer of then", a)
	}
	serve.stop(t, sigterm)
	wantAdjusted(t, db, granted)
	if code, out := output(t, "verify", "--database-url", db.OwnerURL); code != 0 {
		t.Errorf("verify ends with %d: %s", code, out)
	}
}

// wantOutageShown wants 14 grants to be shown, and a key that nobody remembers refused
// soon.
func wantOutageShown(t *testing.T, url, token string) {
	t.Helper()
	stranger := ask(t, url, strings.Replace(token, "_", "_x", 2), "api.calls", "")
	if stranger.status == http.StatusOK || stranger.took > 3*time.Second {
		t.Errorf("a key that nobody knows got %d after %s", stranger.status, stranger.took)
	}
	if text := fetch(t, url+"/metrics"); !strings.Contains(text, "quotad_degraded_pending 14") ||
		!strings.Contains(text, `quotad_degraded_total{outcome="allowed"} 14`) {
		t.Error("the metrics do not show what was granted")
	}
	if text := fetch(t, url+"/readyz"); !strings.Contains(text, "14 requests granted without the database") {
		t.Errorf("/readyz says %s", text)
	}
}

// wantAdjusted wants each request once among the ledger's adjust entries, and no other.
func wantAdjusted(t *testing.T, db *pgtest.DB, granted map[string]bool) {
	t.Helper()
	rows, err := db.Owner(t).Query(t.Context(), "select request_id::text from quotad.entry where kind = 'adjust'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	seen := map[string]bool{}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		if seen[id] || !granted[id] {
			t.Errorf("%s is in the ledger twice, or was not granted", id)
		}
		seen[id] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if len(seen) != len(granted) {
		t.Errorf("the ledger has %d of %d grants", len(seen), len(granted))
	}
}

func TestFlagsOfAnOutageAreChecked(t *testing.T) {
	t.Parallel()
	for _, f := range []degradedFlags{{}, {Deadline: time.Millisecond}, {Deadline: time.Minute}, {Deadline: time.Second, KeyAge: -1}} {
		if err := f.validate(); err == nil {
			t.Errorf("%+v is accepted", f)
		}
	}
}
