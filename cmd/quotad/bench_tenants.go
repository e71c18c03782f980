package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/loadgen"
)

const (
	// benchName is of the meter and of the plan that are made, and begins the tenants'.
	benchName = "quotad-bench"
	// benchCallers make tenants at the same time.
	benchCallers    = 4
	benchAnswerMax  = 30 * time.Second
	benchAnswerRead = 64 << 10
)

// items are the requests to send: of tenants that were named, or of new ones.
func (cmd benchCmd) items(ctx context.Context, s *streams, trusted *tls.Config) (items []loadgen.Item, err error) {
	names, meter := cmd.Tenant, cmd.Meter
	a := benchAPI{url: cmd.URLs[0], key: cmd.Key, client: &http.Client{Timeout: benchAnswerMax}}
	if trusted != nil {
		a.client.Transport = &http.Transport{TLSClientConfig: trusted}
	}
	defer a.client.CloseIdleConnections()
	if len(names) > 0 {
		fmt.Fprintf(s.Err, "spending %s of %s: what is used stays used\n", meter, strings.Join(names, ", "))
	} else if names, err = cmd.makeTenants(ctx, s, a); err != nil {
		return nil, err
	} else {
		meter = benchName
	}
	for _, name := range names {
		request := map[string]any{"tenant": name, "meter": meter, "cost": cmd.Cost}
		body, err := json.Marshal(request)
		if err != nil {
			return nil, err
		}
		items = append(items, loadgen.Item{Tenant: name, Body: string(body)})
		if len(cmd.Tenant) == 0 {
			continue
		}
		request["dry_run"] = true // it would fail, and each request with it
		if err := a.do(ctx, http.MethodPost, "/v1/consume?deny_status=200", request); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// makeTenants makes, or finds as they are, the tenants, their plan and its meter. Its two
// limits are a window and a bucket that do not deny what a bench spends.
func (cmd benchCmd) makeTenants(ctx context.Context, s *streams, a benchAPI) (names []string, err error) {
	const rate = "1000000/1s"
	limits := []map[string]any{
		{"name": "hourly", "meter": benchName, "algorithm": "sliding_log", "limit": int64(catalog.UnitsMax), "window": "1h"},
		{"name": "burst", "meter": benchName, "algorithm": "token_bucket", "capacity": int64(catalog.UnitsMax), "refill": rate},
	}
	fmt.Fprintf(s.Err, "making the meter and the plan %s and %d tenants\n", benchName, cmd.Tenants)
	if err := a.do(ctx, http.MethodPut, "/v1/meters/"+benchName, map[string]any{"unit": "unit"}); err != nil {
		return nil, err
	}
	if err := a.do(ctx, http.MethodPut, "/v1/plans/"+benchName, map[string]any{"limits": limits}); err != nil {
		return nil, err
	}
	for i := range cmd.Tenants {
		names = append(names, fmt.Sprintf("%s-%05d", benchName, i+1))
	}
	bar := newProgress(s.Err, int64(len(names)), "tenants")
	defer bar.finish()
	var next atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	made := make(chan struct{})
	for range benchCallers {
		group.Go(func() error {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(names)) {
					return nil
				}
				if err := a.do(ctx, http.MethodPut, "/v1/tenants/"+names[i], map[string]any{"plan": benchName}); err != nil {
					return err
				}
				select {
				case made <- struct{}{}:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	for range names {
		select {
		case <-made:
			bar.add(1)
		case <-ctx.Done():
			return nil, group.Wait()
		}
	}
	return names, group.Wait()
}

// benchAPI makes calls that are not measured.
type benchAPI struct {
	url, key string
	client   *http.Client
}

// do makes a call, whose answer must be 2xx.
func (a benchAPI) do(ctx context.Context, method, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	path, query, _ := strings.Cut(path, "?")
	target, err := url.JoinPath(a.url, path)
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, target+"?"+query, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("--url: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+a.key)
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, benchAnswerRead))
	if err != nil {
		return err
	}
	if response.StatusCode/100 == 2 {
		return nil
	}
	var problem struct{ Code, Detail string }
	_ = json.Unmarshal(answer, &problem) // what is none has no detail
	hint := ""
	if response.StatusCode == http.StatusForbidden && method == http.MethodPut {
		hint = "; tenants are made with a key of the scope admin: use one, or name tenants to spend of by --tenant and --meter"
	}
	return fmt.Errorf("%s %s: %s: %s%s", method, target, response.Status, strings.TrimSuffix(problem.Detail, "."), hint)
}
