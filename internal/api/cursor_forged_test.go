package api

import (
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
)

// pagedPaths are lists that have a second page, by the route they are of.
var pagedPaths = map[string]string{
	"GET /v1/tenants/{tenant}/usage":          "/v1/tenants/users/usage?limit=1&meter=api.calls&group_by=subject",
	"GET /v1/tenants/{tenant}/entries":        "/v1/tenants/users/entries?limit=1",
	"GET /v1/tenants/{tenant}/denials":        "/v1/tenants/users/denials?limit=1",
	"GET /v1/tenants/{tenant}/denials/counts": "/v1/tenants/users/denials/counts?limit=1&limit_name=*",
	"GET /v1/holds":                           "/v1/holds?limit=1&tenant=users",
	"GET /v1/meters":                          "/v1/meters?limit=1",
	"GET /v1/plans":                           "/v1/plans?limit=1",
	"GET /v1/plans/{plan}/versions":           "/v1/plans/pro/versions?limit=1",
	"GET /v1/tenants":                         "/v1/tenants?limit=1",
	"GET /v1/changes":                         "/v1/changes?limit=1",
	"GET /v1/keys":                            "/v1/keys?limit=1",
}

// A cursor's holder can put any place into it. Whatever it is, the answer is a page of
// the list or a fault of the cursor, and nobody is woken for it.
func TestAForgedCursorIsAFaultOfItsHolder(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.fillLists()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, rt := range s.handler.Routes() {
		if !slices.Contains(operations[rt.Method+" "+rt.Pattern].query, "cursor") {
			continue
		}
		t.Run(rt.Pattern, func(t *testing.T) {
			s := *s
			s.t = t
			path := pagedPaths[rt.Method+" "+rt.Pattern]
			cursor := s.nextCursor(path)
			raw, err := base64.RawURLEncoding.DecodeString(cursor)
			if err != nil {
				t.Fatal(err)
			}
			const head = 1 + cursorDigestBytes
			refused := 0
			for _, place := range forgedPlaces(random, raw[head:]) {
				forged := base64.RawURLEncoding.EncodeToString(append(slices.Clone(raw[:head]), place...))
				a := s.admin("GET", path+"&cursor="+forged, "")
				switch a.status {
				case 200:
				case 400:
					refused++
					a.wantFault(t, "cursor", cursorRule)
				default:
					t.Errorf("status of place %q = %d, want 200 or 400; body %s", place, a.status, a.body)
				}
			}
			if refused == 0 {
				t.Error("no forged place was refused")
			}
		})
	}
	if logs := s.logs.String(); strings.Contains(logs, "level=ERROR") {
		t.Errorf("a forged cursor is an error of ours: %s", logs[:min(len(logs), 1000)])
	}
}

// fillLists gives every list of pagedPaths a second page.
func (s *service) fillLists() {
	s.t.Helper()
	for _, subject := range []string{"u1", "u2"} {
		body := `{"tenant":"users","meter":"api.calls","subject":"` + subject + `","cost":`
		s.consume(body+`1}`).want(s.t, 200)
		s.consume(body+`2}`).want(s.t, 429)
		s.holds("", body+`0}`).want(s.t, 200)
	}
	s.token(catalog.KeyRead, "")
	s.admin("PUT", "/v1/plans/pro", `{"limits":[]}`).want(s.t, 200)
}

func (s *service) nextCursor(path string) string {
	s.t.Helper()
	var page struct {
		NextCursor string `json:"next_cursor"`
	}
	a := s.admin("GET", path, "").want(s.t, 200)
	if err := json.Unmarshal([]byte(a.body), &page); err != nil || page.NextCursor == "" {
		s.t.Fatalf("%s has no second page: %s", path, a.body)
	}
	return page.NextCursor
}

// forgedPlaces are the real place changed here and there, what a reader of texts, numbers
// or instants could stumble over, and random bytes.
func forgedPlaces(random *rand.Rand, place []byte) [][]byte {
	text := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return b
	}
	places := [][]byte{
		{},
		{0},
		{0xff},
		[]byte("\xff\xfe"), []byte("a\x00b"), []byte("API CALLS"), []byte(".."), []byte(" quota_exceeded"),
		[]byte(strings.Repeat("a", cursorPlaceMax)), []byte(strings.Repeat("a", cursorPlaceMax+1)),
		append(slices.Clone(place), 0), place[:len(place)-1],
	}
	for _, fill := range []byte{0x00, 0x01, 0x7f, 0x80, 0xff} {
		for _, n := range []int{4, 8, 16, 24} {
			places = append(places, []byte(strings.Repeat(string([]byte{fill}), n)))
		}
	}
	for _, at := range []time.Time{
		time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC), time.Date(-4800, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(294300, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		instant := appendPlaceNumber(nil, at.UnixMicro())
		places = append(
			places, instant, slices.Concat(instant, []byte{0, 0, 0, 0, 0, 0, 0, 1}),
			slices.Concat(instant, make([]byte, 16)), slices.Concat(instant, []byte(" quota_exceeded")))
	}
	for range 100 {
		changed := slices.Clone(place)
		changed[random.IntN(len(changed))] = byte(random.Uint32())
		places = append(places, changed, text(random.IntN(32)))
	}
	return places
}

// FuzzPlace holds the readers of places to this: none panics, and what none refuses
// keeps the rules that a parameter does.
func FuzzPlace(f *testing.F) {
	id := uuid.MustParse("0198c5d7-8f5e-7c4e-9d6c-3f2a1b0c9d8e")
	for _, seed := range [][]byte{
		nil, []byte("api.calls"), appendPlaceNumber(nil, 1), appendPlaceVersion(nil, 7),
		appendPlaceNumber(appendPlaceInstant(nil, startOfTest), 1), append(appendPlaceInstant(nil, startOfTest), id[:]...),
		append(appendPlaceInstant(nil, startOfTest), "daily quota_exceeded"...),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, place []byte) {
		for name, check := range map[string]func(*placeReader) bool{
			"number":  func(p *placeReader) bool { n := p.number(); return 1 <= n && n <= catalog.UnitsMax },
			"version": func(p *placeReader) bool { return p.version() >= 1 },
			"instant": func(p *placeReader) bool { year := p.instant().Year(); return 1970 <= year && year <= 9999 },
			"uuid":    func(p *placeReader) bool { _ = p.uuid(); return true },
			"text":    func(p *placeReader) bool { return catalog.IDRule(p.text(catalog.IDRule)) == "" },
			"word":    func(p *placeReader) bool { return catalog.ValidName(p.word(nameRule)) },
		} {
			p := placeReader{rest: place}
			if !check(&p) && !p.damaged {
				t.Errorf("%s accepts %q", name, place)
			}
		}
	})
}
