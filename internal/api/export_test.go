package api

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/pgtest"
)

// fillLedger adds n entries to a tenant that has at least one, a millisecond apart.
func (s *service) fillLedger(tenant string, n int) {
	s.t.Helper()
	s.db.Exec(s.t, `insert into quotad.entry (tenant_id, seq, at, effective_at, kind, meter_id, subject_id, units, held,
			total, subject_total, request_id, batch_id, ref_seq, plan_version_id, limits_used, hash)
		select e.tenant_id, e.seq + n, u.at, u.at, 'consume', e.meter_id, 0, 1, 0, e.total + n, 0,
			gen_random_uuid(), gen_random_uuid(), 0, e.plan_version_id, array[e.total + n - 1], sha256(n::text::bytea)
		from quotad.account a
		join quotad.entry e on e.tenant_id = a.tenant_id and e.seq = a.seq
		cross join generate_series(1, $2::bigint) n
		cross join lateral (select e.at + n * interval '1 millisecond' as at) u
		where a.tenant = $1`, tenant, n)
	s.db.Exec(s.t, `update quotad.account a set seq = a.seq + $2, last_at = a.last_at + $2 * interval '1 millisecond'
		where a.tenant = $1`, tenant, n)
}

// trickyTexts are what a spreadsheet or a careless reader would change.
var trickyTexts = []string{
	`=1+1`, `=HYPERLINK("http://x";"y")`, `+4670123`, `-5`, `@sum(a1)`, `＝1`, `＋1`, `－1`, `＠x`, `'quoted`, `''twice`,
	`a,b`, `say "hi"`, ` in front`, `behind `, `{"a":1}`, `café`, `007`, `u;v`,
}

// jsonEntries reads a list to its end as pages of JSON.
func (s *service) jsonEntries(path string) (entries []map[string]any) {
	s.t.Helper()
	for cursor := ""; ; {
		var page struct {
			Entries    []map[string]any
			NextCursor string `json:"next_cursor"`
		}
		decoder := json.NewDecoder(strings.NewReader(s.read(catalog.KeyAudit, path+cursor).want(s.t, 200).body))
		decoder.UseNumber()
		if err := decoder.Decode(&page); err != nil {
			s.t.Fatal(err)
		}
		entries = append(entries, page.Entries...)
		if page.NextCursor == "" {
			return entries
		}
		cursor = "&cursor=" + url.QueryEscape(page.NextCursor)
	}
}

// csvEntries reads CSV as the README says it is to be read.
func csvEntries(t *testing.T, text string) (entries []map[string]any) {
	t.Helper()
	if strings.Count(text, "\n") != strings.Count(text, "\r\n") {
		t.Error("a line does not end in CRLF")
	}
	reader := csv.NewReader(strings.NewReader(text))
	rows, err := reader.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] {
		e := map[string]any{}
		for i, cell := range row {
			name := rows[0][i]
			switch name {
			case "tenant", "subject":
				if strings.ContainsRune("=+-@＝＋－＠", []rune(cell + " ")[0]) {
					t.Errorf("%s %q: a spreadsheet would run it", name, cell)
				}
				e[name] = strings.TrimPrefix(cell, "'")
			case "limits_used", "limits_held", "dims":
				if cell == "" {
					continue
				}
				var value any
				decoder := json.NewDecoder(strings.NewReader(cell))
				decoder.UseNumber()
				if err := decoder.Decode(&value); err != nil {
					t.Fatalf("%s %s: %v", name, cell, err)
				}
				e[name] = value
			case "seq", "units", "held", "total", "subject_total", "ref_seq", "plan_version", "override_set_id":
				e[name] = json.Number(cell)
			default:
				e[name] = cell
			}
			if cell == "" {
				delete(e, name)
			}
		}
		entries = append(entries, e)
	}
	return entries
}

func ndjsonEntries(t *testing.T, text string) (entries []map[string]any) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		var e map[string]any
		decoder := json.NewDecoder(strings.NewReader(lines.Text()))
		decoder.UseNumber()
		if err := decoder.Decode(&e); err != nil {
			t.Fatal(err)
		}
		entries = append(entries, e)
	}
	return entries
}

