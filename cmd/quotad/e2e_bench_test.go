package main

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/loadgen"
	"github.com/quotad/quotad/internal/pgtest"
)

const benchTestConfig = `
meters:
  calls: {unit: call}
plans:
  few:
    limits:
      - {name: hourly, meter: calls, algorithm: sliding_log, limit: 3, window: 1h}
tenants:
  acme: {plan: few}
  globex: {plan: few}
`

func adminKey(t *testing.T, db *pgtest.DB) (token string) {
	t.Helper()
	withCatalog(t, db, func(store *catalog.Store) (err error) {
		_, token, err = store.CreateKey(t.Context(), "test", catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyAdmin}})
		return err
	})
	return token
}

// entriesOf counts the entries of each tenant.
func entriesOf(t *testing.T, db *pgtest.DB) map[string]int64 {
	t.Helper()
	rows, err := db.Owner(t).Query(t.Context(), "select tenant, seq from quotad.account where seq > 0")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	entries := make(map[string]int64)
	for rows.Next() {
		var tenant string
		var seq int64
		if err := rows.Scan(&tenant, &seq); err != nil {
			t.Fatal(err)
		}
		entries[tenant] = seq
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return entries
}

// What bench counts is what happened, in every form of load, and it is charged to nobody
// but the tenants that it made.
func TestBenchTellsWhatTheLedgerHolds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	configure(t, db, benchTestConfig)
	_, urls := startServes(t, db, 2)
	key := adminKey(t, db)
	var allowed int64
	for _, flags := range [][]string{
		{"--skew=1"},
		{"--rate=10", "--idempotency-keys"},
		{"--batch=7", "--idempotency-keys"},
		{"--batch=7", "--rate=10"},
	} {
		code, out := output(t, append([]string{
			"bench", "--json", "--url", urls[0], "--url", urls[1], "--key", key,
			"--tenants=5", "--connections=4", "--duration=500ms", "--warmup=100ms",
		}, flags...)...)
		var got benchResult
		if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil {
			t.Fatalf("%v: exit code %d, %v: %s", flags, code, err, out)
		}
		if got.Requests.Allowed < got.Measured.Allowed || got.Measured.Allowed == 0 || got.Requests.Failed != 0 || got.Requests.Denied != 0 {
			t.Errorf("%v: %+v, want only allowed answers", flags, got)
		}
		if m := got.Measured; m.PerSecond <= 0 || m.P50MS <= 0 || m.P90MS < m.P50MS || m.P99MS < m.P90MS || m.P999MS < m.P99MS || m.MaxMS < m.P999MS {
			t.Errorf("%v: %+v, want figures that grow", flags, m)
		}
		allowed += got.Requests.Allowed
	}
	var entries int64
	for tenant, n := range entriesOf(t, db) {
		if !strings.HasPrefix(tenant, benchName+"-") {
			t.Errorf("%s was charged", tenant)
		}
		entries += n
	}
	if entries != allowed {
		t.Errorf("the ledger holds %d entries after %d allowed answers", entries, allowed)
	}
	if code, out := output(t, "verify", "--database-url", db.OwnerURL); code != 0 {
		t.Errorf("verify ends with %d: %s", code, out)
	}
}

// Quota of a tenant that others rely on is spent only by name, and nothing is made then.
func TestBenchSpendsOfTenantsThatAreNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	configure(t, db, benchTestConfig)
	key := createKey(t, db, catalog.KeyDecide)
	url := startServe(t, db).url
	code, out := output(t, "bench", "--json", "--url", url, "--key", key, "--tenant=acme", "--meter=calls",
		"--connections=2", "--duration=300ms", "--warmup=0s")
	var got benchResult
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil {
		t.Fatalf("exit code %d, %v: %s", code, err, out)
	}
	if got.Requests.Allowed != 3 || got.Requests.Denied == 0 || got.Tenants != 1 {
		t.Errorf("%+v, want 3 that are allowed of one tenant, and denials", got)
	}
	if diff := cmp.Diff(map[string]int64{"acme": 3}, entriesOf(t, db)); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	for name, c := range map[string]struct{ path, key, tenant, meter, want string }{
		"no such tenant":    {"", key, "nobody", "calls", "must name a configured tenant"},
		"no such meter":     {"", key, "acme", "nothing", "must name a configured meter"},
		"no such key":       {"", "qk_live_x_y", "acme", "calls", "401"},
		"no such path":      {"/v1", key, "", "", "--url must lead to where its own begin"},
		"may make no plans": {"", key, "", "", "scope admin: use one, or name tenants"},
	} {
		flags := []string{"bench", "--url", url + c.path, "--key", c.key, "--duration=100ms"}
		if c.tenant != "" {
			flags = append(flags, "--tenant="+c.tenant, "--meter="+c.meter)
		}
		p := start(t, nil, flags...)
		if code := p.wait(t); code != 1 || !strings.Contains(p.logged(), c.want) {
			t.Errorf("%s: exit code %d, want 1 and a word about %q:\n%s", name, code, c.want, p.logged())
		}
	}
}

