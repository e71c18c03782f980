package api

import (
	"encoding/csv"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-chi/chi/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
)

// FuzzQuery holds the readers of parameters to this: what they accept is within its
// bounds and is read again from its own text, and each fault names a parameter.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		"limit=1&from=2026-01-31T12:00:00Z&seq=7", "at=2026-01-31T12:00:00.123456789%2B02:00", "limit=01&limit=2", "a;b=c", "%zz", "=1",
		"id=0198c5d7-8f5e-7c4e-9d6c-3f2a1b0c9d8e", "from=9999-12-31T23:59:59Z&to=1970-01-01T00:00:00Z", "tz=Europe/Berlin", "tz=../../etc/passwd",
		"%c2%9b31m=1", "subject=%00", strings.Repeat("&", 100), "limit=1000000000000000",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		c := &call{r: &http.Request{URL: &url.URL{RawQuery: raw}}}
		values, err := c.query("limit", "from", "to", "seq", "id", "subject", "tz", "at")
		if err != nil {
			wantFaults(t, err)
			return
		}
		q := filter{values: values}
		from, to := q.span()
		size, seq, id, subject, zone := q.pageSize(), q.seq(), q.uuid("id"), q.text("subject", catalog.IDRule), q.text("tz", zoneRule)
		if err := q.problem(); err != nil {
			wantFaults(t, err)
			return
		}
		if size < 1 || size > pageMax || seq < 0 || seq > catalog.UnitsMax || len(subject) > catalog.IDBytesMax || strings.Contains(zone, "..") {
			t.Fatalf("%q: size %d, seq %d, subject %q, zone %q", raw, size, seq, subject, zone)
		}
		if !from.IsZero() && !to.IsZero() && !from.Before(to) {
			t.Fatalf("%q: from %v is not before %v", raw, from, to)
		}
		written := url.Values{}
		for name, at := range map[string]time.Time{"from": from, "to": to} {
			if !at.IsZero() {
				written.Set(name, at.Format(time.RFC3339Nano))
			}
		}
		if id != uuid.Nil {
			written.Set("id", id.String())
		}
		again := filter{values: written}
		if from2, to2 := again.span(); !from2.Equal(from) || !to2.Equal(to) || again.uuid("id") != id || again.problem() != nil {
			t.Fatalf("%q: written again as %q it is %v to %v, faults %v", raw, written.Encode(), from2, to2, again.faults)
		}
	})
}

// wantFaults checks that a refusal names a bounded number of fields and rules, in text
// that does nothing to a terminal.
func wantFaults(t *testing.T, err error) {
	t.Helper()
	var p *problem
	if !errors.As(err, &p) || len(p.faults) == 0 || len(p.faults) > faultsMax {
		t.Fatalf("err = %v, want a problem with 1 to %d faults", err, faultsMax)
	}
	for _, fault := range p.faults {
		if fault.Field == "" || fault.Rule == "" || !utf8.ValidString(fault.Field) || strings.ContainsFunc(fault.Field, unicode.IsControl) {
			t.Fatalf("fault %+q lacks field or rule, or holds what is no text", fault)
		}
	}
}

// FuzzEntityTags holds the reader of If-Match and If-None-Match to this: what it accepts
// is bounded, and means the same when it is written as quotad writes tags.
func FuzzEntityTags(f *testing.F) {
	tag := `"` + strings.Repeat("0a", len(catalog.Tag{})) + `"`
	for _, seed := range []string{tag, "W/" + tag, tag + " , ,W/" + tag, "*", "*,*", `"`, `""`, `"a" "b"`, ",", `"é"`, tag + "x"} {
		f.Add(seed, true)
	}
	f.Fuzz(func(t *testing.T, line string, weak bool) {
		set, err := tagSet(http.Header{"If-Match": {line}}, "If-Match", weak)
		if err != nil {
			wantFaults(t, err)
			return
		}
		if set == nil || len(set.Tags) > tagsMax || set.Any && len(set.Tags) > 0 {
			t.Fatalf("tagSet(%q) = %+v", line, set)
		}
		if len(set.Tags) == 0 {
			return // any, or tags that quotad never made
		}
		var tags []string
		for _, tag := range set.Tags {
			tags = append(tags, etag(tag))
		}
		again, err := tagSet(http.Header{"If-Match": {strings.Join(tags, ", ")}}, "If-Match", weak)
		if diff := cmp.Diff(set, again); err != nil || diff != "" {
			t.Fatalf("tagSet(%q) written again: %v, (-first +again):\n%s", line, err, diff)
		}
	})
}

