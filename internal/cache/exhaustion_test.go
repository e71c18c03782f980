package cache

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func question(n int) Question { return Question{byte(n), byte(n >> 8), byte(n >> 16)} }

func TestDenialIsOverAtItsInstant(t *testing.T) {
	t.Parallel()
	var c clock
	x := NewExhaustion[string](ExhaustionOptions{EntriesMax: 10, BytesMax: 10})
	x.Remember(Denial[string]{Owner: "acme", Question: question(1), Until: c.now().Add(time.Second), Bytes: 1, Value: "no"}, c.now())
	c.advance(time.Second - 1)
	if v, ok := x.Recall("acme", question(1), c.now()); v != "no" || !ok {
		t.Errorf("Recall just before = %q, %v; want no", v, ok)
	}
	c.advance(1)
	if v, ok := x.Recall("acme", question(1), c.now()); ok {
		t.Errorf("Recall at its instant = %q, want nothing", v)
	}
}

// A flood of questions that are never asked again must not grow the process, nor keep the
// newest denials out.
func TestDenialsAreBoundedInNumberAndBytes(t *testing.T) {
	t.Parallel()
	var c clock
	const entriesMax, bytesMax, size = 100, 500, 10
	x := NewExhaustion[int](ExhaustionOptions{EntriesMax: entriesMax, BytesMax: bytesMax})
	for i := range 10 * entriesMax {
		bytes := size
		if i >= 5*entriesMax {
			bytes = 0 // then their number is the bound
		}
		owner := fmt.Sprint("tenant-", i%7)
		x.Remember(Denial[int]{Owner: owner, Question: question(i), Until: c.now().Add(time.Second), Bytes: bytes, Value: i}, c.now())
		most := entriesMax
		if bytes > 0 {
			most = bytesMax / size
		}
		if n := x.Len(); n > most {
			t.Fatalf("%d denials are kept after %d, want at most %d", n, i+1, most)
		}
		if v, ok := x.Recall(owner, question(i), c.now()); v != i || !ok {
			t.Fatalf("the newest denial, %d, is not kept", i)
		}
	}
	x.Remember(Denial[int]{Owner: "large", Question: question(1), Until: c.now().Add(time.Second), Bytes: bytesMax + 1}, c.now())
	if _, ok := x.Recall("large", question(1), c.now()); ok || x.Len() != entriesMax {
		t.Errorf("a denial that there is no room for was kept, or drove others out: %d are left", x.Len())
	}
	for i := range 7 {
		x.Forget(fmt.Sprint("tenant-", i))
	}
	if x.Len() != 0 || x.bytes != 0 || len(x.owners) != 0 {
		t.Errorf("%d denials, %d bytes and %d owners are left of nothing", x.Len(), x.bytes, len(x.owners))
	}
}

func TestInvalidExhaustionOptionsPanic(t *testing.T) {
	t.Parallel()
	for _, o := range []ExhaustionOptions{{}, {EntriesMax: 1}, {BytesMax: 1}} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("NewExhaustion(%+v) did not panic", o)
				}
			}()
			NewExhaustion[int](o)
		}()
	}
}

// Against a map that is never full: a denial is given only if it was the last one
// remembered of that very question and owner, stands still, and was not forgotten.
func TestExhaustionDeniesOnlyWhatIsRemembered(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		type asked struct {
			owner string
			q     Question
		}
		roomy := rapid.Bool().Draw(t, "roomy")
		options := ExhaustionOptions{EntriesMax: 3, BytesMax: 6}
		if roomy {
			options = ExhaustionOptions{EntriesMax: 1000, BytesMax: 1000_000}
		}
		x := NewExhaustion[int](options)
		model := map[asked]Denial[int]{}
		what := rapid.Custom(func(t *rapid.T) asked {
			return asked{
				rapid.SampledFrom([]string{"a", "b"}).Draw(t, "owner"),
				question(rapid.IntRange(0, 3).Draw(t, "question")),
			}
		})
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"remember": func(t *rapid.T) {
				a := what.Draw(t, "what")
				next++
				d := Denial[int]{
					Owner: a.owner, Question: a.q, Value: next, Bytes: rapid.IntRange(0, 4).Draw(t, "bytes"),
					Until: c.now().Add(time.Duration(rapid.IntRange(-1, 10).Draw(t, "stands"))),
				}
				x.Remember(d, c.now())
				model[a] = d
			},
			"forget": func(t *rapid.T) {
				owner := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "owner")
				x.Forget(owner)
				for a := range model {
					if a.owner == owner {
						delete(model, a)
					}
				}
			},
			"recall": func(t *rapid.T) {
				a := what.Draw(t, "what")
				v, ok := x.Recall(a.owner, a.q, c.now())
				want, there := model[a]
				there = there && c.now().Before(want.Until)
				if ok && !x.Has(a.owner) {
					t.Fatalf("there is a denial of %s, which has none", a.owner)
				}
				if ok && (!there || v != want.Value) || roomy && ok != there {
					t.Fatalf("Recall(%v) = %d, %v; want %d, %v", a, v, ok, want.Value, there)
				}
			},
			"advance": func(t *rapid.T) { c.advance(time.Duration(rapid.IntRange(0, 5).Draw(t, "by"))) },
			"": func(t *rapid.T) {
				bytes, owned := 0, 0
				for e := x.age.Front(); e != nil; e = e.Next() {
					bytes += denialOf[int](e).Bytes
				}
				for _, questions := range x.owners {
					owned += len(questions)
				}
				if x.bytes != bytes || x.Len() != owned || x.Len() > options.EntriesMax || bytes > options.BytesMax {
					t.Fatalf("%d denials of %d bytes, counted as %d of %d, bounds %+v", x.Len(), bytes, owned, x.bytes, options)
				}
			},
		})
	})
}
