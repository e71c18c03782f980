package catalog_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quotad/quotad/internal/catalog"
)

func FuzzParseWindow(f *testing.F) {
	for _, text := range []string{"1h", "month", "1h30m", "1.5s", "250ms", "-1h", "87660h", "1us", "9e9h", "", "1h1h"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		w, err := catalog.ParseWindow(text)
		if err != nil {
			return
		}
		if (w.DurationMicros == 0) == (w.Calendar == "") {
			t.Errorf("ParseWindow(%q) = %+v: want exactly one of its fields", text, w)
		}
		if again, err := catalog.ParseWindow(w.String()); err != nil || again != w {
			t.Errorf("ParseWindow(%q) = %+v, but of its text %q: %+v, %v", text, w, w, again, err)
		}
	})
}

func FuzzParseRate(f *testing.F) {
	for _, text := range []string{"2/1s", "2/s", "0/1us", "999999999999999/87660h", "1/.5s", "1//s", "/", "1/month", "-1/s", "+1/s"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := catalog.ParseRate(text)
		if err != nil {
			return
		}
		if r.Units < 0 || r.Units > catalog.UnitsMax || r.PerMicros < 1 {
			t.Errorf("ParseRate(%q) = %+v is out of bounds", text, r)
		}
		if again, err := catalog.ParseRate(r.String()); err != nil || again != r {
			t.Errorf("ParseRate(%q) = %+v, but of its text %q: %+v, %v", text, r, r, again, err)
		}
	})
}

func FuzzParseWeight(f *testing.F) {
	for _, text := range []string{"0.1", "1", "0", "1000000", "1000000.000001", "0.000001", "1.", ".1", "00", "1e3", "-1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		w, err := catalog.ParseWeight(text)
		if err != nil {
			return
		}
		if w < 0 || w > catalog.WeightMax {
			t.Errorf("ParseWeight(%q) = %d is out of bounds", text, w)
		}
		if again, err := catalog.ParseWeight(w.String()); err != nil || again != w {
			t.Errorf("ParseWeight(%q) = %d, but of its text %q: %d, %v", text, w, w, again, err)
		}
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add("qk_live_0123456789ab_" + "0123456789ABCDEFGHIJKLMNOPQRSTUVW")
	f.Add("qk_live_0123456789ab_")
	f.Add("qk__0123456789ab_0123456789ABCDEFGHIJKLMNOPQRSTUVW\n")
	f.Fuzz(func(t *testing.T, text string) {
		if token, ok := catalog.ParseToken(text); ok && token.Reveal() != text {
			t.Errorf("ParseToken(%q) = %s, which is another", text, token.Reveal())
		}
	})
}

// What is read, written as JSON, and read again is the same: a file can be made from
// what the API returns.
func FuzzParseFile(f *testing.F) {
	files, _ := filepath.Glob("testdata/config/*.yaml")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		config, err := catalog.ParseFile(data, "f")
		if err != nil {
			if len(catalog.Faults(err)) == 0 {
				t.Errorf("ParseFile = %v, which lists no fault", err)
			}
			return
		}
		text, err := json.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		again, err := catalog.ParseFile(text, "f")
		if err != nil {
			t.Fatalf("ParseFile of its own JSON %s: %v", text, err)
		}
		ignore := cmpopts.IgnoreUnexported(catalog.Config{})
		if diff := cmp.Diff(config, again, ignore, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("ParseFile of its own JSON (-first +again):\n%s", diff)
		}
		if _, _, err := config.Compile(); err != nil {
			return // it refers to what is elsewhere
		}
		first := canonical(t, config)
		if diff := cmp.Diff(first, canonical(t, first), ignore); diff != "" {
			t.Errorf("the canonical form is not its own canonical form (-first +again):\n%s", diff)
		}
	})
}
