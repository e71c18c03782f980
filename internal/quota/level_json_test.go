package quota

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var compareKept = cmp.AllowUnexported(namedLevel{}, level{})

// What was written is read again, to the last bit, and the database takes it for JSON.
func TestLevelsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var want keptLevels
		for _, name := range rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9][a-z0-9._-]{0,63}`), 0, 5, rapid.ID[string]).Draw(t, "limits") {
			v := level{
				versionID: rapid.Int64().Draw(t, "version"), overrideSetID: rapid.Int64().Draw(t, "set"),
				State: State{Units: rapid.Int64().Draw(t, "units"), AtMicros: rapid.Int64().Draw(t, "at")},
			}
			v.Denominator = rapid.Int64Range(1, math.MaxInt64).Draw(t, "denominator")
			v.Remainder = rapid.Int64Range(0, v.Denominator-1).Draw(t, "remainder")
			want.put(name, v)
		}
		text := want.encode()
		if (text == nil) != (len(want) == 0) || text != nil && !json.Valid(text) {
			t.Fatalf("%d levels are written as %q", len(want), text)
		}
		got, err := decodeLevels(text)
		if diff := cmp.Diff(want, got, compareKept); err != nil || diff != "" {
			t.Fatalf("%s is read with %v (-want +got):\n%s", text, err, diff)
		}
	})
}

func TestLevelsMayBeWrittenWithSpaceAndNothingElse(t *testing.T) {
	t.Parallel()
	v := level{State: State{Units: -5, Remainder: 0, Denominator: 1, AtMicros: 6}, versionID: 1, overrideSetID: 2}
	for text, want := range map[string]keptLevels{
		`{}`: nil, " { }\n": nil,
		`{"a":[1,2,-5,0,1,6]}`: {{"a", v}},
		"{ \"a\" : [1, 2, -5, 0, 1, 6],\n\t\"b\" : [1, 2, -5, 0, 1, 6] } ": {{"a", v}, {"b", v}},
	} {
		if got, err := decodeLevels([]byte(text)); err != nil || !cmp.Equal(want, got, compareKept) {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		``, ` `, `null`, `[]`, `7`, `{`, `{"a"}`, `{"a":7}`, `{"a":[]}`, `{"a":[1,2,3,4,5]}`, `{"a":[1,2,3,0,5,6,7]}`,
		`{"a":[1,2,3,0,5,6]`, `{"a":[1,2,3,0,5,6]}}`, `{"a":[1,2,3,0,5,6],}`, `{,"a":[1,2,3,0,5,6]}`, `{a:[1,2,3,0,5,6]}`,
		`{"a":[1,2,3,0,5,6.5]}`, `{"a":[1,2,3,0,5,1e3]}`, `{"a":[1,2,3,0,5,--6]}`, `{"a":[1,2,3,0,5,"6"]}`, `{"a":[1,2,3,0,5,null]}`,
		`{"a":[1,2,3,0,5,9223372036854775808]}`, `{"a":[1,2,3,0,0,6]}`, `{"a":[1,2,3,5,5,6]}`, `{"a":[1,2,3,-1,5,6]}`,
		`{"a\u0062":[1,2,3,0,5,6]}`, `{"a":[1,2,3,0,5,6],"a":[1,2,3,0,5,6]}`, `{"a":[1,2,3,0,5`, `{"a`, `{"a":`, `{"a":[`,
	} {
		if got, err := decodeLevels([]byte(text)); err == nil {
			t.Errorf("%s is read as %+v", text, got)
		}
	}
}

// What is read at all is JSON, and is written as what means the same.
func FuzzLevels(f *testing.F) {
	f.Add([]byte(`{"a":[1,2,-5,0,1,6],"b":[1,2,3,4,5,6]}`))
	f.Add([]byte("{ \"a\" : [1, 2, 3, 0, 5, 6] } "))
	f.Fuzz(func(t *testing.T, text []byte) {
		kept, err := decodeLevels(text)
		if err != nil || kept == nil {
			return
		}
		again, err := decodeLevels(kept.encode())
		if err != nil || !cmp.Equal(kept, again, compareKept) {
			t.Errorf("%q is read as %+v, which is written as %s", text, kept, kept.encode())
		}
	})
}

// A row that nobody can read must not stop those that share its batch, nor the clean-up.
func TestLevelsNobodyCanReadRefuseTheirTenantAlone(t *testing.T) {
	t.Parallel()
	w, e := idleWorld(t)
	for _, tenant := range []string{"acme", "globex"} {
		mustDecide(t, e, by("ann", consume(tenant, "calls", 1)))
	}
	w.db.Exec(t, `update quotad.meter_total set levels = '{"fast": 7}'
		where subject_id <> 0 and tenant_id = (select tenant_id from quotad.account where tenant = 'acme')`)
	results := e.DecideAll(t.Context(), []Request{
		by("ann", consume("acme", "calls", 1)), by("ann", consume("globex", "calls", 1)),
	})
	wantCode(t, results[0].Err, CodeInternal)
	if r := results[1]; r.Err != nil || !r.Decision.Allowed {
		t.Errorf("another tenant got %+v, %v", r.Decision, r.Err)
	}
	if len(w.entries(t, "acme")) != 1 {
		t.Errorf("acme has the entries %+v, want the first alone", w.entries(t, "acme"))
	}
	mustDecide(t, e, by("bob", consume("acme", "calls", 1)))
	w.db.AdvanceClock(t, idleMin+time.Hour)
	removeAllIdle(t, e)
	if n := w.levels(t); n["fast"] != 1 {
		t.Errorf("levels after the clean-up: %v, want only the one that nobody can read", n)
	}
}
