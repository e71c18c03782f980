package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

// hostileMax is how long a hostile connection may last before the test has failed: far
// more than any bound of the server.
const hostileMax = 2 * time.Minute

// A target is a server that tests attack, with what it logs and a key that decides.
type target struct {
	*server
	t    *testing.T
	key  string
	logs bytes.Buffer // to be read when the server is closed
}

// loginPassword is in the URL of the database, and may be nowhere else.
const loginPassword = "hunter2-of-the-database"

func attacked(t *testing.T) *target {
	t.Helper()
	db := migrated(t)
	configure(t, db, serveTestConfig)
	a := &target{t: t, key: createKey(t, db, catalog.KeyDecide)}
	config := connConfig(t, db.URL)
	config.Password = loginPassword
	log := slog.New(slog.NewTextHandler(&a.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var err error
	a.server, err = startServer(t.Context(), serverConfig{Listen: "127.0.0.1:0", Database: config, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// end stops the server and looks for secrets in its log.
func (a *target) end() {
	a.t.Helper()
	if err := a.Close(a.t.Context()); err != nil {
		a.t.Errorf("Close: %v", err)
	}
	logs := a.logs.String()
	token, _ := catalog.ParseToken(a.key)
	for _, secret := range []string{token.Secret, loginPassword, "goroutine "} {
		if secret == "" || strings.Contains(logs, secret) {
			a.t.Errorf("the log holds %q: %s", secret, logs)
		}
	}
	if strings.ContainsFunc(logs, func(r rune) bool { return r < ' ' && r != '\n' || r >= 0x7f && r < 0xa0 }) {
		a.t.Errorf("the log holds control characters: %q", logs)
	}
}

func dial(t *testing.T, address net.Addr) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(hostileMax)) //nolint:errcheck // a read fails, too, if this does
	return conn
}

// answers reads what comes until the server ends the connection.
func answers(conn net.Conn) (statuses []int, text string, err error) {
	from := bufio.NewReader(conn)
	for {
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || !isTimeout(err) {
				err = nil // it was closed, or reset with input unread
			}
			return statuses, text, err
		}
		body, _ := io.ReadAll(response.Body) // what is cut off shows in its text
		response.Body.Close()
		statuses = append(statuses, response.StatusCode)
		text += string(body)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// harmless checks that another caller is served meanwhile.
func (a *target) harmless() {
	a.t.Helper()
	if status, err := consume(a.t.Context(), a.URL(), a.key); err != nil || status != http.StatusOK && status != http.StatusTooManyRequests {
		a.t.Errorf("another caller gets %d, %v", status, err)
	}
}

// post is a consume with header lines and a body as they are; last ends a connection whose
// requests were understood.
func (a *target) post(lines, body string) string {
	return "POST /v1/consume HTTP/1.1\r\nHost: q\r\nAuthorization: Bearer " + a.key + "\r\n" + lines + "\r\n" + body
}

const (
	last   = "GET /healthz HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n"
	health = "GET /healthz HTTP/1.1\r\nHost: q\r\n"
	dryRun = `{"tenant":"acme","meter":"api.calls","dry_run":true}`
)

// An attack is what is sent on one connection, and the statuses of all answers until the
// server ends it.
type attack struct {
	name, text string
	want       []int
}

func sized(body string) string { return fmt.Sprintf("Content-Length: %d\r\n", len(body)) }

func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n", len(body), body) }

// framing are attacks on where a body ends, which a proxy in front may see otherwise.
func (a *target) framing() []attack {
	const te = "Transfer-Encoding: chunked\r\n"
	return []attack{
		{"plain", a.post(sized(dryRun), dryRun) + last, []int{200, 200}},
		{"pipelined", strings.Repeat(a.post(sized(dryRun), dryRun), 50) + last, slices.Repeat([]int{200}, 51)},
		{"chunks and a length: the length does not count", a.post(te+"Content-Length: 4\r\n", chunked(dryRun)+"\r\n") + last, []int{200, 200}},
		{"a length and chunks: the same", a.post("Content-Length: 4\r\n"+te, chunked(dryRun)+"\r\n") + last, []int{200, 200}},
		{"a request within a body stays in it", a.post(sized(last), last) + last, []int{400, 200}},
		{"chunked, twice", a.post(te+te, chunked(dryRun)+"\r\n") + last, []int{501}},
		{"chunked and identity", a.post("Transfer-Encoding: chunked, identity\r\n", chunked(dryRun)+"\r\n"), []int{501}},
		{"xchunked", a.post("Transfer-Encoding: xchunked\r\n", chunked(dryRun)+"\r\n"), []int{501}},
		{"gzip, chunked", a.post("Transfer-Encoding: gzip, chunked\r\n", chunked(dryRun)+"\r\n"), []int{501}},
		{"chunked behind a tab", a.post("Transfer-Encoding:\x0bchunked\r\n", chunked(dryRun)+"\r\n"), []int{400}},
		{"a name with a space", a.post("Transfer-Encoding : chunked\r\n", chunked(dryRun)+"\r\n"), []int{400}},
		{"two lengths", a.post("Content-Length: 3\r\nContent-Length: 4\r\n", "{}{}"), []int{400}},
		{"two lengths in one", a.post("Content-Length: 4, 5\r\n", "{}{}"), []int{400}},
		{"a signed length", a.post("Content-Length: +4\r\n", "{}{}"), []int{400}},
		{"a negative length", a.post("Content-Length: -1\r\n", ""), []int{400}},
		{"a length in hex", a.post("Content-Length: 0x4\r\n", "{}{}"), []int{400}},
		{"a length beyond 64 bits", a.post("Content-Length: 99999999999999999999\r\n", "{}"), []int{400}},
		{"a length that is too short", a.post("Content-Length: 10\r\n", dryRun), []int{400, 400}},
		{"a chunk of no size", a.post(te, "zz\r\n{}\r\n0\r\n\r\n"), []int{400}},
		{"a negative chunk", a.post(te, "-1\r\n{}\r\n0\r\n\r\n"), []int{400}},
		{"a chunk beyond 64 bits", a.post(te, "fffffffffffffffff\r\n{}"), []int{400}},
		{"a chunk that is longer than it says", a.post(te, "2\r\n{}{}\r\n0\r\n\r\n"), []int{400}},
		{"a chunk with a megabyte of extension", a.post(te, "2;"+strings.Repeat("x", 1<<20)+"\r\n{}\r\n0\r\n\r\n"), []int{400}},
		{"a key in a trailer", "POST /v1/consume HTTP/1.1\r\nHost: q\r\n" + te + "Trailer: X-Key\r\n\r\n" + chunked(dryRun) + "Authorization: Bearer " + a.key + "\r\n\r\n" + last, []int{401, 200}},
		{"a length in a trailer", a.post(te+"Trailer: Content-Length\r\n", chunked(dryRun)+"Content-Length: 1\r\n\r\n"), []int{400}},
		{"a trailer of a megabyte", a.post(te+"Trailer: X-A\r\n", chunked(dryRun)+"X-A: "+strings.Repeat("x", 1<<20)+"\r\n\r\n"), []int{400}},
	}
}

// heads are attacks on the request line and the header fields.
func (a *target) heads() []attack {
	return []attack{
		{"no version", "GET /healthz\r\n\r\n", []int{400}},
		{"HTTP/0.9", "GET /healthz HTTP/0.9\r\n\r\n", []int{505}},
		{"HTTP/1.0", "GET /healthz HTTP/1.0\r\n\r\n", []int{200}},
		{"HTTP/3.0", "GET /healthz HTTP/3.0\r\nHost: q\r\n\r\n", []int{505}},
		{"HTTP/2 without TLS", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{405}},
		{"the hello of TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", []int{400}},
		{"no protocol at all", "\x00\x01\x02\x03\xff\xfe\r\n\r\n", []int{400}},
		{"a method that is none", "GE(T /healthz HTTP/1.1\r\nHost: q\r\n\r\n", []int{400}},
		{"a target that is none", "GET healthz HTTP/1.1\r\nHost: q\r\n\r\n", []int{400}},
		{"a control character in the target", "GET /health\x01z HTTP/1.1\r\nHost: q\r\n\r\n", []int{400}},
		{"a space in the target", "GET /health z HTTP/1.1\r\nHost: q\r\n\r\n", []int{400}},
		{"the server as a whole", "OPTIONS * HTTP/1.1\r\nHost: q\r\nConnection: close\r\n\r\n", []int{200}},
		{"a tunnel", "CONNECT database:5432 HTTP/1.1\r\nHost: database:5432\r\nConnection: close\r\n\r\n", []int{404}},
		{"1,000 fields", health + strings.Repeat("a: b\r\n", 1000) + "Connection: close\r\n\r\n", []int{200}},
		{"100,000 fields", health + strings.Repeat("a: b\r\n", 100_000) + "\r\n", []int{431}},
		{"a field of a megabyte", health + "a: " + strings.Repeat("b", 1<<20) + "\r\n\r\n", []int{431}},
		{"a name of a megabyte", health + strings.Repeat("a", 1<<20) + ": b\r\n\r\n", []int{431}},
		{"a target of a megabyte", "GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: q\r\n\r\n", []int{431}},
		{"a query of 15,000 parameters", "GET /v1/meters?" + strings.Repeat("&", 15_000) + " HTTP/1.1\r\nHost: q\r\nConnection: close\r\nAuthorization: Bearer " + a.key + "\r\n\r\n", []int{403}},
		{"a field without a colon", health + "a\r\n\r\n", []int{400}},
		{"a field without a name", health + ": b\r\n\r\n", []int{400}},
		{"NUL in a field", health + "a: b\x00\r\n\r\n", []int{400}},
		{"a control character in the key of a request", a.post("Idempotency-Key: a\x01b\r\n"+sized(dryRun), dryRun), []int{400}},
		{"a lone CR in a field", health + "a: b\rX-Injected: c\r\n\r\n", []int{400}},
		{"lines that end in LF", "GET /healthz HTTP/1.1\nHost: q\nConnection: close\n\n", []int{200}},
		{"an expectation", a.post("Expect: 100-continue\r\n"+sized(dryRun), dryRun) + last, []int{100, 200, 200}},
		{"another expectation", a.post("Expect: 200-ok\r\nConnection: close\r\n"+sized(dryRun), dryRun), []int{417}},
		{"an expectation without a key: no body is asked for", "POST /v1/consume HTTP/1.1\r\nHost: q\r\nExpect: 100-continue\r\nConnection: close\r\n" + sized(dryRun) + "\r\n", []int{401}},
		{"WebSocket", health + "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n", []int{200}},
		{"HTTP/2 by upgrade", health + "Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n", []int{200}},
	}
}

// bodies are attacks with what a body holds.
func (a *target) bodies() []attack {
	var bomb bytes.Buffer
	zip := gzip.NewWriter(&bomb)
	zip.Write(bytes.Repeat([]byte(" "), 10<<20)) //nolint:errcheck // a buffer takes all
	zip.Close()                                  //nolint:errcheck // as above
	whole := func(lines, body string) string { return a.post(lines+"Connection: close\r\n"+sized(body), body) }
	return []attack{
		{"compressed, and a bomb", whole("Content-Encoding: gzip\r\n", bomb.String()), []int{415}},
		{"compressed twice", whole("Content-Encoding: gzip, gzip\r\n", "x"), []int{415}},
		{"10 GB with a key", a.post("Content-Length: 10000000000\r\n", "{"), []int{413}},
		{"10 GB without", "POST /v1/consume HTTP/1.1\r\nHost: q\r\nContent-Length: 10000000000\r\n\r\n{", []int{401}},
		{"chunks without an end", a.post("Transfer-Encoding: chunked\r\n", strings.Repeat("1000\r\n"+strings.Repeat("x", 4096)+"\r\n", 100)), []int{413}},
	}
}

// Whatever is sent, the server answers in the form of HTTP or cuts the connection, within
// its bounds, and another caller is served as before. Nothing that was sent is taken for
// more requests than it is.
func TestHostileRequestsAreAnsweredOrCut(t *testing.T) {
	t.Parallel()
	a := attacked(t)
	defer a.end()
	a.harmless()
	before := runtime.NumGoroutine()
	t.Run("each", func(t *testing.T) {
		for _, tt := range slices.Concat(a.framing(), a.heads(), a.bodies()) {
			t.Run(tt.name, func(t *testing.T) {
				t.Parallel()
				a.strike(t, tt)
			})
		}
	})
	a.harmless()
	a.settled(before)
}

func (a *target) strike(t *testing.T, tt attack) {
	conn := dial(t, a.listener.Addr())
	var writing sync.WaitGroup
	writing.Go(func() {
		io.WriteString(conn, tt.text) //nolint:errcheck // the server may answer, and close, before it has read all
	})
	got, text, err := answers(conn)
	conn.Close()
	writing.Wait()
	if err != nil || !slices.Equal(got, tt.want) && !cutShort(tt.text, got) {
		t.Errorf("answers = %v, %v; want %v; bodies %.300s", got, err, tt.want, text)
	}
	if strings.Contains(text, a.key) || strings.Contains(text, "goroutine") {
		t.Errorf("an answer gives the key or the program away: %s", text)
	}
}

// cutShort reports whether a long request lost its answer to the reset that follows when a
// server closes with input unread: the connection was cut, which is an answer, too.
func cutShort(text string, got []int) bool { return len(text) > 64<<10 && len(got) == 0 }

// settled waits until no connection is left and the goroutines are about as many as before.
func (a *target) settled(goroutines int) {
	a.t.Helper()
	const others = 100 // of tests beside this one
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for until := time.Now().Add(hostileMax); ; <-tick.C {
		open, now := a.open.Load(), runtime.NumGoroutine()
		if open == 0 && now <= goroutines+others {
			return
		}
		if time.Now().After(until) {
			a.t.Fatalf("%d connections and %d goroutines are left, of %d before", open, now, goroutines)
		}
	}
}