// masked replaces figures, and the spaces that they need, so that the shape is left.
func masked(text string) string {
	text = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(text, "HOST")
	text = regexp.MustCompile(`p\d+(\.\d)?`).ReplaceAllStringFunc(text, func(s string) string { return "p" + strings.Repeat("n", len(s)-1) })
	text = regexp.MustCompile(`\d+(\.\d+)?`).ReplaceAllString(text, "N")
	return regexp.MustCompile(` {2,}`).ReplaceAllString(text, "  ")
}

// Sizing needs nothing but the binary and PostgreSQL, and leaves nothing behind.
func TestBenchOnAPrivatePostgreSQLLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	temporary := pgtest.Dir(t)
	p := start(t, []string{"TMPDIR=" + temporary}, "bench", "--tenants=3", "--connections=2", "--rate=5", "--duration=2s", "--warmup=0s")
	out, err := io.ReadAll(p.lines)
	if err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, p.logged())
	}
	want := "http://HOST: connections N, tenants N, skew N, batch N, N calls/s, sent late by pnn N ms\n" +
		"measured for N s\n" +
		"\n" +
		"  decisions/s  allowed  denied  failed  pnn ms  pnn ms  pnn ms  pnnnn ms  max ms\n" +
		"  N  N  N  N  N  N  N  N  N\n" +
		"\n" +
		"with the warm-up: allowed N, denied N, failed N\n"
	if diff := cmp.Diff(want, masked(string(out))); diff != "" {
		t.Errorf("table, masked (-want +got):\n%s", diff)
	}
	wantEmpty(t, temporary)
}

// A reader that stops reading, as head does, ends nothing but what is printed.
func TestAReaderThatStopsLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	temporary := pgtest.Dir(t)
	p := start(t, []string{"TMPDIR=" + temporary}, "bench", "--tenants=1", "--connections=1", "--duration=100ms", "--warmup=0s")
	p.stdout.Close()
	if code := p.wait(t); code != 1 || !strings.Contains(p.logged(), "broken pipe") {
		t.Errorf("exit code %d, want 1 and why:\n%s", code, p.logged())
	}
	wantEmpty(t, temporary)
}

// Whoever has seen enough gets what was measured until then.
func TestBenchStoppedBySIGINTTellsWhatItHas(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	url := startServe(t, db).url
	p := start(t, nil, "bench", "--url", url, "--key", adminKey(t, db), "--tenants=1", "--connections=1", "--duration=1h", "--warmup=0s")
	waitUntil(t, "some are decided", func() bool { return entriesOf(t, db)[benchName+"-00001"] > 10 })
	p.stop(t, sigint)
	out, err := io.ReadAll(p.lines)
	if err != nil {
		t.Fatal(err)
	}
	if text := masked(string(out)); !strings.Contains(text, "measured for N s, stopped early\n") || !strings.Contains(text, "  N  N  N  N  N  N  N  N  N\n") {
		t.Errorf("it printed:\n%s", out)
	}
}

// A stall that made somebody give up must show: it is in no time that was measured.
func TestBenchStoppedBySIGINTTellsOfCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 2)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Write([]byte("{}")) //nolint:errcheck
			return
		}
		io.Copy(io.Discard, r.Body) //nolint:errcheck // so that the server sees the caller leave
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer service.Close()
	p := start(t, nil, "bench", "--url", service.URL, "--key=k", "--tenants=1", "--connections=2", "--duration=1h", "--warmup=0s")
	waitUntil(t, "both calls wait", func() bool { return len(asked) == 2 })
	p.stop(t, sigint)
	out, err := io.ReadAll(p.lines)
	if err != nil {
		t.Fatal(err)
	}
	if want := "stopped early\ncalls without an answer then: 2, the oldest after "; !strings.Contains(string(out), want) {
		t.Errorf("it printed:\n%s\nwant %q", out, want)
	}
}

