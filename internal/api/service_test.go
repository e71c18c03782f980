package api

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/quota"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

var update = flag.Bool("update", false, "write the golden files anew")

// testConfig is what most tests are about: a tenant with two limits on one meter, one
// with a weighted meter, one that is suspended, and ids that need escapes in a path.
const testConfig = `
meters:
  api.calls:  {unit: call}
  llm.tokens: {unit: token, weights: {input: 1, output: 4, cached: 0.1}}
  unplanned:  {unit: call}
plans:
  pro:
    limits:
      - {name: hourly, meter: api.calls, algorithm: sliding_log, limit: 10, window: 1h}
      - {name: burst, meter: api.calls, algorithm: token_bucket, capacity: 5, refill: 2/1s}
      - {name: watch, meter: api.calls, algorithm: sliding_log, limit: 1, window: 1m, mode: shadow}
      - {name: tpm, meter: llm.tokens, algorithm: fixed_window, limit: 1000, window: 1m}
  per-user:
    limits:
      - {name: each, meter: api.calls, algorithm: sliding_log, limit: 2, window: 1h, scope: subject}
  blocked:
    limits:
      - {name: off, meter: api.calls, algorithm: sliding_log, limit: 0, window: 1h}
  huge:
    limits:
      - {name: all, meter: api.calls, algorithm: sliding_log, unlimited: true, window: 1h}
tenants:
  acme:      {plan: pro}
  globex:    {plan: pro, timezone: Asia/Jakarta, billing_anchor: 15}
  users:     {plan: per-user}
  blocked:   {plan: blocked}
  suspended: {plan: pro, status: suspended}
  huge:      {plan: huge}
  "a/b":     {plan: pro}
  "a b%":    {plan: pro}
  "café":    {plan: pro}
`

// A service is the whole contract on a private database.
type service struct {
	*httptest.Server
	t       *testing.T
	db      *pgtest.DB
	store   *catalog.Store
	handler *Handler
	logs    *lockedBuffer
	stop    func() // ends the engine; safe to repeat
	tokens  map[string]string
}

// startOfTest is where the clock of a test stands.
var startOfTest = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// newService starts the real handler and engine on a database of the test's own, with
// testConfig in it.
func newService(t *testing.T, edit ...func(*Config)) *service {
	t.Helper()
	return newServiceOn(t, pgtest.New(t), 0, edit...)
}

// newEmptyService is newService without a configuration.
func newEmptyService(t *testing.T) *service {
	t.Helper()
	return startService(t, pgtest.New(t), 0)
}

// newServiceOn is newService on a given database, with the engine's deadline; 0 is the
// engine's own.
func newServiceOn(t *testing.T, db *pgtest.DB, deadline time.Duration, edit ...func(*Config)) *service {
	t.Helper()
	s := startService(t, db, deadline, edit...)
	s.apply(testConfig)
	return s
}

func startService(t *testing.T, db *pgtest.DB, deadline time.Duration, edit ...func(*Config)) *service {
	t.Helper()
	db.SetClock(t, startOfTest)
	pool := db.Service(t)
	s := &service{t: t, db: db, store: catalog.NewStore(pool), logs: &lockedBuffer{}, tokens: map[string]string{}}
	log := textLogger(s.logs)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log:\n%s", lastBytes(s.logs.String(), 3000))
		}
	})
	registry := prometheus.NewRegistry()
	engine, err := quota.NewEngine(quota.Config{
		Database: pool.Config().ConnConfig, Catalog: s.store, Log: log, Metrics: registry, Deadline: deadline,
		DecisionDeadline: max(250*time.Millisecond, deadline/12), // what is patient with calls is so with the server, too
	})
	if err != nil {
		t.Fatal(err)
	}
	config := Config{
		Engine: engine, Ledger: ledger.NewStore(pool), Reader: quota.NewReader(pool, s.store), Denials: quota.NewDenialStore(pool), Catalog: s.store,
		Keys: catalog.NewAuthenticator(s.store, nil), Log: log, Metrics: registry,
	}
	for _, edit := range edit {
		edit(&config)
	}
	s.handler, err = New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running errgroup.Group
	running.Go(func() error { return engine.Run(ctx) })
	s.stop = func() {
		cancel()
		if err := running.Wait(); err != nil {
			t.Errorf("engine: %v", err)
		}
	}
	s.Server = httptest.NewServer(s.handler)
	t.Cleanup(s.stop)
	t.Cleanup(s.Server.Close)
	return s
}

