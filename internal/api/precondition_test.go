package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/catalog"
)

// taggedPaths are an object of every kind that has a tag, and a body that changes it.
var taggedPaths = map[string]string{
	"/v1/meters/unplanned": `{"unit":"other"}`,
	"/v1/plans/pro":        `{"limits":[]}`,
	"/v1/tenants/acme":     `{"plan":"huge"}`,
	"/v1/settings":         `{"default_plan":"pro"}`,
}

const otherTag = `"00000000000000000000000000000000"`

func (s *service) conditional(method, path, body string, header ...string) answer {
	s.t.Helper()
	return s.do(request{method: method, path: path, body: body, token: s.token(catalog.KeyAdmin, ""), header: pairs(header)})
}

// Whoever has an object as it is gets 304 without a body; anyone else gets it whole.
func TestGetAnswers304WhileNothingHasChanged(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for path := range taggedPaths {
		tag := s.conditional("GET", path, "").want(t, 200).header.Get("ETag")
		for header, status := range map[string]int{
			tag: 304, "W/" + tag: 304, otherTag + ", " + tag: 304, `"x,y" ,, W/` + tag: 304, "*": 304, otherTag: 200, `"` + `"`: 200,
		} {
			a := s.conditional("GET", path, "", "If-None-Match", header).want(t, status)
			if a.header.Get("ETag") != tag || (a.status == 304) != (a.body == "") || a.header.Get("Cache-Control") != "no-cache" {
				t.Errorf("%s, If-None-Match %s: ETag %s, Cache-Control %s, body %q", path, header,
					a.header.Get("ETag"), a.header.Get("Cache-Control"), a.body)
			}
		}
		s.conditional("HEAD", path, "", "If-None-Match", tag).want(t, 304)
		s.conditional("GET", path, "", "If-Match", tag).want(t, 200)
		s.conditional("GET", path, "", "If-Match", otherTag).want(t, 412, codePrecondition)
	}
}

// A change that is meant for another state is refused, with the present tag, and
// changes nothing; one meant for the state that is there is made and gives its tag.
func TestPutChangesOnlyTheStateItIsMeantFor(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for path, body := range taggedPaths {
		before := s.conditional("GET", path, "")
		tag := before.header.Get("ETag")
		for _, header := range [][]string{
			{"If-Match", otherTag},
			{"If-Match", "W/" + tag},
			{"If-Match", strings.ToUpper(tag) + `, "short", "` + strings.Repeat("é", 40) + `"`},
			{"If-None-Match", "*"},
			{"If-None-Match", otherTag + ", W/" + tag},
			{"If-Match", tag, "If-None-Match", "*"},
		} {
			a := s.conditional("PUT", path, body, header...).want(t, 412, codePrecondition)
			if a.header.Get("ETag") != tag {
				t.Errorf("%s, %v: ETag = %s, want the present %s", path, header, a.header.Get("ETag"), tag)
			}
		}
		if after := s.conditional("GET", path, ""); after.body != before.body {
			t.Errorf("%s changed from %s to %s", path, before.body, after.body)
		}
		put := s.conditional("PUT", path, body, "If-Match", otherTag+" , "+tag, "If-None-Match", otherTag).want(t, 200)
		after := s.conditional("GET", path, "").header.Get("ETag")
		if got := put.header.Get("ETag"); got != after || after == tag {
			t.Errorf("%s: PUT gives tag %s and GET %s after %s", path, got, after, tag)
		}
		s.conditional("PUT", path, body, "If-Match", tag).want(t, 412, codePrecondition)
		s.conditional("PUT", path, body, "If-Match", "*").want(t, 200)
	}
}

func TestPutCreatesOnlyWhatIsNotThere(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for path, body := range map[string]string{
		"/v1/meters/fresh": `{"unit":"u"}`, "/v1/plans/fresh": `{"limits":[]}`, "/v1/tenants/fresh": `{"plan":"pro"}`,
	} {
		for _, match := range []string{"*", otherTag} {
			a := s.conditional("PUT", path, body, "If-Match", match).want(t, 412, codePrecondition)
			if tag := a.header.Get("ETag"); tag != "" {
				t.Errorf("%s: ETag = %s of what is not there", path, tag)
			}
		}
		s.conditional("GET", path, "").want(t, 404)
		s.conditional("PUT", path, body, "If-None-Match", "*").want(t, 201)
		s.conditional("PUT", path, body, "If-None-Match", "*").want(t, 412, codePrecondition)
	}
}

func TestMalformedEntityTagsAreRefused(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, field := range []string{"If-Match", "If-None-Match"} {
		for _, value := range []string{
			"x", `"a`, `a"`, `"a" "b"`, `w/"a"`, `W/ "a"`, `*, "a"`, `"a", *`, ",", " ", `"a b"`, `'a'`, strings.Repeat(`"a",`, tagsMax+1),
		} {
			for path, body := range taggedPaths {
				s.conditional("PUT", path, body, field, value).wantFault(t, field, "entity tags")
				s.conditional("GET", path, "", field, value).wantFault(t, field, "entity tags")
			}
		}
	}
	s.conditional(http.MethodPut, "/v1/plans/pro", `{"limits":7}`, "If-Match", otherTag).want(t, 400) // a body that is no plan at all
}
