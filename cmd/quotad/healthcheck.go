package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// healthcheckCmd asks a running instance whether it is ready, for container images
// that hold no other program.
type healthcheckCmd struct {
	URL     string        `name:"url" default:"http://127.0.0.1:8080" env:"QUOTAD_URL" help:"Where the instance listens."`
	CA      string        `name:"ca" env:"QUOTAD_CA" placeholder:"FILE" help:"Trust the certificates in this file (PEM) in place of the system's."`
	Timeout time.Duration `name:"timeout" default:"3s" help:"How long to wait for its answer."`
}

// readyBytesMax bounds what is read of an answer.
const readyBytesMax = 64 << 10

// Run returns an error, and so exits with 1, unless the instance is ready.
func (cmd healthcheckCmd) Run(ctx context.Context, s *streams) error {
	ctx, cancel := context.WithTimeout(ctx, cmd.Timeout)
	defer cancel()
	target, err := url.JoinPath(cmd.URL, "readyz")
	if err != nil {
		return fmt.Errorf("healthcheck: --url: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fmt.Errorf("healthcheck: --url: %w", err)
	}
	client := http.DefaultClient
	if cmd.CA != "" {
		roots, err := rootsFrom(cmd.CA)
		if err != nil {
			return fmt.Errorf("healthcheck: --ca: %w", err)
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
		defer transport.CloseIdleConnections()
		client = &http.Client{Transport: transport}
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("healthcheck: %w", err)
	}
	defer response.Body.Close()
	var ready struct {
		Ready  bool     `json:"ready"`
		Faults []string `json:"faults"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, readyBytesMax)).Decode(&ready)
	switch {
	case err != nil:
		return fmt.Errorf("healthcheck: %s answered %d and not as quotad does", target, response.StatusCode)
	case response.StatusCode != http.StatusOK || !ready.Ready:
		return errors.New("healthcheck: not ready: " + strings.Join(ready.Faults, "; "))
	}
	_, err = fmt.Fprintln(s.Out, "ready")
	return err
}
