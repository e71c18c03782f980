package main

import (
	"context"
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
)

// impatient serves what a serves, with the same bounds but shorter by far, so that a test
// sees them all end.
func (a *target) impatient() net.Addr {
	a.t.Helper()
	h := a.newHTTP()
	h.ReadHeaderTimeout, h.ReadTimeout = 2*time.Second, 4*time.Second
	h.WriteTimeout, h.IdleTimeout = 6*time.Second, 2*time.Second
	var listen net.ListenConfig
	listener, err := listen.Listen(a.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		a.t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := h.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			a.t.Errorf("Serve: %v", err)
		}
	})
	a.t.Cleanup(func() {
		h.Close() //nolint:errcheck // what was open is to be cut
		serving.Wait()
	})
	return listener.Addr()
}

// Every bound on a connection is there, in an order in which none makes another useless.
func TestTheServerBoundsEveryPartOfAConnection(t *testing.T) {
	h := (&server{config: serverConfig{Log: slog.New(slog.DiscardHandler)}}).newHTTP()
	if h.ReadHeaderTimeout <= 0 || h.ReadTimeout <= h.ReadHeaderTimeout || h.WriteTimeout <= h.ReadTimeout || h.IdleTimeout <= 0 {
		t.Errorf("header %v, read %v, write %v, idle %v: want all set, each of the first three above the one before",
			h.ReadHeaderTimeout, h.ReadTimeout, h.WriteTimeout, h.IdleTimeout)
	}
	if h.MaxHeaderBytes <= 0 || h.MaxHeaderBytes > 64<<10 {
		t.Errorf("MaxHeaderBytes = %d, want a bound that any number of connections can afford", h.MaxHeaderBytes)
	}
}

// trickle writes a text byte by byte, slower than anyone should, and again its last byte,
// until the connection is closed.
func trickle(ctx context.Context, conn net.Conn, text string) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if _, err := io.WriteString(conn, text[min(i, len(text)-1):][:1]); err != nil {
			return
		}
	}
}

// Slow callers, hundreds at once, are cut after the server's bounds, and meanwhile cost
// little and nobody else.
func TestSlowCallersAreCutAndHarmNobody(t *testing.T) {
	t.Parallel()
	const each = 50
	a := attacked(t)
	defer a.end()
	a.harmless()
	address, before := a.impatient(), runtime.NumGoroutine()
	heap := heapInUse()
	var calls sync.WaitGroup
	for _, tt := range []struct {
		name, atOnce, slowly string
		want                 []string // any of these
	}{
		{"says nothing", "", "", []string{""}},
		{"header fields byte by byte", "", health + "X-A: " + strings.Repeat("a", 100), []string{"", "400"}},
		{"a header that never ends", health + "X-A: ", "a", []string{"", "400"}},
		{"a body byte by byte", a.post(sized(dryRun), ""), strings.Repeat(" ", len(dryRun)), []string{"408"}},
		{"chunks byte by byte", a.post("Transfer-Encoding: chunked\r\n", ""), "1", []string{"408"}},
		{"a body that nobody asked for", "POST /v1/consume HTTP/1.1\r\nHost: q\r\nContent-Length: 1000\r\n\r\n", " ", []string{"401"}},
	} {
		for range each {
			conn := dial(t, address)
			calls.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				io.WriteString(conn, tt.atOnce) //nolint:errcheck // answers tells
				var writing sync.WaitGroup
				if tt.slowly != "" {
					writing.Go(func() { trickle(ctx, conn, tt.slowly) })
				}
				got, _, err := answers(conn)
				cancel()
				conn.Close()
				writing.Wait()
				if text := strings.Trim(fmt.Sprint(got), "[]"); err != nil || !slices.Contains(tt.want, text) {
					t.Errorf("%s: answers = %v, %v; want %q", tt.name, got, err, tt.want)
				}
			})
		}
	}
	a.harmless()
	calls.Wait()
	if now := heapInUse(); now > heap+64<<20 {
		t.Errorf("slow callers took the heap from %d to %d bytes", heap, now)
	}
	a.settled(before)
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

// A caller that asks and asks and reads nothing is cut once its answers do not fit into
// the kernel's buffers any more; what it asked for was decided one at a time until then.
func TestACallerThatNeverReadsIsCut(t *testing.T) {
	t.Parallel()
	a := attacked(t)
	defer a.end()
	a.harmless()
	address, before := a.impatient(), runtime.NumGoroutine()
	const asks = "GET /openapi.json HTTP/1.1\r\nHost: q\r\n\r\n" // the largest answer that needs no key
	for range 2 {
		conn := dial(t, address)
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		for written := 0; ; written++ {
			if _, err := io.WriteString(conn, asks); err != nil {
				if isTimeout(err) {
					t.Errorf("the server reads on after %d requests", written)
				}
				break // reset
			}
		}
		a.harmless()
	}
	a.settled(before)
}
