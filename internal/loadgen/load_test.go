package loadgen

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// An answer that is not what was asked for must never be counted as a fast one.
func TestOnlyRightAnswersCount(t *testing.T) {
	t.Parallel()
	const acme = `{"allowed":true,"tenant":"acme",`
	asks := Client{URLs: []string{"http://127.0.0.1:1"}, Items: []Item{{Tenant: "acme", Body: "{}"}}}
	for _, c := range []struct {
		name, answer string
		want         Counts
	}{
		{"allowed", "HTTP/1.1 200 OK\r\nX: y\r\nContent-Length: 32\r\n\r\n" + acme, Counts{Allowed: 1}},
		{"allowed, by a proxy", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n20\r\n" + acme + "\r\n0\r\n\r\n", Counts{Allowed: 1}},
		{"allowed, after a hint", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n" + acme, Counts{Allowed: 1}},
		{"denied", "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 17\r\n\r\n" + `{"allowed":false}`, Counts{Denied: 1}},
		{"of another tenant", "HTTP/1.1 200 OK\r\nContent-Length: 33\r\n\r\n" + `{"allowed":true,"tenant":"other",`, Counts{Failed: 1}},
		{"degraded", "HTTP/1.1 200 OK\r\nContent-Length: 47\r\n\r\n" + acme + `"degraded":true`, Counts{Failed: 1}},
		{"denied with 200", "HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n" + `{"allowed":false}`, Counts{Failed: 1}},
		{"denied by a proxy", "HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}", Counts{Failed: 1}},
		{"refused", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}", Counts{Failed: 1}},
		{"without a length", "HTTP/1.1 200 OK\r\n\r\n", Counts{}},
		{"cut off", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", Counts{}},
		{"nothing", "", Counts{}},
		{"something else", "SSH-2.0-server\r\n", Counts{}},
	} {
		shared, err := asks.prepare()
		if err != nil {
			t.Fatal(err)
		}
		one := shared.caller(0)
		one.asked = []*target{&shared.targets[0]}
		var got Counts
		if err := one.answer.read(bufio.NewReader(strings.NewReader(c.answer))); err == nil {
			got = one.judge().Counts
		}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// The results of a batch are counted one by one, whatever their call came to.
func TestEveryItemOfABatchCounts(t *testing.T) {
	t.Parallel()
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"results":[{"status":200,"body":{"allowed":true}},{"status":429,"body":{"allowed":false}},` + //nolint:errcheck
			`{"status":503,"body":{"code":"overloaded","detail":"later"}},{"status":200,"body":{"allowed":true,"degraded":true}}]}`))
	}))
	defer service.Close()
	client := Client{URLs: []string{service.URL}, Items: make([]Item, 4), Batch: 4}
	for i := range client.Items {
		client.Items[i] = Item{Tenant: "acme", Body: "{}"}
	}
	got, err := client.Each(t.Context())
	if want := (Counts{Allowed: 1, Denied: 1, Failed: 2}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	m, err := client.Run(t.Context(), Drive{Callers: 1, Time: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	calls := m.Total.Allowed
	want := []Failure{
		{"200 degraded", calls, `{"allowed":true,"degraded":true}`},
		{"503 overloaded", calls, `{"code":"overloaded","detail":"later"}`},
	}
	if diff := cmp.Diff(want, m.Failures); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
}

// What is sent is HTTP as others read it, with a new key each time where keys are asked for.
func TestRequestsAreWhatAServerReads(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var bodies []string
	keys := make(map[string]bool)
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body strings.Builder
		_ = r.Write(&body) // as it came, but for the order of headers
		_, text, _ := strings.Cut(body.String(), "\r\n\r\n")
		mu.Lock()
		defer mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer token" {
			t.Errorf("Authorization = %q", r.Header.Get("Authorization"))
		}
		for _, part := range append(strings.Split(text, keyMember)[1:], r.Header.Get("Idempotency-Key")) {
			if key, _, _ := strings.Cut(strings.Trim(part, `"`), `"`); key != "" {
				keys[key] = true
				text = strings.Replace(text, key, "k", 1)
			}
		}
		bodies = append(bodies, r.URL.Path+" "+text)
	}))
	defer service.Close()
	for _, c := range []struct {
		client Client
		want   string
	}{
		{Client{}, `/under/v1/consume {"n":1}`},
		{Client{Keys: true}, `/under/v1/consume {"n":1}`},
		{Client{Batch: 2}, `/under/v1/consume/batch {"items":[{"n":1},{"n":1}]}`},
		{Client{Batch: 2, Keys: true}, `/under/v1/consume/batch {"items":[{"n":1,"idempotency_key":"k"},{"n":1,"idempotency_key":"k"}]}`},
	} {
		bodies, keys = nil, make(map[string]bool)
		c.client.URLs, c.client.Token = []string{service.URL + "/under/"}, "token"
		c.client.Items = []Item{{Tenant: "acme", Body: `{"n":1}`}, {Tenant: "acme", Body: `{"n":1}`}, {Tenant: "acme", Body: `{"n":1}`}, {Tenant: "acme", Body: `{"n":1}`}}
		if _, err := c.client.Each(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, body := range bodies {
			if body != c.want {
				t.Errorf("%+v sends %s, want %s", c.client, body, c.want)
			}
		}
		wantKeys := 0
		if c.client.Keys {
			wantKeys = 4
		}
		if len(keys) != wantKeys {
			t.Errorf("%+v sends %d different keys for 4 items, want %d", c.client, len(keys), wantKeys)
		}
	}
}

// A wrong answer must end a strict run, whoever else gets right ones.
func TestAFaultEndsTheRun(t *testing.T) {
	t.Parallel()
	fault := errors.New("wrong")
	for _, perSecond := range []int{0, 1000} {
		d := Drive{Callers: 3, Time: time.Minute, PerSecond: perSecond}
		_, err := d.Run(t.Context(), func(_ context.Context, i int) (Caller, error) {
			return func(context.Context) (Outcome, error) {
				if i == 1 {
					return Outcome{}, fault
				}
				return Outcome{Counts: Counts{Allowed: 1}}, nil
			}, nil
		})
		if !errors.Is(err, fault) {
			t.Errorf("%d a second: err = %v, want %v", perSecond, err, fault)
		}
	}
}

// after answers each call a while later.
func after(d time.Duration) func(context.Context, int) (Caller, error) {
	return func(context.Context, int) (Caller, error) {
		return func(ctx context.Context) (Outcome, error) {
			return Outcome{Counts: Counts{Allowed: 1}}, pause(ctx, d)
		}, nil
	}
}

// Time that a request waits for a free caller is part of its time: else a server that
// stalls would be asked less while it does, and look quick. What was due and could not
// even be sent is no answer.
func TestAPacedRequestIsTimedFromWhenItWasDue(t *testing.T) {
	t.Parallel()
	const stall = 20 * time.Millisecond
	d := Drive{Callers: 1, Time: 10 * stall, PerSecond: 1000}
	m, err := d.Run(t.Context(), after(stall))
	if err != nil {
		t.Fatal(err)
	}
	if m.P50 < 5*stall {
		t.Errorf("p50 = %s with one caller that takes %s for each of %d requests, want at least %s", m.P50, stall, m.Total.Allowed, 5*stall)
	}
	if m.LateP99 < 5*stall {
		t.Errorf("sent late by p99 %s, want the wait for a free caller, too", m.LateP99)
	}
	if due := m.Total.Allowed + m.Total.Failed; due < 100 || due > 400 || m.Total.Allowed > 50 {
		t.Errorf("%+v in %s, want about 200 that were due and 20 that were answered", m.Total, d.Time)
	}
	if len(m.Failures) != 1 || m.Failures[0].Kind != notSent || m.Failures[0].Count != m.Total.Failed {
		t.Errorf("failures = %+v, want %d of the kind %q", m.Failures, m.Total.Failed, notSent)
	}
}

// A rate is what was due in the time that was planned: it must not look higher since the
// last request was answered before the end.
func TestAPacedRunIsMeasuredToItsPlannedEnd(t *testing.T) {
	t.Parallel()
	d := Drive{Callers: 1, Time: 400 * time.Millisecond, PerSecond: 5}
	m, err := d.Run(t.Context(), after(0))
	if err != nil {
		t.Fatal(err)
	}
	if m.Time != d.Time {
		t.Errorf("measured for %s, want %s: %+v", m.Time, d.Time, m)
	}
}

// A service that stalls until nobody waits any longer has not been quick.
func TestARunThatIsStoppedTellsOfCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	const callers = 3
	for _, perSecond := range []int{0, 1000} {
		ctx, stop := context.WithCancel(t.Context())
		d := Drive{Callers: callers, Time: time.Minute, PerSecond: perSecond}
		var stalled sync.WaitGroup
		stalled.Add(callers)
		go func() {
			stalled.Wait()
			stop()
		}()
		m, err := d.Run(ctx, func(context.Context, int) (Caller, error) {
			answered := false
			return func(ctx context.Context) (Outcome, error) {
				if !answered {
					answered = true
					return Outcome{Counts: Counts{Allowed: 1}}, nil
				}
				stalled.Done()
				<-ctx.Done()
				return Outcome{}, ctx.Err()
			}, nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d a second: err = %v, want %v", perSecond, err, context.Canceled)
		}
		if m.Unended.Calls != callers || m.Unended.Oldest <= 0 || m.Total.Allowed != callers {
			t.Errorf("%d a second: %+v, want %d calls that were answered, and %d that were not", perSecond, m, callers, callers)
		}
		stop()
	}
}

// Whoever stops a run keeps what was measured.
func TestARunThatIsStoppedTellsWhatItHas(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []int{0, 100} {
		ctx, stop := context.WithCancel(t.Context())
		d := Drive{Callers: 2, Time: time.Minute, PerSecond: perSecond, Tell: func(_ time.Duration, c Counts) {
			if c.Allowed > 3 {
				stop()
			}
		}}
		m, err := d.Run(ctx, after(time.Millisecond))
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d a second: err = %v, want %v", perSecond, err, context.Canceled)
		}
		if m.Counts.Allowed < 4 || m.Time <= 0 || m.Time > time.Minute/2 || m.PerSecond <= 0 || m.Counts.Failed > 0 {
			t.Errorf("%d a second: %+v, want what was measured", perSecond, m)
		}
		stop()
	}
}

// A service that goes away for a moment is found again, and what failed is told by kind.
func TestALostConnectionIsMadeAgain(t *testing.T) {
	t.Parallel()
	var calls int
	var mu sync.Mutex
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == 2 {
			panic(http.ErrAbortHandler)
		}
		if calls == 3 {
			w.Header().Set("Connection", "close")
		}
		w.Write([]byte(`{"allowed":true,"tenant":"acme","x":1}`)) //nolint:errcheck
	}))
	defer service.Close()
	client := Client{URLs: []string{service.URL}, Items: []Item{{Tenant: "acme", Body: "{}"}}}
	m, err := client.Run(t.Context(), Drive{Callers: 1, Time: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if m.Total.Failed != 1 || m.Total.Allowed < 3 || len(m.Failures) != 1 || m.Failures[0].Kind != "connection closed" {
		t.Errorf("%+v, want one connection that was closed, and answers after it", m)
	}
}

// Instances behind TLS are measured as they are reached; a certificate that nobody vouches
// for is a failure, not a reason to look away.
func TestCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	service := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write([]byte(`{"allowed":true,"tenant":"acme","x":1}`)) //nolint:errcheck
	}))
	service.Config.ErrorLog = log.New(io.Discard, "", 0)
	service.StartTLS()
	defer service.Close()
	roots := x509.NewCertPool()
	roots.AddCert(service.Certificate())
	client := Client{URLs: []string{service.URL}, Items: []Item{{Tenant: "acme", Body: "{}"}}}
	for _, c := range []struct {
		trusts *tls.Config
		want   Counts
	}{
		{&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, Counts{Allowed: 1}},
		{nil, Counts{Failed: 1}},
	} {
		client.TLS = c.trusts
		if got, err := client.Each(t.Context()); err != nil || got != c.want {
			t.Errorf("trusting %v: %+v, %v, want %+v", c.trusts, got, err, c.want)
		}
	}
}

func TestSharesFollowZipf(t *testing.T) {
	t.Parallel()
	const draws = 200_000
	for _, skew := range []float64{0, 0.5, 1, 2} {
		p := newPicker(4, skew)
		random := rand.New(rand.NewPCG(1, 2))
		got := make([]float64, 4)
		for range draws {
			got[p.pick(random)]++
		}
		for i := range got {
			want := got[0] * math.Pow(float64(i+1), -skew)
			if math.Abs(got[i]-want) > draws/50 {
				t.Errorf("skew %g: item %d was chosen %g times, and the first %g, want %g", skew, i+1, got[i], got[0], want)
			}
		}
	}
}

func TestLoadsOutOfBoundsAreRefused(t *testing.T) {
	t.Parallel()
	ok := Drive{Callers: 1, Time: time.Second}
	for name, change := range map[string]func(*Drive){
		"no callers": func(d *Drive) { d.Callers = 0 }, "too many callers": func(d *Drive) { d.Callers = CallersMax + 1 },
		"no time": func(d *Drive) { d.Time = 0 }, "too long": func(d *Drive) { d.Time = TimeMax + 1 },
		"a negative pace": func(d *Drive) { d.PerSecond = -1 }, "a negative time before": func(d *Drive) { d.Warm = -1 },
	} {
		d := ok
		change(&d)
		if _, err := d.Run(t.Context(), after(0)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for _, url := range []string{"", "127.0.0.1:80", "ftp://x", "http://user@x", "http://x?y", "http:///", "http://:80", "x:y"} {
		client := Client{URLs: []string{url}, Items: []Item{{}}}
		if _, err := client.Each(t.Context()); err == nil {
			t.Errorf("%q: no error", url)
		}
	}
}
