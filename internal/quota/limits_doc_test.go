package quota

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

var updateDocs = flag.Bool("update", false, "write the examples of docs/limits.md anew")

// A docStep is what happens at an instant of an example: the same request, several times.
type docStep struct {
	at    time.Duration // since the example began
	times int
	kind  ledger.Kind
	cost  int64
}

// docExamples are the worked examples of docs/limits.md.
var docExamples = []struct {
	algorithm catalog.Algorithm
	limit     string // without its name and meter
	steps     []docStep
}{
	{catalog.SlidingLog, "limit: 10, window: 1h", []docStep{
		{0, 1, "", 4},
		{20 * time.Minute, 1, "", 6},
		{30 * time.Minute, 1, "", 3},
		{59*time.Minute + 59*time.Second, 1, "", 1},
		{60 * time.Minute, 1, "", 3},
		{60 * time.Minute, 1, "", 2},
	}},
	{catalog.SlidingCounter, "limit: 100, window: 1m", []docStep{
		{0, 84, "", 1}, {75 * time.Second, 36, "", 1}, {75 * time.Second, 2, "", 1},
	}},
	{catalog.FixedWindow, "limit: 10, window: 1h", []docStep{
		{59 * time.Minute, 1, "", 10}, {59 * time.Minute, 1, "", 1}, {60 * time.Minute, 1, "", 10}, {60 * time.Minute, 1, "", 1},
	}},
	{catalog.TokenBucket, "capacity: 10, refill: 2/1s", []docStep{
		{0, 10, "", 1}, {0, 1, "", 1}, {3 * time.Second, 6, "", 1}, {3 * time.Second, 1, "", 1},
	}},
	{catalog.GCRA, "rate: 6/1m, burst: 5", []docStep{
		{0, 5, "", 1}, {0, 1, "", 1}, {10 * time.Second, 1, "", 1}, {10 * time.Second, 1, "", 2},
	}},
	{catalog.LeakyBucket, "rate: 2/1s, queue: 10", []docStep{
		{0, 1, "", 1}, {0, 9, "", 1}, {0, 5, "", 1}, {500 * time.Millisecond, 1, "", 1},
	}},
	{catalog.Concurrency, "limit: 2", []docStep{
		{0, 1, ledger.KindHold, 500},
		{10 * time.Second, 1, ledger.KindHold, 500},
		{20 * time.Second, 1, ledger.KindHold, 500},
		{20 * time.Second, 1, "", 500},
		{60 * time.Second, 1, ledger.KindHold, 500},
	}},
}

// docRow is one line of an example's table.
type docRow struct {
	at, asked, answer, remaining, retry, delay string
}

// playExample plays an example on a tenant of its own and returns the lines of its table.
func playExample(t *testing.T, w *world, e *Engine, n int) []docRow {
	t.Helper()
	example, tenant := docExamples[n], fmt.Sprint("tenant-", n)
	w.apply(t, fmt.Sprintf(`
meters: {calls: {unit: call}}
plans: {%[1]s: {limits: [{name: example, meter: calls, algorithm: %[2]s, %[3]s}]}}
tenants: {%[1]s: {plan: %[1]s}}
`, tenant, example.algorithm, example.limit))
	var rows []docRow
	for _, step := range example.steps {
		w.db.SetClock(t, docBegin.Add(step.at))
		for range step.times {
			r := consume(tenant, "calls", step.cost)
			asked := "cost " + strconv.FormatInt(step.cost, 10)
			if step.kind == ledger.KindHold {
				r.Kind, r.TTL, asked = step.kind, time.Minute, "a hold of "+strconv.FormatInt(step.cost, 10)+" for 1m"
			}
			d := mustDecide(t, e, r)
			row := docRow{at: step.at.String(), asked: asked, answer: "allowed", remaining: "", delay: docNumber(d.DelayMS)}
			if len(d.Limits) > 0 {
				row.remaining = strconv.FormatInt(d.Limits[0].Remaining, 10)
			}
			if !d.Allowed {
				row.answer, row.retry = string(d.Reason), docNumber(d.RetryMS)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// docBegin is a full hour and minute, so that cells begin with the examples.
var docBegin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func docNumber(n *int64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatInt(*n, 10)
}

// docTable writes rows as a table; a run of the same question and answer is one line.
func docTable(rows []docRow, shaped bool) string {
	head, columns := "| at | asked | answer | `remaining` | `retry_after_ms` |", 5
	if shaped {
		head, columns = head+" `delay_ms` |", 6
	}
	text := head + "\n" + strings.Repeat("|---", columns) + "|\n"
	for i := 0; i < len(rows); {
		first, last, n := rows[i], rows[i], 0
		for ; i < len(rows) && rows[i].at == first.at && rows[i].asked == first.asked && rows[i].answer == first.answer; i++ {
			last, n = rows[i], n+1
		}
		asked, span := first.asked, func(a, b string) string {
			if a == b {
				return a
			}
			return a + " … " + b
		}
		if n > 1 {
			asked = fmt.Sprintf("%d times %s", n, asked)
		}
		text += fmt.Sprintf("| %s | %s | %s | %s | %s |", first.at, asked, first.answer,
			span(first.remaining, last.remaining), span(first.retry, last.retry))
		if shaped {
			text += fmt.Sprintf(" %s |", span(first.delay, last.delay))
		}
		text += "\n"
	}
	return text
}

// The examples of docs/limits.md are what the service answers.
func TestTheExamplesOfLimitsAreWhatTheServiceAnswers(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, docBegin, `meters: {calls: {unit: call}}`)
	w.db.Exec(t, "select quotad.ensure_partitions('2026-02-01', '2026-04-01')")
	e := w.engine(t, nil)
	text := ""
	for n, example := range docExamples {
		text += fmt.Sprintf("### `%s`, %s\n\n", example.algorithm, example.limit)
		text += docTable(playExample(t, w, e, n), example.algorithm == catalog.LeakyBucket) + "\n"
	}
	const file, begin, end = "../../docs/limits.md", "<!-- examples -->\n\n", "<!-- /examples -->"
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(have), begin)
	old, tail, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatalf("%s has no part between %q and %q", file, begin, end)
	}
	if *updateDocs {
		if err := os.WriteFile(file, []byte(head+begin+text+end+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		old = text
	}
	if diff := cmp.Diff(old, text); diff != "" {
		t.Errorf("the examples of docs/limits.md (-said +answered; renew with -update):\n%s", diff)
	}
	if len(docExamples) != len(catalog.Algorithms()) {
		t.Errorf("%d examples, want one for each of %d algorithms", len(docExamples), len(catalog.Algorithms()))
	}
	w.verify(t)
}
