package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// The client writes HTTP/1.1 itself: a request is bytes made before the run, and of an
// answer it reads status, length and body. It shares two cores with what it measures,
// so whatever it spends would be taken from both sides and draw the ratio towards one.

// loadSpec is the task of the client process.
type loadSpec struct {
	Drive   drive    `json:"drive"`
	Address string   `json:"address"`
	Token   string   `json:"token"`
	Names   []string `json:"names"` // of the tenants that requests are spread over
	DryRun  bool     `json:"dry_run"`
	// Each sends one request for each tenant and ends.
	Each bool `json:"each"`
}

const (
	answerMax      = 30 * time.Second // no answer takes longer
	answerBytesMax = 16 << 10
)

// runLoad sends requests over connections of its own.
func runLoad(ctx context.Context, spec loadSpec) (measurement, error) {
	targets := make([]target, len(spec.Names))
	for i, name := range spec.Names {
		targets[i] = newTarget(&spec, name)
	}
	if len(targets) == 0 {
		return measurement{}, errors.New("a load needs tenants")
	}
	if spec.Each {
		return sendEach(ctx, spec.Address, targets)
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	return spec.Drive.run(ctx, func(ctx context.Context, i int) (caller, error) {
		c, err := dial(ctx, spec.Address, time.Now().Add(spec.Drive.Warm+spec.Drive.Time+answerMax))
		if err != nil {
			return nil, err
		}
		conns = append(conns, c)
		random := rand.New(rand.NewPCG(2, uint64(i)))
		return func(context.Context) (bool, error) { return c.send(&targets[random.IntN(len(targets))]) }, nil
	})
}

// eachConns send what is to be sent once.
const eachConns = 32

// sendEach sends one request for each tenant, over a few connections.
func sendEach(ctx context.Context, address string, targets []target) (m measurement, err error) {
	until := time.Now().Add(answerMax + time.Duration(len(targets))*time.Second)
	var allowed atomic.Int64
	var group errgroup.Group
	for first := range min(eachConns, len(targets)) {
		group.Go(func() error {
			c, err := dial(ctx, address, until)
			if err != nil {
				return err
			}
			defer c.Close()
			for i := first; i < len(targets); i += eachConns {
				ok, err := c.send(&targets[i])
				if err != nil {
					return err
				}
				if ok {
					allowed.Add(1)
				}
			}
			return nil
		})
	}
	err = group.Wait()
	m.Allowed = allowed.Load()
	return m, err
}

// A target is a tenant's request, and how the answer to it begins.
type target struct {
	request []byte
	allowed []byte
}

func newTarget(spec *loadSpec, tenant string) target {
	body := callBody(tenant)
	if spec.DryRun {
		body += `,"dry_run":true`
	}
	body += "}"
	return target{
		request: fmt.Appendf(nil, "POST /v1/consume HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
			"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", spec.Address, spec.Token, len(body), body),
		allowed: fmt.Appendf(nil, `{"allowed":true,"tenant":%q,`, tenant),
	}
}

// A conn is one keep-alive connection.
type conn struct {
	net.Conn
	reader *bufio.Reader
}

func dial(ctx context.Context, address string, until time.Time) (*conn, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("%s is not a loopback address", address)
	}
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(until); err != nil {
		c.Close()
		return nil, err
	}
	return &conn{c, bufio.NewReaderSize(c, answerBytesMax)}, nil
}

// send makes one request.
func (c *conn) send(t *target) (allowed bool, err error) {
	if _, err := c.Write(t.request); err != nil {
		return false, err
	}
	status, body, err := readAnswer(c.reader)
	if err != nil {
		return false, err
	}
	return t.judge(status, body)
}

// judge wants an answer to be allowed and about the tenant, or denied.
func (t *target) judge(status int, body []byte) (allowed bool, err error) {
	switch {
	case status == 200 && bytes.HasPrefix(body, t.allowed):
		return true, nil
	case status == 429 && bytes.Contains(body, []byte(`"allowed":false`)):
		return false, nil
	}
	return false, fmt.Errorf("an answer with status %d that was not expected: %s", status, body)
}

var headerLength = []byte("Content-Length: ")

// readAnswer reads one answer as net/http servers write it. The body holds until the
// next call.
func readAnswer(r *bufio.Reader) (status int, body []byte, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, nil, fmt.Errorf("read an answer: %w", err)
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, nil, fmt.Errorf("an answer begins with %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, nil, fmt.Errorf("read an answer: %w", err)
	}
	length := -1
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return 0, nil, fmt.Errorf("read an answer: %w", err)
		}
		if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
			break
		}
		if digits, ok := bytes.CutPrefix(line, headerLength); ok {
			if length, err = strconv.Atoi(string(digits)); err != nil {
				return 0, nil, fmt.Errorf("read an answer: %w", err)
			}
		}
	}
	if length < 0 || length > answerBytesMax {
		return 0, nil, errors.New("an answer does not say its length, or is too long")
	}
	if body, err = r.Peek(length); err != nil {
		return 0, nil, fmt.Errorf("read an answer: %w", err)
	}
	_, err = r.Discard(length)
	return status, body, err
}