// A tenant that only has the name of those that are made keeps its plan and its quota.
func TestBenchTakesNoTenantOfAnotherPlan(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	configure(t, db, strings.ReplaceAll(benchTestConfig, "globex", benchName+"-00002"))
	flags := []string{"bench", "--url", startServe(t, db).url, "--key", adminKey(t, db), "--connections=1", "--duration=100ms", "--warmup=0s"}
	p := start(t, nil, append(flags, "--tenants=2")...)
	if code := p.wait(t); code != 1 || !strings.Contains(p.logged(), "the tenant quotad-bench-00002 exists with the plan few") {
		t.Errorf("exit code %d, want 1 and a word about the tenant:\n%s", code, p.logged())
	}
	if code, out := output(t, append(flags, "--tenants=1")...); code != 0 {
		t.Errorf("beside such a tenant: exit code %d: %s", code, out)
	}
	var plan string
	if err := db.Owner(t).QueryRow(t.Context(), "select plan from quotad.account where tenant = $1", benchName+"-00002").Scan(&plan); err != nil || plan != "few" {
		t.Errorf("its plan is %q, %v, want few", plan, err)
	}
	if entries := entriesOf(t, db); entries[benchName+"-00002"] > 0 || entries[benchName+"-00001"] == 0 {
		t.Errorf("entries = %v, want only those of the tenant that was made", entries)
	}
}

// A service that fails is told of by the kind of failure, and is no success.
func TestBenchOfAServiceThatDiesFails(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	serve := startServe(t, db)
	p := start(t, nil, "bench", "--json", "--url", serve.url, "--key", adminKey(t, db), "--tenants=1", "--connections=2", "--duration=3s", "--warmup=0s")
	waitUntil(t, "some are decided", func() bool { return entriesOf(t, db)[benchName+"-00001"] > 10 })
	if err := serve.signal(sigkill); err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.lines)
	if err != nil {
		t.Fatal(err)
	}
	if code := p.wait(t); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	var got benchResult
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	kinds := make(map[string]bool)
	for _, f := range got.Failures {
		kinds[f.Kind] = true
	}
	if !kinds["connection refused"] || got.Requests.Failed == 0 || got.Requests.Allowed == 0 || got.Stopped {
		t.Errorf("%+v, want refused connections beside what was allowed", got)
	}
	var b strings.Builder
	got.Failures = []loadgen.Failure{{Kind: "connection refused", Count: 12, Example: "dial"}, {Kind: "503 overloaded", Count: 1, Example: "{}"}}
	if err := got.print(&b, false); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(b.String(), "\n\nFAILED")
	if want := "              COUNT  FOR EXAMPLE\nconnection refused  12     dial\n503 overloaded      1      {}\n"; table != want {
		t.Errorf("failures:\n%s\nwant:\n%s", table, want)
	}
}

func TestFlagsOfBenchAreChecked(t *testing.T) {
	t.Parallel()
	for i, c := range []struct{ flags, want string }{
		{"--connections=0", "--connections must be 1 to 2000"},
		{"--connections=2001", "--connections must be 1 to 2000"},
		{"--rate=-1", "--rate must be 1 to 1000000; leave it out to send as fast as answers come"},
		{"--rate=0", "--rate must be 1 to 1000000; leave it out to send as fast as answers come"},
		{"--url=nonsense --key=k", `--url: "nonsense" must be a URL like http://host:port`},
		{"--tenants=0", "--tenants must be 1 to 10000"},
		{"--skew=11", "--skew must be 0 to 10"},
		{"--skew=NaN", "--skew must be 0 to 10"},
		{"--batch=1001", "--batch must be 1 to 1000"},
		{"--duration=1ms", "--duration must be 100ms to 1h0m0s"},
		{"--warmup=2h", "--warmup must be 0s to 1h0m0s"},
		{"--cost=-1", "--cost must be 0 to 999999999999999"},
		{"--url=http://x", "--url needs --key"},
		{"--key=k", "--key needs --url"},
		{"--tenant=acme --meter=calls", "--tenant needs --url"},
		{"--url=http://x --key=k --tenant=acme", "--tenant and --meter need each other"},
		{"--url=http://x --key=k --meter=calls", "--tenant and --meter need each other"},
	} {
		said := createFile(t, filepath.Join(t.TempDir(), strconv.Itoa(i)))
		code := run(t.Context(), append([]string{"bench"}, strings.Fields(c.flags)...), said, said)
		text, err := os.ReadFile(said.Name())
		if err != nil {
			t.Fatal(err)
		}
		if code != 2 || !strings.Contains(string(text), c.want) {
			t.Errorf("%s: exit code %d, want 2 and %q:\n%s", c.flags, code, c.want, text)
		}
	}
	cmd := benchCmd{URLs: []string{"http://127.0.0.1:1"}, Key: "k", Connections: 1, Tenants: 1, Batch: 1, Duration: time.Second}
	said := createFile(t, filepath.Join(t.TempDir(), "nobody"))
	if err := cmd.Run(t.Context(), &streams{said, said}); err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("nobody listens: %v", err)
	}
}
