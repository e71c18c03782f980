package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/quotad/quotad/internal/loadgen"
)

// benchResult is what is printed.
type benchResult struct {
	URLs        []string          `json:"urls"`
	Connections int               `json:"connections"`
	Rate        int               `json:"rate,omitempty"` // calls a second; 0: a closed loop
	Tenants     int               `json:"tenants"`
	Skew        float64           `json:"skew"`
	Batch       int               `json:"batch"`
	Keys        bool              `json:"idempotency_keys"`
	MeasuredMS  int64             `json:"measured_ms"`
	Stopped     bool              `json:"stopped_early"`
	Measured    benchMeasured     `json:"measured"`
	Unended     benchUnended      `json:"unanswered"`
	Requests    loadgen.Counts    `json:"requests"` // warm-up included
	Failures    []loadgen.Failure `json:"failures"`
}

// benchUnended is of the calls that had no answer when bench was stopped early.
type benchUnended struct {
	Calls    int64   `json:"calls"`
	OldestMS float64 `json:"oldest_ms"`
}

// benchMeasured is of the measured time.
type benchMeasured struct {
	PerSecond float64 `json:"decisions_per_second"`
	Allowed   int64   `json:"allowed"`
	Denied    int64   `json:"denied"`
	Failed    int64   `json:"failed"`
	P50MS     float64 `json:"p50_ms"`
	P90MS     float64 `json:"p90_ms"`
	P99MS     float64 `json:"p99_ms"`
	P999MS    float64 `json:"p999_ms"`
	MaxMS     float64 `json:"max_ms"`
	// LateMS is how late a call was sent at a rate, since no connection was free or bench
	// itself was late.
	LateMS float64 `json:"sent_late_p99_ms"`
}

func (cmd benchCmd) result(m loadgen.Measurement, stopped bool) benchResult {
	millis := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	r := benchResult{
		URLs: cmd.URLs, Connections: cmd.Connections, Rate: cmd.rate(), Tenants: cmd.Tenants, Skew: cmd.Skew, Batch: cmd.Batch, Keys: cmd.Keys,
		MeasuredMS: m.Time.Milliseconds(), Stopped: stopped,
		Measured: benchMeasured{
			PerSecond: math.Round(m.PerSecond*10) / 10, Allowed: m.Counts.Allowed, Denied: m.Counts.Denied, Failed: m.Counts.Failed,
			P50MS: millis(m.P50), P90MS: millis(m.P90), P99MS: millis(m.P99), P999MS: millis(m.P999), MaxMS: millis(m.Max),
			LateMS: millis(m.LateP99),
		},
		Unended:  benchUnended{m.Unended.Calls, millis(m.Unended.Oldest)},
		Requests: m.Total, Failures: m.Failures,
	}
	if len(cmd.Tenant) > 0 {
		r.Tenants = len(cmd.Tenant)
	}
	return r
}

func (r benchResult) print(to io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(to).Encode(r)
	}
	pace := "as fast as answers come"
	if r.Rate > 0 {
		pace = fmt.Sprintf("%d calls/s, sent late by p99 %.2f ms", r.Rate, r.Measured.LateMS)
	}
	early := ""
	if r.Stopped {
		early = ", stopped early"
	}
	fmt.Fprintf(to, "%s: connections %d, tenants %d, skew %g, batch %d, %s\n", strings.Join(r.URLs, ", "), r.Connections, r.Tenants, r.Skew, r.Batch, pace)
	fmt.Fprintf(to, "measured for %.1f s%s\n", float64(r.MeasuredMS)/1000, early)
	if r.Unended.Calls > 0 {
		fmt.Fprintf(to, "calls without an answer then: %d, the oldest after %.2f s\n", r.Unended.Calls, r.Unended.OldestMS/1000)
	}
	fmt.Fprintln(to)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "decisions/s\tallowed\tdenied\tfailed\tp50 ms\tp90 ms\tp99 ms\tp99.9 ms\tmax ms\t\n")
	m := r.Measured
	fmt.Fprintf(w, "%.0f\t%d\t%d\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t\n",
		m.PerSecond, m.Allowed, m.Denied, m.Failed, m.P50MS, m.P90MS, m.P99MS, m.P999MS, m.MaxMS)
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(to, "\nwith the warm-up: allowed %d, denied %d, failed %d\n", r.Requests.Allowed, r.Requests.Denied, r.Requests.Failed)
	if len(r.Failures) == 0 {
		return nil
	}
	w = tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nFAILED\tCOUNT\tFOR EXAMPLE\n")
	for _, f := range r.Failures {
		fmt.Fprintf(w, "%s\t%d\t%s\n", f.Kind, f.Count, f.Example)
	}
	return w.Flush()
}
