package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// where is how a fault of a trace begins: the file, the line, the column.
var where = regexp.MustCompile(`^t\.csv:\d+:\d+: .`)

// FuzzTrace holds the reader of traces to this: a fault says where it is, and rows that
// are read are the same when they are written as CSV and read again.
func FuzzTrace(f *testing.F) {
	for _, seed := range []string{
		"time,tenant\n2024-05-10T12:00:00.25Z,acme\n", "\ufefftime,tenant,cost,subject\n2024-05-10T12:00:00Z,acme,3,u\n",
		"time,tenant,meter,input,output\n2024-05-10T12:00:00+02:00,\"a,\"\"b\",llm.tokens,1,\n", "time,time\n", "tenant\n", "", "\"", "time,tenant\nx,y\n",
		"time,tenant,cost\n2024-05-10T12:00:00Z,acme,1000000000000000\n", "time,tenant\n1969-12-31T23:59:59Z,acme\n", "time,tenant,\n2024-05-10T12:00:00Z,acme\n",
		"time,tenant,meter,,output\n2000-01-10T0:00:00+00:00,,llm.tokens,,\n",
	} {
		f.Add(seed)
	}
	config, err := catalog.ParseFile([]byte("meters: {api.calls: {unit: call}, llm.tokens: {unit: token, weights: {input: 1, output: 4}}}\nplans: {p: {limits: []}}"), "f")
	if err != nil {
		f.Fatal(err)
	}
	snapshot, _, err := config.Compile()
	if err != nil {
		f.Fatal(err)
	}
	read := func(text string) (rows []traceRow, err error) {
		r := newTraceReader(strings.NewReader(text), "t.csv", snapshot, "api.calls")
		for {
			row, err := r.next()
			if errors.Is(err, io.EOF) {
				return rows, nil
			}
			if err != nil {
				return rows, err
			}
			rows = append(rows, row)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := read(text)
		if err != nil && !where.MatchString(err.Error()) {
			t.Fatalf("%q: %v does not say where", text, err)
		}
		if len(rows) > strings.Count(text, "\n") {
			t.Fatalf("%q has %d rows", text, len(rows))
		}
		again, err := read(written(t, rows))
		if diff := cmp.Diff(rows, again, cmp.AllowUnexported(traceRow{})); err != nil || diff != "" {
			t.Fatalf("%q written again: %v, (-first +again):\n%s", text, err, diff)
		}
	})
}

// written is a trace of the rows.
func written(t *testing.T, rows []traceRow) string {
	var text strings.Builder
	w := csv.NewWriter(&text)
	header := []string{columnTime, columnTenant, columnSubject, columnMeter, columnCost}
	var pools []string // a row without an amount has 0 of each that has a column
	for _, pool := range []string{"input", "output"} {
		if slices.ContainsFunc(rows, func(row traceRow) bool { _, given := row.request.Charges[0].Pools[pool]; return given }) {
			pools = append(pools, pool)
		}
	}
	lines := [][]string{append(header, pools...)}
	for _, row := range rows {
		charge := row.request.Charges[0]
		line := []string{
			time.UnixMicro(row.atMicros).UTC().Format(time.RFC3339Nano), row.request.Tenant, row.request.Subject, charge.Meter, strconv.FormatInt(charge.Cost, 10),
		}
		if charge.Pools != nil {
			line[4] = ""
		}
		for _, name := range pools {
			line = append(line, pool(charge, name))
		}
		lines = append(lines, line)
	}
	if err := w.WriteAll(lines); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

func pool(c quota.Charge, name string) string {
	if amount, given := c.Pools[name]; given {
		return fmt.Sprint(amount)
	}
	return ""
}

// FuzzDatabaseURL: whatever is wrong with a URL, what is said of it leaves the password out.
func FuzzDatabaseURL(f *testing.F) {
	for _, tail := range []string{"localhost:5432/quotad", "localhost:x/quotad", "[::1/quotad", "/?sslmode=x", "h/d?pool_max_conns=x", "h/d?connect_timeout=-", " h", "%zz", "h:1,h:y/d", "\n"} {
		f.Add(tail)
	}
	f.Fuzz(func(t *testing.T, tail string) {
		for _, url := range []string{"postgres://quotad:" + loginPassword + "@" + tail, "user=quotad password=" + loginPassword + " " + tail} {
			config, err := databaseFlags{URL: url}.connConfig()
			if err != nil && strings.Contains(err.Error(), loginPassword) {
				t.Fatalf("%q: %v shows the password", url, err)
			}
			if err == nil && config.Host == "" {
				t.Fatalf("%q is accepted and names no host", url)
			}
		}
	})
}
