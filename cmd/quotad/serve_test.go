package main

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pgtest"
)

const serveTestConfig = `
meters:
  api.calls: {unit: call}
plans:
  free:
    limits:
      - {name: hourly, meter: api.calls, algorithm: sliding_log, limit: 10, window: 1h}
tenants:
  acme: {plan: free}
`

// migrated is a database as `quotad migrate` leaves it.
func migrated(t *testing.T) *pgtest.DB {
	t.Helper()
	db := pgtest.New(t)
	if _, err := migrateDatabase(t.Context(), connConfig(t, db.OwnerURL)); err != nil {
		t.Fatal(err)
	}
	return db
}

func connConfig(t *testing.T, url string) *pgx.ConnConfig {
	t.Helper()
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// running is a server on a database of the test's own, with a tenant and a key.
func running(t *testing.T, db *pgtest.DB) (s *server, token string) {
	t.Helper()
	s, err := startServer(t.Context(), serverConfig{
		Listen: "127.0.0.1:0", Database: connConfig(t, db.URL), Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	config, err := catalog.ParseFile([]byte(serveTestConfig), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.catalog.Apply(t.Context(), "test", config, catalog.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	_, token, err = s.catalog.CreateKey(t.Context(), "test", catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyDecide}})
	if err != nil {
		t.Fatal(err)
	}
	return s, token
}

// consume spends one call of acme and returns the status of the answer.
func consume(ctx context.Context, url, token string) (int, error) {
	body := strings.NewReader(`{"tenant":"acme","meter":"api.calls"}`)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/consume", body)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// A request that is under way when the server is told to stop gets its answer, and
// the answer is in the ledger.
func TestCloseAnswersWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	s, token := running(t, db)
	if status, err := consume(t.Context(), s.URL(), token); status != http.StatusOK {
		t.Fatalf("consume = %d, %v; want 200", status, err)
	}
	tx, err := db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := tx.Exec(t.Context(), "select from quotad.account where tenant = 'acme' for update"); err != nil {
		t.Fatal(err)
	}
	var calls errgroup.Group
	calls.Go(func() error {
		status, err := consume(t.Context(), s.URL(), token)
		if status != http.StatusOK {
			t.Errorf("consume during the stop = %d, %v; want 200", status, err)
		}
		return nil
	})
	waitForLockWaiter(t, db)
	calls.Go(func() error { return s.Close(t.Context()) })
	waitForRefusal(t, s.URL())
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := calls.Wait(); err != nil {
		t.Errorf("Close: %v", err)
	}
	var seq int64
	if err := db.Owner(t).QueryRow(t.Context(), "select seq from quotad.account where tenant = 'acme'").Scan(&seq); err != nil || seq != 2 {
		t.Errorf("seq = %d, %v; want both entries", seq, err)
	}
}

// waitForLockWaiter returns once someone waits for a lock in the database.
func waitForLockWaiter(t *testing.T, db *pgtest.DB) {
	t.Helper()
	waitUntil(t, "a request waits for the lock", func() bool {
		var waits bool
		err := db.Owner(t).QueryRow(t.Context(), `
select exists (
  select
  from pg_stat_activity
  where datname = current_database() and wait_event_type = 'Lock')`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
}

// waitForRefusal returns once nobody accepts connections at url.
func waitForRefusal(t *testing.T, url string) {
	t.Helper()
	waitUntil(t, "connections are refused", func() bool {
		_, err := consume(t.Context(), url, "")
		return err != nil
	})
}

func waitUntil(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		if done() {
			return
		}
	}
	t.Fatalf("not seen in 20 s: %s", what)
}

// The ledger is append-only for whoever owns nothing of it, so nobody else may serve.
func TestServeRefusesPowerfulLogins(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	owner := db.Name + "_owner"
	member := db.Name + "_member"
	db.Exec(t, "create role "+owner+" login")
	db.Exec(t, "create role "+member+" login")
	db.Exec(t, "grant "+owner+" to "+member)
	db.Exec(t, "alter table quotad.entry owner to "+owner)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, db.OwnerURL)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		for _, sql := range []string{"alter table quotad.entry owner to current_user", "drop owned by " + owner, "drop role " + owner + ", " + member} {
			if _, err := conn.Exec(ctx, sql); err != nil {
				t.Error(err)
			}
		}
	})
	for login, want := range map[string]string{
		"":     "is a superuser",
		owner:  "owns the ledger's tables",
		member: "owns the ledger's tables",
	} {
		config := connConfig(t, db.OwnerURL)
		if login != "" {
			config.User = login
		}
		_, err := startServer(t.Context(), serverConfig{Listen: "127.0.0.1:0", Database: config, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--service-login") {
			t.Errorf("startServer as %q = %v, want a refusal that says %q and what to do", config.User, err, want)
		}
	}
}

// An instance of another version than the schema would write what the others do not
// understand.
func TestServeRefusesAnotherSchemaVersion(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	blank := pgtest.Blank(t)
	for _, tt := range []struct{ url, sql, want string }{
		{blank.URL, "", "run `quotad migrate`"},
		{db.URL, "insert into goose_db_version (version_id, is_applied) values (99999, true)", "newer than"},
		{db.URL, "delete from goose_db_version where version_id in (select max(version_id) from goose_db_version where version_id < 99999) or version_id = 99999", "run `quotad migrate`"},
		{db.URL, "revoke select on goose_db_version from quotad_service", "run `quotad migrate`"},
	} {
		if tt.sql != "" {
			db.Exec(t, tt.sql)
		}
		_, err := startServer(t.Context(), serverConfig{Listen: "127.0.0.1:0", Database: connConfig(t, tt.url), Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("startServer after %q = %v, want a refusal that says %q", tt.sql, err, tt.want)
		}
	}
}

// PGTZ and the like are for people: nothing that an instance reads or changes may
// depend on whose shell it was started from.
func TestServeTakesTheLoginsSettingsNotTheURLs(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	asking := *db
	asking.URL += "&timezone=Asia/Tokyo&TIMEZONE=Asia/Jakarta&Lock_Timeout=7s"
	s, token := running(t, &asking)
	if status, err := consume(t.Context(), s.URL(), token); status != http.StatusOK {
		t.Errorf("consume = %d, %v; want 200", status, err)
	}
	for what, pool := range map[string]*pgxpool.Pool{"reads": s.pool, "keys": s.keyPool} {
		var zone, lockTimeout string
		if err := pool.QueryRow(t.Context(), "select current_setting('TimeZone'), current_setting('lock_timeout')").Scan(&zone, &lockTimeout); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(zone, "Asia/") || lockTimeout == "7s" {
			t.Errorf("%s run with time zone %s and a lock timeout of %s, which only the URL asks for", what, zone, lockTimeout)
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Slow is found under load and then blamed on something else; the log says it first.
func TestServeWarnsOnceOfUnnamedStatements(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	for parameter, want := range map[string]int{"": 0, "&default_query_exec_mode=cache_describe": 1} {
		var logged strings.Builder
		s, err := startServer(t.Context(), serverConfig{
			Listen: "127.0.0.1:0", Database: connConfig(t, db.URL+parameter), Log: slog.New(slog.NewTextHandler(&logged, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if got := strings.Count(logged.String(), "level=WARN"); got != want || got != strings.Count(logged.String(), "planned anew") {
			t.Errorf("with %q serve logs %q, want %d warnings", parameter, logged.String(), want)
		}
	}
}

// After a failover the old primary's address may swallow every connection: the next
// host of the URL must have its turn within the bounds of a call.
func TestServePassesByAHostThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	var listen net.ListenConfig
	silent, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	hosts := *db
	proxy := pgtest.NewProxy(t, db.URL)
	hosts.URL = strings.Replace(proxy.URL, "127.0.0.1", silent.Addr().String()+",127.0.0.1", 1)
	s, token := running(t, &hosts)
	if status, err := consume(t.Context(), s.URL(), token); status != http.StatusOK {
		t.Errorf("consume = %d, %v; want 200", status, err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestALogLevelThatIsNoneIsToldWhichThereAre(t *testing.T) {
	t.Parallel()
	code, _, stderr := command(t, "serve", "--log-level", "trace")
	if want := `must be debug, info, warn or error, not "trace"`; code != 2 || !strings.Contains(stderr, want) {
		t.Errorf("serve exits with %d and says %q, want %q", code, stderr, want)
	}
}

// The command says where it listens, answers there, and ends cleanly when it is told to.
func TestServeCommand(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stdout, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	logs, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	var command errgroup.Group
	command.Go(func() error {
		defer out.Close()
		code := run(ctx, []string{"serve", "--database-url", db.URL, "--listen", "127.0.0.1:0", "--log-format", "json"}, out, logs)
		if code != 0 {
			t.Errorf("exit code = %d, want 0", code)
		}
		return nil
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	if !ok {
		t.Fatalf("first line = %q, want where it listens", line)
	}
	waitUntil(t, "the instance is ready", func() bool {
		return healthcheckCmd{URL: url, Timeout: time.Second}.Run(t.Context(), &streams{Out: logs, Err: logs}) == nil
	})
	if status, err := consume(t.Context(), url, "qk_live_nobody"); status != http.StatusUnauthorized {
		t.Errorf("consume without a key = %d, %v; want 401", status, err)
	}
	stop()
	command.Wait()
	text, err := os.ReadFile(logs.Name())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), `"msg":"stopped"`) {
		t.Errorf("log = %s, want JSON lines that end with stopped", text)
	}
	if code := run(t.Context(), []string{"healthcheck", "--url", url}, logs, logs); code != 1 {
		t.Errorf("healthcheck of a stopped instance exits with %d, want 1", code)
	}
}

func TestHealthcheckSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	s, token := running(t, db)
	if status, err := consume(t.Context(), s.URL(), token); status != http.StatusOK {
		t.Fatalf("consume = %d, %v; want 200", status, err)
	}
	s.handler.Drain()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	streams := &streams{Out: null, Err: null}
	err = healthcheckCmd{URL: s.URL(), Timeout: time.Second}.Run(t.Context(), streams)
	if err == nil || !strings.Contains(err.Error(), "draining") {
		t.Errorf("healthcheck of a draining instance = %v, want that it is draining", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := (healthcheckCmd{URL: s.URL(), Timeout: time.Second}).Run(t.Context(), streams); err == nil {
		t.Error("healthcheck of a stopped instance passes")
	}
}