func (s *service) apply(yaml string) {
	s.t.Helper()
	config, err := catalog.ParseFile([]byte(yaml), "test.yaml")
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := s.store.Apply(s.t.Context(), "test", config, catalog.ApplyOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// token returns a key's token: of one scope, for one tenant or, with "", for all.
func (s *service) token(scope catalog.KeyScope, tenant string) string {
	s.t.Helper()
	name := string(scope) + "/" + tenant
	if s.tokens[name] == "" {
		_, s.tokens[name] = s.newKey(catalog.KeySpec{Scopes: []catalog.KeyScope{scope}, Tenant: tenant})
	}
	return s.tokens[name]
}

func (s *service) newKey(spec catalog.KeySpec) (catalog.Key, string) {
	s.t.Helper()
	key, token, err := s.store.CreateKey(s.t.Context(), "test", spec)
	if err != nil {
		s.t.Fatal(err)
	}
	return key, token
}

// A request of a test; zero fields are left out.
type request struct {
	method, path, body string
	token              string
	header             map[string]string
}

// An answer of the service, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request and holds its answer to the OpenAPI document.
func (s *service) do(r request) answer {
	s.t.Helper()
	a := s.send(r)
	s.holdToDocument(r, a)
	return a
}

func (s *service) send(r request) answer {
	s.t.Helper()
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), r.method, s.URL+r.path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	for name, value := range r.header {
		req.Header.Set(name, value)
	}
	response, err := s.Client().Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(text)}
}

// consume posts a body with a key that may decide for every tenant.
func (s *service) consume(body string, header ...string) answer {
	s.t.Helper()
	return s.do(request{
		method: http.MethodPost, path: "/v1/consume", body: body,
		token: s.token(catalog.KeyDecide, ""), header: pairs(header),
	})
}

// admin sends a change of the configuration.
func (s *service) admin(method, path, body string) answer {
	s.t.Helper()
	return s.do(request{method: method, path: path, body: body, token: s.token(catalog.KeyAdmin, "")})
}

func pairs(list []string) map[string]string {
	header := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		header[list[i]] = list[i+1]
	}
	return header
}

// want checks the status and, with a code, that the answer is that problem.
func (a answer) want(t *testing.T, status int, codes ...code) answer {
	t.Helper()
	if a.status != status {
		t.Errorf("status = %d, want %d; body %s", a.status, status, a.body)
		return a
	}
	for _, want := range codes {
		p := a.problem(t)
		if p.Code != want || p.Status != status || p.Title == "" || p.Type == "" {
			t.Errorf("problem = %+v, want code %s and status %d", p, want, status)
		}
	}
	return a
}

// wantFault checks that the answer is a 400 that names the field and the rule.
func (a answer) wantFault(t *testing.T, field, rule string) {
	t.Helper()
	a.want(t, http.StatusBadRequest)
	for _, f := range a.problem(t).Errors {
		if f.Field == field && strings.Contains(f.Rule, rule) {
			return
		}
	}
	t.Errorf("faults of %s, want one of %s that says %q", a.body, field, rule)
}

func (a answer) problem(t *testing.T) problemBody {
	t.Helper()
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type = %q, want application/problem+json; body %s", got, a.body)
	}
	var p problemBody
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		t.Errorf("problem %s: %v", a.body, err)
	}
	return p
}

// decision reads the body of an answer to consume.
func (a answer) decision(t *testing.T) quota.Decision {
	t.Helper()
	var d quota.Decision
	if err := json.Unmarshal([]byte(a.body), &d); err != nil {
		t.Errorf("decision %s: %v", a.body, err)
	}
	return d
}

// rows counts what consume may write, so that a test can say that nothing was.
func (s *service) rows() map[string]int64 {
	s.t.Helper()
	counts := map[string]int64{}
	for _, table := range []string{"entry", "entry_dims", "idempotency", "meter_total", "subject", "hold"} {
		var n int64
		err := s.db.Owner(s.t).QueryRow(s.t.Context(), "select count(*) from quotad."+table).Scan(&n)
		if err != nil {
			s.t.Fatal(err)
		}
		counts[table] = n
	}
	return counts
}

// random parts of an answer, which no golden file can hold.
var (
	uuidPattern  = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	hashPattern  = regexp.MustCompile(`[0-9a-f]{64}`)
	tokenPattern = regexp.MustCompile(`qk_[a-z0-9]+_[a-z0-9]{12}_[0-9A-Za-z]{33}`)
	keyIDPattern = regexp.MustCompile(`("id":"|"name":"|key:)[a-z0-9]{12}"`)
	clockPattern = regexp.MustCompile(`"(created|revoked)_at":"[^"]*"`)
)

// golden compares the status, the header fields and the body of an answer with a file.
func golden(t *testing.T, name string, a answer) {
	t.Helper()
	var b bytes.Buffer
	b.WriteString(http.StatusText(a.status) + "\n")
	a.header.Del("Date")
	a.header.Del("Content-Length")
	if err := a.header.Write(&b); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n")
	body := []byte(a.body)
	for pattern, name := range map[*regexp.Regexp]string{
		uuidPattern: "<uuid>", hashPattern: "<hash>", tokenPattern: "<token>",
		clockPattern: `"${1}_at":"<time>"`, keyIDPattern: `$1<key>"`,
	} {
		body = pattern.ReplaceAll(body, []byte(name))
	}
	if err := json.Indent(&b, bytes.TrimSpace(body), "", "  "); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	b.WriteString("\n")
	got := strings.ReplaceAll(b.String(), "\r\n", "\n")
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s, want-, got+:\n%s", file, diff)
	}
}

// lastBytes is the end of a text.
func lastBytes(text string, n int) string { return text[max(0, len(text)-n):] }
