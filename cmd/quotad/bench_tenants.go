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
	"slices"
	"strconv"
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
	benchAnswerRead = 1 << 20 // far beyond a page of tenants
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
		if err := a.do(ctx, http.MethodPost, "/v1/consume?deny_status=200", request, nil); err != nil {
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
	for i := range cmd.Tenants {
		names = append(names, fmt.Sprintf("%s-%05d", benchName, i+1))
	}
	if err := a.checkTenants(ctx, names); err != nil {
		return nil, err
	}
	fmt.Fprintf(s.Err, "making the meter and the plan %s and %d tenants\n", benchName, cmd.Tenants)
	if err := a.do(ctx, http.MethodPut, "/v1/meters/"+benchName, map[string]any{"unit": "unit"}, nil); err != nil {
		return nil, err
	}
	if err := a.do(ctx, http.MethodPut, "/v1/plans/"+benchName, map[string]any{"limits": limits}, nil); err != nil {
		return nil, err
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
				if err := a.do(ctx, http.MethodPut, "/v1/tenants/"+names[i], map[string]any{"plan": benchName}, nil); err != nil {
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

// checkTenants refuses a tenant that has one of the names and another plan: it is
// somebody's, and its plan would be taken from it.
func (a benchAPI) checkTenants(ctx context.Context, names []string) error {
	const pageSize = 100
	for cursor := ""; ; {
		var page struct {
			Tenants    []struct{ Name, Plan string }
			NextCursor string `json:"next_cursor"`
		}
		query := url.Values{"prefix": {benchName + "-"}, "limit": {strconv.Itoa(pageSize)}}
		if cursor != "" {
			query.Set("cursor", cursor)
		}
		if err := a.do(ctx, http.MethodGet, "/v1/tenants?"+query.Encode(), nil, &page); err != nil {
			return err
		}
		for _, t := range page.Tenants {
			if _, found := slices.BinarySearch(names, t.Name); found && t.Plan != benchName {
				return fmt.Errorf("the tenant %s exists with the plan %s, not %s: nothing is spent of it; use another database, or fewer --tenants",
					t.Name, t.Plan, benchName)
			}
		}
		if cursor = page.NextCursor; cursor == "" || len(page.Tenants) == 0 {
			return nil
		}
	}
}

// do makes a call, whose answer must be 2xx and is decoded into what is not nil.
func (a benchAPI) do(ctx context.Context, method, path string, body, into any) error {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return err
		}
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
		if into == nil {
			return nil
		}
		return json.Unmarshal(answer, into)
	}
	var problem struct{ Code, Detail string }
	_ = json.Unmarshal(answer, &problem) // what is none has no detail
	hint := ""
	if problem.Code == "" || problem.Code == "route_not_found" {
		problem.Detail = "this is no path of quotad: --url must lead to where its own begin"
	}
	if response.StatusCode == http.StatusForbidden && method != http.MethodPost {
		hint = "; tenants are made with a key of the scope admin: use one, or name tenants to spend of by --tenant and --meter"
	}
	return fmt.Errorf("%s %s: %s: %s%s", method, target, response.Status, strings.TrimSuffix(problem.Detail, "."), hint)
}
