package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"mvdan.cc/sh/v3/shell"

	"github.com/quotad/quotad/internal/catalog"
)

const apiDocument = "../../docs/api.md"

// docBlock is a fenced block of the document: its language and its lines.
var docBlock = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$|^<!-- wait (\\w+) -->$")

// A docRun carries out the curl lines of docs/api.md, one after another, against the
// real service, and writes what came back below each.
type docRun struct {
	*service
	key      string
	stand    map[string]string // what stands in the document for a random part
	examples map[string]string // by file name
	seen     map[string]bool   // operations
}

// Every curl line of docs/api.md gives the answer printed below it, and the examples of
// the OpenAPI document are those answers.
func TestAPIDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(apiDocument)
	if err != nil {
		t.Fatal(err)
	}
	d := &docRun{service: newEmptyService(t), stand: map[string]string{}, examples: map[string]string{}, seen: map[string]bool{}}
	d.key = d.token(catalog.KeyAdmin, "")
	d.stand[strings.Split(d.key, "_")[2]] = "examplekey00"
	got := d.run(string(text))
	if *update {
		if err := os.WriteFile(apiDocument, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(apiDocument); err != nil || string(want) != got {
		t.Errorf("%s, want-, got+ (%v):\n%s", apiDocument, err, cmp.Diff(string(want), got))
	}
	for _, rt := range d.handler.Routes() {
		if !d.seen[rt.Method+" "+rt.Pattern] && rt.Pattern != "/metrics" && rt.Pattern != "/openapi.json" {
			t.Errorf("%s shows no call of %s %s", apiDocument, rt.Method, rt.Pattern)
		}
		for _, name := range operations[rt.Method+" "+rt.Pattern].query {
			if !strings.Contains(got, "`"+name+"`") {
				t.Errorf("%s does not name parameter %s of %s %s", apiDocument, name, rt.Method, rt.Pattern)
			}
		}
	}
	d.checkExamples()
}

// Every code of a problem is in the document's table, with its status and its title.
func TestAPIDocumentListsEveryCode(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(apiDocument)
	if err != nil {
		t.Fatal(err)
	}
	for code, kind := range problemKinds {
		if row := fmt.Sprintf("| `%s` | %d | %s |", code, kind.status, kind.title); !strings.Contains(string(text), row) {
			t.Errorf("%s lacks the row %s", apiDocument, row)
		}
	}
}

// Every metric is in the document's table: one that nobody knows of warns nobody.
func TestAPIDocumentListsEveryMetric(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(apiDocument)
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`Name: +"(quotad_\w+)"`)
	for _, file := range []string{"metrics.go", "../quota/metrics.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := named.FindAllSubmatch(source, -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", file)
		}
		for _, name := range found {
			if row := fmt.Sprintf("| `%s` | ", name[1]); !strings.Contains(string(text), row) {
				t.Errorf("%s lacks a row that begins with %s", apiDocument, row)
			}
		}
	}
}

// run returns the document with its answers as they are now.
func (d *docRun) run(text string) string {
	var last answer
	var verbose bool
	return docBlock.ReplaceAllStringFunc(text, func(block string) string {
		parts := docBlock.FindStringSubmatch(block)
		switch language := parts[1]; {
		case parts[3] != "":
			wait, err := time.ParseDuration(parts[3])
			if err != nil {
				d.t.Fatal(err)
			}
			d.db.AdvanceClock(d.t, wait)
		case language == "yaml" && len(d.seen) == 0:
			d.apply(parts[2])
		case language == "sh" && strings.HasPrefix(parts[2], "curl "):
			last, verbose = d.curl(parts[2])
		case language == "json":
			return "```json\n" + spread(d.t, d.standIns(last.body)) + "\n```"
		case language == "http" && verbose:
			return "```http\n" + d.head(last) + spread(d.t, d.standIns(last.body)) + "\n```"
		}
		return block
	})
}

// head is the status line and the header fields of an answer.
func (d *docRun) head(a answer) string {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\n", a.status, http.StatusText(a.status))
	spelled := map[string]string{"Content-Type": "Content-Type"} // as it is on the wire
	for name := range headers {
		spelled[http.CanonicalHeaderKey(name)] = name
	}
	for _, name := range slices.Sorted(maps.Keys(a.header)) {
		if spelled[name] != "" {
			fmt.Fprintf(&b, "%s: %s\n", spelled[name], d.standIns(a.header[name][0]))
		}
	}
	b.WriteString("\n")
	return b.String()
}

// curl carries a command out.
func (d *docRun) curl(command string) (a answer, verbose bool) {
	for standIn, actual := range d.reversed() {
		command = strings.ReplaceAll(command, standIn, actual)
	}
	words, err := shell.Fields(command, func(name string) string {
		return map[string]string{"KEY": d.key, "QUOTAD": ""}[name]
	})
	if err != nil {
		d.t.Fatalf("%s: %v", command, err)
	}
	r := request{method: http.MethodGet, header: map[string]string{}}
	for i := 1; i < len(words); i++ {
		switch word := words[i]; word {
		case "-s":
		case "-i", "-si":
			verbose = true
		case "-X":
			i++
			r.method = words[i]
		case "-H":
			i++
			name, value, _ := strings.Cut(words[i], ": ")
			r.header[name] = value
		case "--json":
			i++
			r.body = words[i]
			r.header["Content-Type"] = "application/json"
			if r.method == http.MethodGet {
				r.method = http.MethodPost
			}
		default:
			if !strings.HasPrefix(word, "/") {
				d.t.Fatalf("%s: what is %q?", command, word)
			}
			r.path = word
		}
	}
	a = d.do(r)
	d.record(r, a)
	return a, verbose
}

