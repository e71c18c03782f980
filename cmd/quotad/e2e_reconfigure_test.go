package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pgtest"
	"github.com/quotad/quotad/internal/sim"
)

// reconfigureEvery is how often the hot tenant's plan changes in a test.
const reconfigureEvery = 250 * time.Millisecond

// A reconfigurer puts the n-th configuration of [mixedConfig] in force. When it returns
// nil, it is; an error that ctx has caused is none.
type reconfigurer func(ctx context.Context, n int) error

// reconfiguring changes the numbers of the hot tenant's plan until it is stopped.
type reconfiguring struct {
	running errgroup.Group
	cancel  context.CancelFunc
	done    []time.Time // when version i+1 of the plan was in force for certain
}

func reconfigure(t *testing.T, change reconfigurer) *reconfiguring {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &reconfiguring{cancel: cancel, done: []time.Time{time.Now()}}
	r.running.Go(func() error {
		tick := time.NewTicker(reconfigureEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
			err := change(ctx, len(r.done))
			if ctx.Err() != nil {
				return nil //nolint:nilerr // it was called off
			}
			if err != nil {
				return err
			}
			r.done = append(r.done, time.Now())
		}
	})
	t.Cleanup(func() { r.stop(t) })
	return r
}

// stop calls the change off that is under way. It may be in force all the same.
func (r *reconfiguring) stop(t *testing.T) {
	t.Helper()
	r.cancel()
	if err := r.running.Wait(); err != nil {
		t.Error(err)
	}
}

// wantFollowed wants every call to have been decided under the version that was in
// force when it was begun, or a newer one: on every instance, from the very next call.
func (r *reconfiguring) wantFollowed(t *testing.T, ledger *sim.Ledger, calls []sim.Call) {
	t.Helper()
	shown := 0
	for i := range calls {
		c := &calls[i]
		if c.Tenant != "hot" || c.Outcome != sim.OutcomeAllowed || c.DryRun || c.Replayed {
			continue
		}
		inForce := 0
		for inForce < len(r.done) && r.done[inForce].Before(c.Started) {
			inForce++
		}
		if got := ledger.VersionOf(c); got < int32(inForce) && shown < 10 {
			t.Errorf("%s was decided under version %d when %d was in force", c, got, inForce)
			shown++
		}
	}
	if len(r.done) < 3 {
		t.Errorf("the plan has changed %d times only", len(r.done)-1)
	}
}

// wantOnce wants every change to have made one version, however often it was asked for;
// the last one may have been called off.
func (r *reconfiguring) wantOnce(t *testing.T, db *pgtest.DB) {
	t.Helper()
	var versions int
	err := db.Owner(t).QueryRow(t.Context(), "select count(*) from quotad.plan_version where plan = 'hot'").Scan(&versions)
	if err != nil || versions < len(r.done) || versions > len(r.done)+1 {
		t.Errorf("the plan has %d versions, %v; want the %d that were put, or one more", versions, err, len(r.done))
	}
}

// applying changes the plan beside the instances, as `quotad apply` does, and leaves no
// session behind.
func applying(db *pgtest.DB) reconfigurer {
	return func(ctx context.Context, n int) error {
		pool, err := pgxpool.New(ctx, db.URL)
		if err != nil {
			return err
		}
		defer pool.Close()
		return apply(ctx, catalog.NewStore(pool), mixedConfig(n))
	}
}

// putting changes the plan through the instances that traffic goes to, each in its turn. Whoever got no
// answer, or that there is none for now, asks the next one, so each change comes to be
// in force, whatever crashes meanwhile.
func putting(t *testing.T, db *pgtest.DB, tr *traffic) reconfigurer {
	t.Helper()
	var token string
	withCatalog(t, db, func(store *catalog.Store) (err error) {
		_, token, err = store.CreateKey(t.Context(), "test", catalog.KeySpec{Scopes: []catalog.KeyScope{catalog.KeyAdmin}})
		return err
	})
	asked := 0
	return func(ctx context.Context, n int) error {
		config, err := catalog.ParseFile([]byte(mixedConfig(n)), "test.yaml")
		if err != nil {
			return err
		}
		body, err := json.Marshal(config.Plans["hot"])
		if err != nil {
			return err
		}
		for ; ; asked++ {
			urls := *tr.urls.Load()
			status, answer, err := put(ctx, urls[asked%len(urls)]+"/v1/plans/hot", token, body)
			switch {
			case status == http.StatusOK:
				asked++
				return nil
			case ctx.Err() != nil:
				return ctx.Err()
			case err == nil && status != http.StatusServiceUnavailable:
				return fmt.Errorf("change %d of the plan: status %d, %s", n, status, answer)
			}
			pause := time.NewTimer(retryPause)
			<-pause.C
		}
	}
}

func put(ctx context.Context, url, token string, body []byte) (status int, answer []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, eventMax)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}