// FuzzHead holds the readers of what else a request's head says to this: a token is
// found again in a line of its own, a form is one that there is, and a media type that
// passes is JSON.
func FuzzHead(f *testing.F) {
	f.Add("Bearer qk_live_x", "text/csv;q=0.5, application/x-ndjson", "application/json; charset=UTF-8")
	f.Add("bearer  x ", "*/*;q=NaN,text/csv;q=1e400", "application/json;")
	f.Add("Basic x", ";;,,q=", "text/json")
	f.Fuzz(func(t *testing.T, authorization, accept, contentType string) {
		if token, ok := bearer(http.Header{"Authorization": {authorization}}); ok {
			again, ok := bearer(http.Header{"Authorization": {"Bearer " + token}})
			if token == "" || !ok || again != token {
				t.Fatalf("bearer(%q) = %q, and of that %q", authorization, token, again)
			}
		}
		q := filter{}
		form := q.format(http.Header{"Accept": {accept}})
		if _, streams := streamHeaders[form]; !streams && form != formatJSON || len(q.faults) > 0 {
			t.Fatalf("format of %q = %q, faults %v", accept, form, q.faults)
		}
		err := checkMediaType(http.Header{"Content-Type": {contentType}})
		if err == nil && contentType != "" && !strings.Contains(strings.ToLower(contentType), "application/json") {
			t.Fatalf("media type %q passes", contentType)
		}
	})
}

// FuzzPath holds the reader of a path's tenant to this: what comes out keeps the rule of
// ids, and comes out again of a path in which it is escaped.
func FuzzPath(f *testing.F) {
	for _, seed := range []string{"acme", "a%2Fb", "a/b", "..", "%2e%2e", "%", "%zz", "%00", "café", "a;b", "a%2e%2e%2f"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, written string) {
		tenant, ok := tenantOf(t, written)
		if !ok {
			return
		}
		if rule := catalog.IDRule(tenant); rule != "" {
			t.Fatalf("%q is tenant %q, which %s", written, tenant, rule)
		}
		if again, ok := tenantOf(t, url.PathEscape(tenant)); !ok || again != tenant {
			t.Fatalf("%q is tenant %q, and escaped %q", written, tenant, again)
		}
	})
}

// tenantOf is the tenant that a path names, as the router finds it.
func tenantOf(t *testing.T, written string) (tenant string, ok bool) {
	target, err := url.ParseRequestURI("/v1/tenants/" + written + "/limits")
	if err != nil {
		return "", false // net/http refuses it
	}
	router := chi.NewRouter()
	router.Get("/v1/tenants/{tenant}/limits", func(_ http.ResponseWriter, r *http.Request) {
		c := &call{r: r}
		if err := c.pathTenant(); err != nil {
			wantFaults(t, err)
			return
		}
		tenant, ok = c.tenant, true
	})
	router.ServeHTTP(httptest.NewRecorder(), &http.Request{Method: http.MethodGet, URL: target, Header: http.Header{}})
	return tenant, ok
}

// FuzzCSVText holds cells to this: a spreadsheet runs none, and a reader who drops one
// apostrophe from the front has the text as it was.
func FuzzCSVText(f *testing.F) {
	for _, seed := range append(trickyTexts, "", "\ufeff=1", "\u00a0=1", " =1", "'", "''") {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if catalog.CharactersRule(text) != "" {
			return // is let in nowhere
		}
		line := appendCSVText(nil, text)
		row, err := csv.NewReader(strings.NewReader("x," + string(line) + "\r\n")).Read()
		if err != nil || len(row) != 2 {
			t.Fatalf("%q is written as %q: %q, %v", text, line, row, err)
		}
		if first, _ := utf8.DecodeRuneInString(row[1]); row[1] != "" && strings.ContainsRune("=+-@＝＋－＠", first) {
			t.Fatalf("%q is written as %q, which a spreadsheet runs", text, line)
		}
		if got := strings.TrimPrefix(row[1], "'"); got != text {
			t.Fatalf("%q is written as %q and read as %q", text, line, got)
		}
	})
}
