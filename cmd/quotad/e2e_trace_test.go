package main

import (
	"encoding/csv"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quotad/quotad/internal/sim"
)

const (
	traceConns  = 64
	traceConfig = `
meters:
  llm.tokens: {unit: token, weights: {input_tokens: 1, output_tokens: 4}}
plans:
  all:
    limits:
      - {name: hourly, meter: llm.tokens, algorithm: sliding_log,  limit: 999999999999999, window: 1h}
      - {name: tpm,    meter: llm.tokens, algorithm: token_bucket, capacity: 999999999999, refill: 999999999/1s}
      - {name: month,  meter: llm.tokens, algorithm: fixed_window, unlimited: true, window: month}
tenants:
  acme:     {plan: all}
  globex:   {plan: all}
  initech:  {plan: all}
  umbrella: {plan: all}
`
)

// readTrace makes a call of each row. QUOTAD_TRACE names a longer trace than the
// fixture.
func readTrace(t *testing.T) (requests []sim.Request, units int64) {
	t.Helper()
	path := os.Getenv("QUOTAD_TRACE")
	if path == "" {
		path = "testdata/e2e/llm.csv"
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for i, row := range rows[1:] { // time, tenant, input_tokens, output_tokens
		in, errIn := strconv.ParseInt(row[2], 10, 64)
		out, errOut := strconv.ParseInt(row[3], 10, 64)
		if errIn != nil || errOut != nil {
			t.Fatalf("%s:%d: %q", path, i+2, row)
		}
		key := fmt.Sprintf("%s/%d", row[0], i)
		requests = append(requests, sim.Request{
			Tenant: row[1], Key: key, Tag: key, Costs: map[string]int64{"llm.tokens": in + 4*out},
			Charges: []sim.Charge{{Meter: "llm.tokens", Pools: map[string]int64{"input_tokens": in, "output_tokens": out}}},
		})
		units += in + 4*out
	}
	return requests, units
}

// sendAll sends each request once, to an instance of urls in turn.
func sendAll(t *testing.T, token string, urls []string, requests []sim.Request) []sim.Call {
	t.Helper()
	var next atomic.Int64
	return load(t, sim.Load{
		Token: token, Workers: traceConns, Calls: len(requests), Time: 10 * time.Minute,
		Next: func(int, []sim.Call) []sim.Request {
			i := int(next.Add(1)) - 1
			if i >= len(requests) {
				return nil
			}
			r := requests[i]
			r.URL = urls[i%len(urls)]
			return []sim.Request{r}
		},
	})
}

// The product's main job: real calls, each recorded once however often it is sent, and
// sent again answered with the very same bytes.
func TestATraceIsRecordedOnceHoweverOftenItIsSent(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	token := configure(t, db, traceConfig)
	serve := startServe(t, db)
	requests, units := readTrace(t)
	first := sendAll(t, token, []string{serve.url}, requests)
	second := sendAll(t, token, []string{serve.url}, requests)
	answers := make(map[string]*sim.Call, len(first))
	for i := range first {
		c := &first[i]
		if c.Status != http.StatusOK || c.Replayed {
			t.Fatalf("%s: status %d, replayed %t: %s; want a fresh 200", c, c.Status, c.Replayed, c.Body)
		}
		answers[c.Key] = c
	}
	for i := range second {
		c := &second[i]
		if before := answers[c.Key]; c.Status != http.StatusOK || !c.Replayed || c.BodyHash != before.BodyHash {
			t.Fatalf("%s again: status %d, replayed %t, the same bytes %t; want 200, true, true",
				c, c.Status, c.Replayed, c.BodyHash == before.BodyHash)
		}
	}
	serve.stop(t, sigterm)
	ledger := wantSound(t, db, append(first, second...))
	if ledger.Entries() != len(requests) || ledger.Units("llm.tokens") != units {
		t.Errorf("the ledger has %d entries of %d units, want %d of %d",
			ledger.Entries(), ledger.Units("llm.tokens"), len(requests), units)
	}
	t.Logf("%d entries, %d units", ledger.Entries(), ledger.Units("llm.tokens"))
	t.Log("first: ", sumUp(first))
	t.Log("second:", sumUp(second))
}
