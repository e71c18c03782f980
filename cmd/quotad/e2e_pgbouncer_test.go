//go:build pgbouncer

package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/devpg"
	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
)

// These tests need a PgBouncer in PATH and run with `make pgbouncer`. They run in the
// mode that every version supports, without prepared statements that have a name.
const (
	pooledParameters = "?sslmode=disable" + unnamed
	unnamed          = "&default_query_exec_mode=cache_describe"
)

// pooledTime is how long a test of crashes goes on; one crash it has in any case.
const pooledTime = 2 * time.Second

// poolConns is far less than two instances have clients.
const poolConns = 5

// A bouncer is a PgBouncer in transaction mode before a test's server.
type bouncer struct {
	port    int
	config  string
	follows bool                // prepared statements, where it is told to
	owner   *syscall.Credential // whose the server's socket is
	pid     int
	exited  chan struct{}
}

func newBouncer(t *testing.T, server *devpg.Server) *bouncer {
	t.Helper()
	address, err := url.Parse(server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	sockets := address.Query().Get("host")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bouncer{port: listener.Addr().(*net.TCPAddr).Port}
	listener.Close()
	dir := pgtest.Dir(t)
	b.config = filepath.Join(dir, "pgbouncer.ini")
	logins := filepath.Join(dir, "logins")
	for name, text := range map[string]string{
		logins: `"quotad_test" "quotad_test"` + "\n" + `"postgres" ""` + "\n",
		b.config: fmt.Sprintf(`[databases]
* = host=%s port=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = trust
auth_file = %s
pool_mode = transaction
default_pool_size = %d
max_client_conn = 200
%s
`, sockets, address.Query().Get("port"), b.port, logins, poolConns, b.unfollowing(t)),
	} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(sockets)
	if err != nil {
		t.Fatal(err)
	}
	if stat := info.Sys().(*syscall.Stat_t); int(stat.Uid) != os.Geteuid() {
		b.owner = &syscall.Credential{Uid: stat.Uid, Gid: stat.Gid}
	}
	t.Cleanup(func() { b.kill(t) })
	return b
}

// unfollowing is the line that makes PgBouncer follow no prepared statements, as none did
// before 1.21, which does not know it.
func (b *bouncer) unfollowing(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("pgbouncer", "--version").Output()
	if err != nil {
		t.Fatalf("pgbouncer --version: %v; install it (`apt-get install pgbouncer`)", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(string(out), "PgBouncer %d.%d", &major, &minor); err != nil {
		t.Fatalf("pgbouncer --version says %q: %v", out, err)
	}
	if b.follows = major > 1 || minor >= 21; b.follows {
		return "max_prepared_statements = 0"
	}
	return ""
}

// start starts PgBouncer and waits until db can be reached through it.
func (b *bouncer) start(t *testing.T, db *pgtest.DB) {
	t.Helper()
	command := exec.Command("pgbouncer", "--quiet", b.config)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: b.owner, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	b.exited = make(chan struct{})
	go func() {
		runtime.LockOSThread() // the child ends with the thread that made it
		defer runtime.UnlockOSThread()
		err := command.Start()
		if err == nil {
			b.pid = command.Process.Pid
		}
		started <- err
		if err == nil {
			_ = command.Wait()
		}
		close(b.exited)
	}()
	if err := <-started; err != nil {
		t.Fatalf("start pgbouncer: %v; install it (`apt-get install pgbouncer`)", err)
	}
	eventually(t, "PgBouncer lets someone in", func() bool {
		conn, err := pgx.Connect(t.Context(), b.url(t, db.URL))
		if err != nil {
			return false
		}
		return conn.Close(t.Context()) == nil
	})
}

// kill ends PgBouncer without a goodbye to anyone.
func (b *bouncer) kill(t *testing.T) {
	t.Helper()
	if b.pid == 0 {
		return
	}
	if err := syscall.Kill(b.pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
	<-b.exited
	b.pid = 0
}

// url is a database's URL by way of the pooler.
func (b *bouncer) url(t *testing.T, databaseURL string) string {
	t.Helper()
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host, u.RawQuery = fmt.Sprint("127.0.0.1:", b.port), strings.TrimPrefix(pooledParameters, "?")
	return u.String()
}

// pooled is a database behind a PgBouncer, with a login that has its settings.
func pooled(t *testing.T) (db *pgtest.DB, b *bouncer) {
	t.Helper()
	server := pgtest.Server(t, devpg.Options{})
	db = pgtest.On(t, server)
	if code, out := output(t, "migrate", "--database-url", db.OwnerURL, "--service-login", "quotad_test"); code != 0 {
		t.Fatalf("migrate ends with %d: %s", code, out)
	}
	b = newBouncer(t, server)
	b.start(t, db)
	return db, b
}

// Two instances share a few sessions of a pooler, which is killed and started again,
// and commits are lost between them and it. None of that changes what was admitted.
func TestPgBouncerInTransactionModeLosesNothing(t *testing.T) {
	t.Parallel()
	rounds(t, pooledTime, func(t *testing.T, seed uint64, length time.Duration) {
		db, b := pooled(t)
		token := configure(t, db, mixedConfig(0))
		proxy := pgtest.NewProxy(t, b.url(t, db.URL))
		through := *db
		through.URL = proxy.URL
		instances, urls := startServes(t, &through, 2, "--pooler")
		load := startCrashLoad(t, db, token, seed, urls, 0)
		kills := 0
		for until := time.Now().Add(length); kills < 2 || time.Now().Before(until); kills++ {
			load.awaitAllowed(t, 2*crashCalls)
			b.kill(t)
			for _, url := range urls {
				eventually(t, "an instance is not ready without its pooler", func() bool { return readiness(url) == 503 })
			}
			b.start(t, db)
		}
		proxy.Break(pgtest.Break{On: "commit", Every: 7})
		eventually(t, "commits are lost both ways", func() bool {
			replies, sends, _ := proxy.Struck()
			return replies >= 5 && sends >= 5
		})
		proxy.Heal()
		load.awaitAllowed(t, crashCalls)
		load.end(t)
		for _, i := range instances {
			i.stop(t, sigterm)
		}
		wantCrashSafe(t, db, load)
		if code, out := output(t, "verify", "--database-url", b.url(t, db.URL)); code != 0 {
			t.Errorf("verify through the pooler ends with %d: %s", code, out)
		}
		replies, sends, _ := proxy.Struck()
		t.Logf("the pooler was killed %d times; %d replies to a commit and %d commits were lost", kills, replies, sends)
	})
}

// restart starts PgBouncer again with more lines of configuration; the last of two
// that set the same counts.
func (b *bouncer) restart(t *testing.T, db *pgtest.DB, lines ...string) {
	t.Helper()
	b.kill(t)
	text, err := os.ReadFile(b.config)
	if err != nil {
		t.Fatal(err)
	}
	original, _, _ := strings.Cut(string(text), bouncerMore)
	text = []byte(original + bouncerMore + strings.Join(lines, "\n") + "\n")
	if err := os.WriteFile(b.config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	b.start(t, db)
}

const bouncerMore = "; more\n"

// What cannot work says so at once, and what to do.
func TestPgBouncerMisconfiguredIsRefused(t *testing.T) {
	t.Parallel()
	db, b := pooled(t)
	through := b.url(t, db.URL)
	named := strings.Replace(through, unnamed, "", 1)
	refused := func(text string, arguments ...string) {
		t.Helper()
		p := start(t, nil, arguments...)
		if line, err := p.lines.ReadString('\n'); err == nil {
			t.Errorf("quotad %s says %q, want a refusal with %q", arguments, line, text)
			p.stop(t, sigterm)
			return
		}
		code, stderr := p.wait(t), p.logged()
		if code != 1 || !strings.Contains(stderr, text) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("quotad %s ends with %d and says %q, want one line with %q", arguments, code, stderr, text)
		}
	}
	want := func(text, url string, flags ...string) {
		t.Helper()
		refused(text, append([]string{"serve", "--database-url", url, "--listen", "127.0.0.1:0"}, flags...)...)
	}
	refused("connect to PostgreSQL itself", "migrate", "--database-url", b.url(t, db.OwnerURL))
	want("use --pooler", through)
	want("set max_prepared_statements = 200", named, "--pooler")
	b.restart(t, db, "server_round_robin = 1")
	want("set max_prepared_statements = 200", named, "--pooler")
	b.restart(t, db, "pool_mode = statement")
	want("set pool_mode = transaction", through, "--pooler")
	dropped := "ignore_startup_parameters = "
	for _, s := range pg.SessionSettings() {
		dropped += s.Name + ", "
	}
	b.restart(t, db, strings.TrimSuffix(dropped, ", "))
	want("plan_cache_mode is", through)
	db.Exec(t, "alter role quotad_test reset lock_timeout")
	b.restart(t, db)
	want("quotad migrate --service-login quotad_test", through, "--pooler")
}

// Where each client has a session to itself, or its statements are followed from session
// to session, they have their names, and serve has nothing to warn of.
func TestPgBouncerKeepsNamedStatementsWhereItCan(t *testing.T) {
	t.Parallel()
	db, b := pooled(t)
	token := configure(t, db, serveTestConfig)
	b.restart(t, db, "pool_mode = session", "default_pool_size = 40")
	b.wantNamed(t, db, token)
	if b.follows {
		b.restart(t, db, "max_prepared_statements = 200")
		b.wantNamed(t, db, token)
	}
}

func (b *bouncer) wantNamed(t *testing.T, db *pgtest.DB, token string) {
	t.Helper()
	through := *db
	through.URL = strings.Replace(b.url(t, db.URL), unnamed, "", 1)
	serve := startServe(t, &through, "--pooler")
	for range 3 {
		if status, err := consume(t.Context(), serve.url, token); status != 200 {
			t.Errorf("consume = %d, %v; want 200", status, err)
		}
	}
	serve.stop(t, sigterm)
	if logs := serve.logged(); strings.Contains(logs, "WARN") {
		t.Errorf("serve logged %q, want no warning", logs)
	}
}

// Decisions have plans of their own; the pages of a ledger, on the same sessions, do not.
func TestPgBouncerSessionsKeepNoPlanSettings(t *testing.T) {
	t.Parallel()
	db, b := pooled(t)
	token := configure(t, db, serveTestConfig)
	through := *db
	through.URL = b.url(t, db.URL)
	serve := startServe(t, &through, "--pooler")
	if status, err := consume(t.Context(), serve.url, token); status != 200 {
		t.Fatalf("consume = %d, %v; want 200", status, err)
	}
	conn, err := pgx.Connect(t.Context(), through.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for range poolConns {
		for name, want := range map[string]string{"enable_seqscan": "on", "plan_cache_mode": "auto", "lock_timeout": "1s"} {
			var got string
			if err := conn.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&got); err != nil || got != want {
				t.Errorf("%s = %q, %v; want %q", name, got, err, want)
			}
		}
	}
	serve.stop(t, sigterm)
}