// record keeps the first request and the first answer of each status as examples.
func (d *docRun) record(r request, a answer) {
	path, _, _ := strings.Cut(r.path, "?")
	routed := chi.NewRouteContext()
	if !d.handler.router.Match(routed, r.method, path) {
		return
	}
	name := r.method + " " + routed.RoutePattern()
	d.seen[name] = true
	keep := func(what, text string) {
		file := operations[name].id + "." + what + ".json"
		if _, have := d.examples[file]; !have && json.Valid([]byte(text)) {
			d.examples[file] = spread(d.t, d.standIns(text)) + "\n"
		}
	}
	keep(fmt.Sprint(a.status), a.body)
	if r.body != "" && a.status < 300 {
		keep("request", r.body)
	}
}

// checkExamples compares the recorded examples with the files of the OpenAPI document.
func (d *docRun) checkExamples() {
	d.t.Helper()
	files, err := filepath.Glob("examples/*.json")
	if err != nil {
		d.t.Fatal(err)
	}
	if *update {
		for _, file := range files {
			if err := os.Remove(file); err != nil {
				d.t.Fatal(err)
			}
		}
		files = nil
		for name, text := range d.examples {
			file := filepath.Join("examples", name)
			files = append(files, file)
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				d.t.Fatal(err)
			}
		}
	}
	for _, file := range files {
		name := filepath.Base(file)
		text, err := os.ReadFile(file)
		if err != nil {
			d.t.Fatal(err)
		}
		if diff := cmp.Diff(string(text), d.examples[name]); diff != "" {
			d.t.Errorf("%s, want-, got+ (renew with -update):\n%s", file, diff)
		}
		delete(d.examples, name)
	}
	for name := range d.examples {
		d.t.Errorf("examples/%s is missing (renew with -update)", name)
	}
}

// randomParts are what differs from run to run, and what stands for the n-th of each.
var randomParts = []struct {
	pattern *regexp.Regexp
	standIn string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "019c143a-1c00-7000-8000-%012d"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "5f3c9d%058d"},
	{regexp.MustCompile(`qk_[a-z]+_[a-z0-9]{12}_[0-9A-Za-z]{33}`), "qk_live_examplekey%02d_%%033d"},
}

var realInstants = regexp.MustCompile(`"20\d\d-\d\d-\d\dT[0-9:.]+Z"`)

// standIns replaces the random parts of a text by ones that stay the same.
func (d *docRun) standIns(text string) string {
	for _, part := range randomParts {
		text = part.pattern.ReplaceAllStringFunc(text, func(actual string) string {
			if d.stand[actual] == "" {
				n := 1
				for have := range d.stand {
					if part.pattern.MatchString(have) {
						n++
					}
				}
				d.stand[actual] = strings.ReplaceAll(fmt.Sprintf(part.standIn, n), "%033d", strings.Repeat("x", 33))
				if id := strings.Split(actual, "_"); len(id) == 4 {
					d.stand[id[2]] = fmt.Sprintf("examplekey%02d", n)
				}
			}
			return d.stand[actual]
		})
	}
	for actual, standIn := range d.stand {
		if len(actual) == 12 {
			text = strings.ReplaceAll(text, actual, standIn)
		}
	}
	return realInstants.ReplaceAllStringFunc(text, func(instant string) string {
		if at, err := time.Parse(`"`+time.RFC3339Nano+`"`, instant); err == nil && time.Since(at).Abs() < 24*time.Hour {
			return `"` + startOfTest.Format(time.RFC3339) + `"`
		}
		return instant
	})
}

// reversed leads from what stands in the document to what is really meant.
func (d *docRun) reversed() map[string]string {
	out := map[string]string{}
	for actual, standIn := range d.stand {
		out[standIn] = actual
	}
	return out
}

// spreadColumns is the longest line that a value is kept on.
const spreadColumns = 200

// spread lays JSON out: what fits on a line stays on it.
func spread(t *testing.T, text string) string {
	t.Helper()
	var compact bytes.Buffer
	if err := json.Compact(&compact, []byte(text)); err != nil {
		return strings.TrimSpace(text) // no JSON
	}
	return spreadValue(compact.Bytes(), "")
}

func spreadValue(value json.RawMessage, indent string) string {
	line := spaced(value)
	if len(indent)+len(line) <= spreadColumns || len(value) == 0 || (value[0] != '{' && value[0] != '[') {
		return line
	}
	var b strings.Builder
	b.WriteByte(value[0])
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.Token() //nolint:errcheck // it is valid
	for i := 0; decoder.More(); i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString("\n" + indent + "  ")
		if value[0] == '{' {
			name, _ := decoder.Token()
			quoted, _ := json.Marshal(name)
			b.WriteString(string(quoted) + ": ")
		}
		var inner json.RawMessage
		decoder.Decode(&inner) //nolint:errcheck // it is valid
		b.WriteString(spreadValue(inner, indent+"  "))
	}
	b.WriteString("\n" + indent + string(value[len(value)-1]))
	return b.String()
}

// spaced puts a space behind commas and colons outside of text.
func spaced(value []byte) string {
	var b strings.Builder
	inText := false
	for i, ch := range value {
		b.WriteByte(ch)
		switch {
		case ch == '"' && (i == 0 || value[i-1] != '\\'):
			inText = !inText
		case !inText && (ch == ',' || ch == ':'):
			b.WriteByte(' ')
		}
	}
	return b.String()
}