func TestAnExportIsTheWholeList(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for i, text := range trickyTexts {
		body, err := json.Marshal(map[string]any{
			"tenant": "huge", "subject": text, "meter": "api.calls", "cost": i, "dims": map[string]string{"x": text + "<&>", "y": ","},
		})
		if err != nil {
			t.Fatal(err)
		}
		s.consume(string(body)).want(t, 200)
	}
	s.fillLedger("huge", pgtest.Rounds(2*ledger.EntriesMax))
	held := s.holds("", `{"tenant":"huge","meter":"api.calls","cost":7}`).want(t, 200).decision(t).Hold.ID.String()
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	s.holds(held+"/settle", `{"tenant":"huge","cost":3}`).want(t, 200)
	for _, query := range []string{
		"order=asc", "order=desc", "meter=api.calls&kind=consume&order=desc", "subject=" + url.QueryEscape("=1+1"),
		"kind=hold", "kind=settle", "plan=huge&from=2026-01-31T12:00:00Z&to=2026-01-31T12:00:01.5Z",
	} {
		path := "/v1/tenants/huge/entries?" + query
		want := s.jsonEntries(path + "&limit=1000")
		for form, parse := range map[string]func(*testing.T, string) []map[string]any{"csv": csvEntries, "ndjson": ndjsonEntries} {
			a := s.read(catalog.KeyAudit, path+"&format="+form).want(t, 200)
			if diff := cmp.Diff(want, parse(t, a.body)); diff != "" {
				t.Errorf("%s as %s, want-, got+:\n%s", query, form, diff)
			}
		}
	}
	var texts []string
	for _, e := range csvEntries(t, s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?format=csv").body)[:len(trickyTexts)] {
		texts = append(texts, e["subject"].(string))
	}
	if diff := cmp.Diff(trickyTexts, texts); diff != "" {
		t.Errorf("subjects, want-, got+:\n%s", diff)
	}
}

// An id that a spreadsheet would run is a tenant's, too, and an entry has every field.
func TestRowsOfCSV(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 120_000_000, time.UTC)
	e := ledger.Entry{
		Tenant: "-acme", Seq: 7, At: at, EffectiveAt: at, Kind: "reverse", Meter: "api.calls", Subject: `"a"`, Units: -5, Total: 90,
		SubjectTotal: 3, RefSeq: 6, Plan: "pro", PlanVersion: 2, OverrideSetID: 3, LimitsUsed: []int64{1, 20}, LimitsHeld: []int64{0, 4},
		Dims:          map[string]string{"b": "<,>", "a": "1"},
		SubjectDigest: []byte{1},
	}
	const zeros = "00000000-0000-0000-0000-000000000000"
	want := `'-acme,7,2026-01-31T12:00:00.12Z,2026-01-31T12:00:00.12Z,reverse,api.calls,"""a""",-5,0,90,3,` +
		zeros + "," + zeros + `,6,pro,2,"[1,20]","{""a"":""1"",""b"":""<,>""}",` + strings.Repeat("0", 64) + `,"[0,4]",3` + "\r\n"
	if got, err := appendCSVEntry(nil, &e); err != nil || string(got) != want {
		t.Errorf("row = %s, %v, want %s", got, err, want)
	}
	e = ledger.Entry{Tenant: "acme", Seq: 1, At: at, EffectiveAt: at, Kind: "consume", Meter: "m", Plan: "p", PlanVersion: 1}
	want = `acme,1,2026-01-31T12:00:00.12Z,2026-01-31T12:00:00.12Z,consume,m,,0,0,0,,` +
		zeros + "," + zeros + `,,p,1,[],,` + strings.Repeat("0", 64) + ",,\r\n"
	if got, err := appendCSVEntry(nil, &e); err != nil || string(got) != want {
		t.Errorf("row = %s, %v, want %s", got, err, want)
	}
}

func TestTheFormOfAListIsNegotiated(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	const (
		asJSON   = "application/json"
		asCSV    = "text/csv; charset=utf-8; header=present"
		asNDJSON = "application/x-ndjson"
	)
	for _, tt := range []struct{ query, accept, want string }{
		{"", "", asJSON},
		{"", "text/csv", asCSV},
		{"", "application/x-ndjson", asNDJSON},
		{"", "application/json", asJSON},
		{"", "*/*", asJSON},
		{"", "text/html, application/xhtml+xml, */*;q=0.8", asJSON},
		{"", "text/csv;q=0.5, application/json;q=0.4", asCSV},
		{"", "text/csv;q=0.5, application/json", asJSON},
		{"", "text/csv;q=0, application/x-ndjson;q=0", asJSON},
		{"", "text/csv;q=lots", asJSON},
		{"", "nonsense;;;, text/csv", asCSV},
		{"?format=csv", "application/json", asCSV},
		{"?format=json", "text/csv", asJSON},
		{"?format=ndjson", "", asNDJSON},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			a := s.do(request{
				method: method, path: "/v1/tenants/huge/entries" + tt.query, token: s.token(catalog.KeyAudit, ""),
				header: map[string]string{"Accept": tt.accept},
			}).want(t, 200)
			if got := a.header.Get("Content-Type"); got != tt.want {
				t.Errorf("%s %q, Accept %q: Content-Type = %q, want %q", method, tt.query, tt.accept, got, tt.want)
			}
		}
	}
	for path, field := range map[string]string{
		"?format=xml": "format", "?format=csv&limit=10": "limit", "?format=ndjson&cursor=abc": "cursor", "?format=csv&kind=spent": "kind",
	} {
		s.read(catalog.KeyAudit, "/v1/tenants/huge/entries"+path).wantFault(t, field, "")
	}
	s.read(catalog.KeyAudit, "/v1/tenants/nobody/entries?format=csv").want(t, 404, codeTenantNotFound)
	if a := s.read(catalog.KeyAudit, "/v1/tenants/acme/entries?format=csv").want(t, 200); a.body != csvColumns {
		t.Errorf("no entries as CSV = %q, want the header row", a.body)
	}
}

