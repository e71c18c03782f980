package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// Bounds of a load. A slip in a test must not become an attack on the machine.
const (
	connsMax       = 6_000
	callsMax       = 2_000_000 // all of them are kept
	timeMax        = time.Hour
	togetherMax    = 16               // requests sent at once by one worker
	answerMax      = 60 * time.Second // longer than any instance takes to settle a lost commit
	answerBytesMax = 1 << 20
)

// A Load sends requests from workers that each have connections of their own. The zero
// value is refused.
type Load struct {
	Token   string
	Workers int
	Calls   int           // no further ones are begun after so many
	Time    time.Duration // nor after this long
	// Next returns what a worker sends next, all at once, after the calls that it made
	// last; none ends the worker. It is called by several workers at the same time,
	// but never by one worker twice.
	Next func(worker int, last []Call) []Request
	// Connect returns the instance that a worker connects to before the first one of
	// them sends, so that all begin at once. nil: nobody waits.
	Connect func(worker int) (url string)
}

// Validate reports what is missing or out of bounds.
func (l Load) Validate() error {
	var errs []error
	if l.Token == "" || l.Next == nil {
		errs = append(errs, errors.New("load: Token and Next are required"))
	}
	if l.Workers < 1 || l.Workers > connsMax {
		errs = append(errs, fmt.Errorf("load: Workers must be 1 to %d", connsMax))
	}
	if l.Calls < 1 || l.Calls > callsMax {
		errs = append(errs, fmt.Errorf("load: Calls must be 1 to %d", callsMax))
	}
	if l.Time <= 0 || l.Time > timeMax {
		errs = append(errs, fmt.Errorf("load: Time must be up to %s", timeMax))
	}
	return errors.Join(errs...)
}

// Run sends until every worker has ended, and returns all calls in the order they were
// begun. A call that is under way when Time is over gets its answer.
func (l Load) Run(ctx context.Context) ([]Call, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	run := &loadRun{load: l}
	run.connected.Add(l.Workers)
	made := make([][]Call, l.Workers)
	var group errgroup.Group
	for i := range l.Workers {
		group.Go(func() (err error) {
			made[i], err = run.work(ctx, i)
			return err
		})
	}
	err := group.Wait()
	calls := slices.Concat(made...)
	slices.SortStableFunc(calls, func(a, b Call) int { return a.Started.Compare(b.Started) })
	return calls, err
}

// A loadRun is what the workers of one Run share.
type loadRun struct {
	load      Load
	begun     atomic.Int64
	connected sync.WaitGroup
}

// work is one worker.
func (r *loadRun) work(ctx context.Context, worker int) (made []Call, err error) {
	transport := newTransport()
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: answerMax}
	err = r.connect(ctx, client, worker)
	r.connected.Done()
	if err != nil {
		return nil, err
	}
	r.connected.Wait()
	until := time.Now().Add(r.load.Time)
	var last []Call
	for ctx.Err() == nil && time.Now().Before(until) {
		requests := r.load.Next(worker, last)
		if len(requests) == 0 {
			return made, nil
		}
		if len(requests) > togetherMax {
			return made, fmt.Errorf("load: a worker sends at most %d requests at once", togetherMax)
		}
		if r.begun.Add(int64(len(requests))) > int64(r.load.Calls) {
			return made, nil
		}
		last, err = r.send(ctx, client, requests)
		made = append(made, last...)
		if err != nil {
			return made, err
		}
	}
	return made, nil
}

// connect opens the worker's connection.
func (r *loadRun) connect(ctx context.Context, client *http.Client, worker int) error {
	if r.load.Connect == nil {
		return nil
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.load.Connect(worker)+"/healthz", nil)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, answerBytesMax))
	response.Body.Close()
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

// send sends requests at once and waits for all of their answers.
func (r *loadRun) send(ctx context.Context, client *http.Client, requests []Request) ([]Call, error) {
	calls := make([]Call, len(requests))
	var group errgroup.Group
	for i := range requests {
		group.Go(func() (err error) {
			calls[i], err = r.sendOne(ctx, client, requests[i])
			return err
		})
	}
	return calls, group.Wait()
}

// sendOne makes one call. An error means that the request cannot be written, not that
// it has no answer.
func (r *loadRun) sendOne(ctx context.Context, client *http.Client, request Request) (Call, error) {
	call := Call{Request: request, Outcome: OutcomeUnknown, Started: time.Now()}
	body, err := request.body()
	if err != nil {
		return call, fmt.Errorf("load: %w", err)
	}
	if request.Patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, request.Patience)
		defer cancel()
	}
	h, err := http.NewRequestWithContext(ctx, http.MethodPost, request.URL+request.path(), bytes.NewReader(body))
	if err != nil {
		return call, fmt.Errorf("load: %w", err)
	}
	h.GetBody = nil // else the transport would send a keyed request again by itself
	h.Header.Set("Authorization", "Bearer "+r.load.Token)
	h.Header.Set("Content-Type", "application/json")
	if request.Key != "" {
		h.Header.Set("Idempotency-Key", request.Key)
	}
	response, err := client.Do(h)
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
		response.Body.Close()
	}
	call.Took = time.Since(call.Started)
	if err != nil {
		call.Body = err.Error()
		if errors.Is(err, syscall.ECONNREFUSED) {
			call.Outcome = OutcomeRefused // it went nowhere
		}
		return call, nil
	}
	call.answered(response.StatusCode, response.Header, body)
	return call, nil
}

// newTransport makes connections to this machine only, without a proxy.
func newTransport() *http.Transport {
	var dialer net.Dialer
	return &http.Transport{
		MaxIdleConnsPerHost: togetherMax,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if ip := net.ParseIP(strings.Trim(host, "[]")); ip == nil || !ip.IsLoopback() {
				return nil, fmt.Errorf("load: %s is not a loopback address", address)
			}
			return dialer.DialContext(ctx, network, address)
		},
	}
}
