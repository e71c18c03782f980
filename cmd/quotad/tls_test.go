package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// writeCertificate makes a certificate for 127.0.0.1, its own authority, with a serial
// number, and leaves it and its key in dir with a time of change.
func writeCertificate(t *testing.T, dir string, serial int64, changed time.Time) tlsFlags {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	files := tlsFlags{Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	for name, block := range map[string]*pem.Block{
		files.Cert: {Type: "CERTIFICATE", Bytes: certificate}, files.Key: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(name, changed, changed); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// The real binary serves HTTP/2 over TLS, tells its https address, and its own health
// check trusts the certificate that it is given.
func TestServeSpeaksTLS(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	token := configure(t, db, serveTestConfig)
	files := writeCertificate(t, t.TempDir(), 1, time.Now())
	p := start(t, nil, "serve", "--database-url", db.URL, "--listen", "127.0.0.1:0", "--tls-cert", files.Cert, "--tls-key", files.Key)
	url, ok := strings.CutPrefix(p.line(t), "listening on ")
	if !ok || !strings.HasPrefix(url, "https://127.0.0.1:") {
		t.Fatalf("it listens on %q, want an https address", url)
	}
	roots, err := rootsFrom(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/consume",
		strings.NewReader(`{"tenant":"acme","meter":"api.calls"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK || response.ProtoMajor != 2 {
		t.Errorf("answer = %s %s, want 200 by HTTP/2", response.Proto, response.Status)
	}
	if code, out := output(t, "healthcheck", "--url", url, "--ca", files.Cert); code != 0 || out != "ready\n" {
		t.Errorf("healthcheck = %d %q, want 0 and ready", code, out)
	}
	if code, _ := output(t, "healthcheck", "--url", url); code == 0 {
		t.Error("healthcheck trusts a certificate that nobody vouches for")
	}
	old := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11} //nolint:gosec // to be refused
	if conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), old); err == nil {
		conn.Close()
		t.Error("TLS 1.1 is served")
	}
}

// A renewed certificate is taken by later handshakes without a restart; one that cannot
// be used leaves the old one.
func TestCertificateIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	now := time.Now()
	files := writeCertificate(t, dir, 1, now)
	var logged bytes.Buffer
	config, err := files.config(slog.New(slog.NewTextHandler(&logged, nil)), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	wantWarnings := func(count int, when string) {
		t.Helper()
		if got := strings.Count(logged.String(), "level=WARN"); got != count {
			t.Errorf("%s there are %d warnings, want %d:\n%s", when, got, count, logged.String())
		}
	}
	want := func(serial int64, when string) {
		t.Helper()
		pair, err := config.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := pair.Leaf.SerialNumber.Int64(); got != serial {
			t.Errorf("%s the certificate is number %d, want %d", when, got, serial)
		}
	}
	want(1, "at first")
	writeCertificate(t, dir, 2, now.Add(time.Second))
	want(1, "within a minute")
	now = now.Add(pairCheckedEvery)
	want(2, "after a minute")
	wantWarnings(0, "while all is well")
	if err := os.WriteFile(files.Key, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	now = now.Add(pairCheckedEvery)
	want(2, "with a broken key")
	wantWarnings(1, "with a broken key")
	now = now.Add(pairCheckedEvery)
	want(2, "with the same broken key")
	wantWarnings(1, "with the same broken key")
	if err := os.Remove(files.Cert); err != nil {
		t.Fatal(err)
	}
	now = now.Add(pairCheckedEvery)
	want(2, "without a file")
	wantWarnings(2, "without a file")
	writeCertificate(t, dir, 3, now.Add(time.Hour))
	now = now.Add(pairCheckedEvery)
	want(3, "once it is good again")
}

// A connection made with the old certificate goes on while new ones get the new one.
func TestRenewedCertificateDropsNoConnection(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	began := time.Now()
	files := writeCertificate(t, dir, 1, began)
	roots, err := rootsFrom(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	var later atomic.Int64
	config, err := files.config(slog.New(slog.DiscardHandler), func() time.Time { return began.Add(time.Duration(later.Load())) })
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	var serving errgroup.Group
	t.Cleanup(func() { // after the connections' own, or it would wait for them
		listener.Close()
		serving.Wait() //nolint:errcheck // it ends with the listener's error
	})
	serving.Go(func() error {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return err
			}
			serving.Go(func() error {
				defer conn.Close()
				_, err := io.Copy(conn, conn)
				return err
			})
		}
	})
	dial := func(roots *x509.CertPool, serial int64) *tls.Conn {
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if got := conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64(); got != serial {
			t.Errorf("a new connection got certificate %d, want %d", got, serial)
		}
		return conn
	}
	echo := func(conn *tls.Conn) {
		t.Helper()
		got := make([]byte, len("hello"))
		if _, err := conn.Write([]byte("hello")); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
			t.Errorf("echo = %q, %v", got, err)
		}
	}
	old := dial(roots, 1)
	echo(old)
	files = writeCertificate(t, dir, 2, began.Add(time.Second))
	later.Store(int64(pairCheckedEvery))
	if roots, err = rootsFrom(files.Cert); err != nil {
		t.Fatal(err)
	}
	renewed := dial(roots, 2)
	echo(old)
	echo(renewed)
}

// Who says nothing loses the connection, be it before the handshake or after it.
func TestSilentTLSConnectionsAreClosed(t *testing.T) {
	t.Parallel()
	files := writeCertificate(t, t.TempDir(), 1, time.Now())
	config, err := files.config(slog.New(slog.DiscardHandler), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	s, err := startServer(t.Context(), serverConfig{
		Listen: "127.0.0.1:0", Database: connConfig(t, migrated(t).URL), Log: slog.New(slog.DiscardHandler), TLS: config,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close(context.WithoutCancel(t.Context())) //nolint:errcheck // what it says is tested elsewhere
	address := strings.TrimPrefix(s.URL(), "https://")
	roots, err := rootsFrom(files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	mute, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	shaken, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer shaken.Close()
	deadline := time.Now().Add(4 * readHeaderMax)
	for name, conn := range map[string]net.Conn{"without a handshake": mute, "after its handshake": shaken} {
		if err := conn.SetReadDeadline(deadline); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a silent connection %s is still open after %v", name, 4*readHeaderMax)
		}
	}
}

// What cannot be served is said at the start.
func TestBadCertificatesAreRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	one, other := writeCertificate(t, t.TempDir(), 1, time.Now()), writeCertificate(t, t.TempDir(), 2, time.Now())
	for _, tt := range []struct {
		files tlsFlags
		want  string
	}{
		{tlsFlags{Cert: one.Cert}, "must be given together"},
		{tlsFlags{Key: one.Key}, "must be given together"},
		{tlsFlags{Cert: one.Cert, Key: other.Key}, "does not match"},
		{tlsFlags{Cert: one.Cert, Key: one.Key + ".none"}, "no such file"},
		{tlsFlags{Cert: one.Key, Key: one.Key}, "load the certificate"},
	} {
		_, err := tt.files.config(slog.New(slog.DiscardHandler), time.Now)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error with %+v = %v, want one that says %q", tt.files, err, tt.want)
		}
	}
	if config, err := (tlsFlags{}).config(slog.New(slog.DiscardHandler), time.Now); config != nil || err != nil {
		t.Errorf("without flags = %v, %v; want plain HTTP", config, err)
	}
}