// faultyLedger makes the handler read entries through f, on one connection.
func faultyLedger(t *testing.T, db *pgtest.DB, f *pgtest.Faults) func(*Config) {
	t.Helper()
	config, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 1
	f.Attach(&config.ConnConfig.Config)
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return func(c *Config) { c.Ledger = ledger.NewStore(pool) }
}

// Half a ledger must not pass for a whole one.
func TestAnExportThatFailsMidwayIsSeenToFail(t *testing.T) {
	t.Parallel()
	for _, form := range []string{"csv", "ndjson"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			var faults pgtest.Faults
			s := newServiceOn(t, db, 0, faultyLedger(t, db, &faults))
			s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
			s.fillLedger("huge", 5*ledger.EntriesMax)
			faults.Arm(pgtest.Fault{AfterReadBytes: 500_000}) // in the second chunk or the third
			body, err := s.stream(s.URL + "/v1/tenants/huge/entries?format=" + form)
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("the body ends in %v, want %v", err, io.ErrUnexpectedEOF)
			}
			if lines := strings.Count(body, "\n"); lines < ledger.EntriesMax || lines > 4*ledger.EntriesMax {
				t.Errorf("%d lines came", lines)
			}
			if got := strings.Count(s.logs.String(), `level=ERROR msg="an export was broken off"`); got != 1 {
				t.Errorf("the log says so %d times, want once:\n%s", got, s.logs)
			}
			// The next one is whole.
			a := s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?format="+form).want(t, 200)
			if lines := strings.Count(strings.TrimPrefix(a.body, csvColumns), "\n"); lines != 5*ledger.EntriesMax+1 {
				t.Errorf("the next export has %d entries, want %d", lines, 5*ledger.EntriesMax+1)
			}
			// One that fails before it begins is an ordinary problem.
			faults.CutAll()
			faults.Refuse(errors.New("no route"))
			s.read(catalog.KeyAudit, "/v1/tenants/huge/entries?format="+form).want(t, 503, codeUnavailable)
		})
	}
}

// stream gets a URL with an auditor's key and returns its body and what it ended in.
func (s *service) stream(url string) (body string, err error) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.token(catalog.KeyAudit, ""))
	response, err := s.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		s.t.Errorf("status = %d, want 200", response.StatusCode)
	}
	text, err := io.ReadAll(response.Body)
	return string(text), err
}

// What a server allows an ordinary request does not cut a long stream off.
func TestAnExportMayTakeLongerThanARequest(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	s.fillLedger("huge", 2*ledger.EntriesMax)
	impatient := httptest.NewUnstartedServer(s.handler)
	impatient.Config.ReadTimeout = 100 * time.Millisecond
	impatient.Config.WriteTimeout = 100 * time.Millisecond
	impatient.Start()
	t.Cleanup(impatient.Close)
	// Every chunk reads entry_dims, and waits for whoever has it.
	holder, err := s.db.Owner(t).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	letGo := sync.OnceFunc(func() { holder.Rollback(t.Context()) }) //nolint:errcheck // the export fails then
	defer letGo()
	if _, err := holder.Exec(t.Context(), "lock table quotad.entry_dims in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	release := time.AfterFunc(400*time.Millisecond, letGo)
	defer release.Stop()
	body, err := s.stream(impatient.URL + "/v1/tenants/huge/entries?format=ndjson")
	if got := len(ndjsonEntries(t, body)); err != nil || got != 2*ledger.EntriesMax+1 {
		t.Errorf("%d entries came, %v", got, err)
	}
}

// A reader that stops reading a stream is let go after a chunk's time. It holds nothing of
// the database meanwhile, and no more memory than a chunk.
func TestAnExportThatNobodyReadsIsCut(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.handler.chunkWriteMax = 200 * time.Millisecond
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	s.fillLedger("huge", 30*ledger.EntriesMax) // more than the kernel's buffers take
	for _, format := range []string{"csv", "ndjson"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		ask := rawRequest("GET", "/v1/tenants/huge/entries?format="+format, s.token(catalog.KeyAudit, ""), "")
		if _, err := io.WriteString(conn, ask); err != nil {
			t.Fatal(err)
		}
		const gone = `quotad_http_request_seconds_count{class="4xx",route="GET /v1/tenants/{tenant}/entries"} `
		want := gone + map[string]string{"csv": "1", "ndjson": "2"}[format]
		for until := time.Now().Add(time.Minute); !strings.Contains(s.do(request{method: "GET", path: "/metrics"}).body, want); {
			if time.Now().After(until) {
				t.Fatalf("the export of %s goes on with nobody who reads it", format)
			}
			runtime.Gosched()
		}
		if logs := s.logs.String(); strings.Contains(logs, "level=ERROR") {
			t.Errorf("a reader that is gone is no error of ours: %s", logs)
		}
	}
}
