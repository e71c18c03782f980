package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
)

// hostileBodies are made of a route's valid body, which ends in a brace. Each is refused
// by every route that takes a body.
func hostileBodies(valid string) map[string]string {
	open := strings.TrimSuffix(valid, "}")
	first, _, _ := strings.Cut(valid, ":") // {"name"
	more := func(member string) string { return open + "," + member + "}" }
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	return map[string]string{
		"20,000 brackets":              more(`"x":` + deep(10_000)),
		"30,000 open brackets":         open + `,"x":` + strings.Repeat("[", 30_000),
		"30,000 open braces":           strings.Repeat(`{"a":`, 10_000),
		"an exponent of a million":     more(`"x":1e999999`),
		"a number of 400 digits":       more(`"x":` + strings.Repeat("9", 400)),
		"a number of 30,000 digits":    more(`"x":0.` + strings.Repeat("1", 30_000)),
		"a member twice":               more(first[1:] + ":0"),
		"a member twice, escaped":      more(strings.Replace(first[1:], first[2:3], fmt.Sprintf(`\u%04x`, first[2]), 1) + ":0"),
		"NaN":                          more(`"x":NaN`),
		"Infinity":                     more(`"x":-Infinity`),
		"a leading zero":               more(`"x":01`),
		"a plus":                       more(`"x":+1`),
		"a byte order mark":            "\ufeff" + valid,
		"UTF-16":                       "\xff\xfe{\x00}\x00",
		"no UTF-8":                     more("\"x\":\"\xff\""),
		"UTF-8 that is too long":       more("\"x\":\"\xc0\x80\""),
		"half a character":             more(`"x":"\ud800"`),
		"NUL behind it":                valid + "\x00",
		"another behind it":            valid + valid,
		"a comma too many":             open + ",}",
		"a comment":                    open + "/**/}",
		"single quotes":                strings.ReplaceAll(valid, `"`, `'`),
		"control characters in a text": more("\"x\":\"\n\""),
		"a prototype":                  more(`"__proto__":{"admin":true}`),
		"a list":                       "[" + valid + "]",
		"a text":                       `"x"`,
		"null":                         "null",
		"nothing":                      " ",
		"a form":                       "tenant=huge&meter=api.calls",
		"XML with what is elsewhere":   `<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>`,
		"YAML with what it repeats":    "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]",
		"2,000 unknown members":        open + unknownMembers(2_000) + "}",
	}
}

func unknownMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"unknown%d":1`, i)
	}
	return b.String()
}

// No body makes trouble: every route refuses what is broken as a fault of the caller, in a
// short answer that names where, and nothing changes.
func TestNoBodyMakesTrouble(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"huge","meter":"api.calls"}`).want(t, 200)
	admin, hold := s.token(catalog.KeyAdmin, ""), s.matrixHold("huge")
	state := func() []any {
		var rows [][]string
		for _, path := range []string{"/v1/tenants", "/v1/plans", "/v1/meters", "/v1/keys", "/v1/changes", "/v1/settings"} {
			rows = append(rows, []string{path, s.admin("GET", path, "").body})
		}
		return []any{rows, s.rows()}
	}
	before := state()
	for _, rt := range s.handler.Routes() {
		if matrixBodies[rt.Method+" "+rt.Pattern] == "" {
			continue
		}
		valid := s.matrixRequestOf(rt, "huge", admin, hold)
		for name, body := range hostileBodies(strings.ReplaceAll(valid.body, `,"dry_run":true`, "")) {
			r := valid
			r.body = body
			a := s.send(r)
			var p problemBody
			err := json.Unmarshal([]byte(a.body), &p)
			if a.status != http.StatusBadRequest || err != nil || len(p.Errors) == 0 || len(p.Errors) > faultsMax || p.Errors[0].Field == "" {
				t.Errorf("%s %s with %s: status = %d, want a 400 that names a field; body %.300s", rt.Method, rt.Pattern, name, a.status, a.body)
			}
			if len(a.body) > 8<<10 {
				t.Errorf("%s %s with %s: the answer has %d bytes", rt.Method, rt.Pattern, name, len(a.body))
			}
		}
	}
	if diff := cmp.Diff(before, state()); diff != "" {
		t.Errorf("refused bodies changed something (-before +after):\n%s", diff)
	}
}
