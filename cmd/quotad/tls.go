package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// tlsFlags turn TLS on.
type tlsFlags struct {
	Cert string `name:"tls-cert" env:"QUOTAD_TLS_CERT" placeholder:"FILE" help:"Serve TLS with this certificate chain (PEM). Read again when it changes."`
	Key  string `name:"tls-key" env:"QUOTAD_TLS_KEY" placeholder:"FILE" help:"The certificate's private key (PEM)."`
}

// config returns what a listener needs, or nil without TLS.
func (f tlsFlags) config(log *slog.Logger, now func() time.Time) (*tls.Config, error) {
	switch {
	case f.Cert == "" && f.Key == "":
		return nil, nil
	case f.Cert == "" || f.Key == "":
		return nil, errors.New("serve: --tls-cert and --tls-key must be given together")
	}
	pair := &certificatePair{files: f, log: log, now: now}
	if err := pair.load(); err != nil {
		return nil, fmt.Errorf("serve: %w", err)
	}
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: pair.certificate,
	}, nil
}

// pairCheckedEvery is how often handshakes look whether the files have changed.
const pairCheckedEvery = time.Minute

// A certificatePair is a certificate and its key in files, which whoever renews them
// replaces. A new pair is taken by the handshakes after it; one that cannot be used
// leaves the old one in place. It is safe for concurrent use.
type certificatePair struct {
	files tlsFlags
	log   *slog.Logger
	now   func() time.Time

	mu        sync.Mutex
	loaded    *tls.Certificate
	changed   [2]time.Time // of the files, when they were loaded or tried
	checkedAt time.Time
}

// load reads the pair and remembers of when it is.
func (p *certificatePair) load() error {
	p.checkedAt = p.now()
	changed, err := p.modified()
	if err != nil {
		return err
	}
	p.changed = changed
	loaded, err := tls.LoadX509KeyPair(p.files.Cert, p.files.Key)
	if err != nil {
		return fmt.Errorf("load the certificate %s with the key %s: %w", p.files.Cert, p.files.Key, err)
	}
	p.loaded = &loaded
	return nil
}

func (p *certificatePair) modified() (changed [2]time.Time, err error) {
	for i, name := range []string{p.files.Cert, p.files.Key} {
		info, err := os.Stat(name)
		if err != nil {
			return changed, fmt.Errorf("load the certificate: %w", err)
		}
		changed[i] = info.ModTime()
	}
	return changed, nil
}

// certificate is what a handshake uses.
func (p *certificatePair) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); now.Sub(p.checkedAt) >= pairCheckedEvery {
		p.checkedAt = now
		changed, err := p.modified()
		if err == nil && changed != p.changed {
			if err = p.load(); err == nil {
				p.log.Info("the certificate was loaded anew", "file", p.files.Cert)
			}
		}
		if err != nil {
			p.log.Warn("the new certificate cannot be used; the old one stays", "error", err)
		}
	}
	return p.loaded, nil
}

// rootsFrom returns the certificates in a PEM file.
func rootsFrom(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s holds no certificate in PEM", file)
	}
	return roots, nil
}
