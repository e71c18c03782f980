package sim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
)

// A line of a history: who asked for what from when to when, in milliseconds, and what the
// answer was.
func did(tag string, kind Kind, units int64, from, to int, outcome Outcome, remaining int64) Call {
	start := time.Date(2026, 1, 15, 12, 0, 0, 0, time.UTC)
	return Call{
		Request: Request{
			Kind: kind, Tenant: "small", Tag: tag, Key: tag, Costs: map[string]int64{"calls": units},
			Charges: []Charge{{Meter: "calls", Cost: units}},
		},
		Outcome: outcome, Started: start.Add(time.Duration(from) * time.Millisecond),
		Took: time.Duration(to-from) * time.Millisecond, Remaining: remaining, Charged: map[string]int64{"calls": units},
	}
}

func again(c Call) Call { c.Replayed = true; return c }

func holding(c Call, id byte) Call   { c.HoldID = uuid.UUID{id}; return c }
func answering(c Call, id byte) Call { c.Hold = uuid.UUID{id}; return c }

// Histories of a counter of 10 that some order explains, and those that none does.
func TestAnOrderExplainsTheAnswersOrNoneDoes(t *testing.T) {
	t.Parallel()
	counter := Counter{Meter: "calls", Limit: 10}
	a := did("a", KindConsume, 6, 0, 10, OutcomeAllowed, 4)
	lost := did("a", KindConsume, 6, 0, 10, OutcomeUnknown, 0)
	hold := holding(did("h", KindHold, 6, 0, 10, OutcomeAllowed, 4), 1)
	for _, tt := range []struct {
		name    string
		history []Call
		want    bool
	}{
		{"one after another", []Call{a, did("b", KindConsume, 4, 20, 30, OutcomeAllowed, 0), did("c", KindConsume, 1, 40, 50, OutcomeDenied, 0)}, true},
		{"the later one first", []Call{did("a", KindConsume, 6, 0, 30, OutcomeAllowed, 0), did("b", KindConsume, 4, 10, 20, OutcomeAllowed, 6)}, true},
		{"both before the other", []Call{a, did("b", KindConsume, 4, 0, 10, OutcomeAllowed, 6)}, false},
		{"over the limit", []Call{a, did("b", KindConsume, 6, 0, 10, OutcomeAllowed, 0)}, false},
		{"denied and it fitted", []Call{a, did("b", KindConsume, 4, 20, 30, OutcomeDenied, 4)}, false},
		{"denied by what came later", []Call{did("b", KindConsume, 6, 0, 10, OutcomeDenied, 4), did("a", KindConsume, 6, 20, 30, OutcomeAllowed, 4)}, false},
		{"stale remaining", []Call{a, did("b", KindConsume, 6, 20, 30, OutcomeDenied, 10)}, false},
		{"no answer, and it happened", []Call{lost, did("b", KindConsume, 6, 20, 30, OutcomeDenied, 4)}, true},
		{"no answer, and it did not", []Call{lost, did("b", KindConsume, 6, 20, 30, OutcomeAllowed, 4)}, true},
		{"no answer, and it happened late", []Call{lost, did("b", KindConsume, 4, 20, 30, OutcomeAllowed, 6), did("c", KindConsume, 1, 40, 50, OutcomeDenied, 0)}, true},
		{"no answer, and then a replay", []Call{lost, again(did("a", KindConsume, 6, 20, 30, OutcomeAllowed, 4)), did("b", KindConsume, 5, 40, 50, OutcomeDenied, 4)}, true},
		{"no answer, and twice", []Call{lost, a, did("b", KindConsume, 4, 40, 50, OutcomeDenied, 0)}, false},
		{"a replay of nothing", []Call{again(a)}, false},
		{"two decisions", []Call{a, did("a", KindConsume, 6, 20, 30, OutcomeAllowed, 4)}, false},
		{"held", []Call{hold, did("b", KindConsume, 5, 20, 30, OutcomeDenied, 4)}, true},
		{"held and used", []Call{hold, did("b", KindConsume, 5, 20, 30, OutcomeAllowed, 0)}, false},
		{"settled with more", []Call{hold, answering(did("s", KindSettle, 12, 20, 30, OutcomeAllowed, 0), 1), did("b", KindConsume, 1, 40, 50, OutcomeDenied, 0)}, true},
		{"settled and still held", []Call{hold, answering(did("s", KindSettle, 2, 20, 30, OutcomeAllowed, 2), 1)}, false},
		{"released", []Call{hold, answering(did("r", KindRelease, 0, 20, 30, OutcomeAllowed, 10), 1), did("b", KindConsume, 10, 40, 50, OutcomeAllowed, 0)}, true},
		{"released twice", []Call{hold, answering(did("r", KindRelease, 0, 20, 30, OutcomeAllowed, 10), 1), answering(did("q", KindRelease, 0, 40, 50, OutcomeAllowed, 10), 1)}, false},
		{"given back", []Call{a, did("v", KindReverse, -2, 20, 30, OutcomeAllowed, 6), did("b", KindConsume, 6, 40, 50, OutcomeAllowed, 0)}, true},
	} {
		findings, unsure := counter.Linear(tt.history, func(string) bool { return true })
		if unsure != 0 || (len(findings) == 0) != tt.want {
			t.Errorf("%s: findings %q, %d unsure; want an order: %t", tt.name, findings, unsure, tt.want)
		}
	}
}

// What a caller was told alone shows a window that is over its limit, on whatever ledger.
func TestTooMuchInAWindowIsFoundFromOutside(t *testing.T) {
	t.Parallel()
	l := &Ledger{
		byName:   map[string]*tenant{"small": {terms: []terms{{plan: "p"}}}},
		versions: map[int64]*version{1: {plan: "p", number: 1}, 2: {plan: "p", number: 2}, 3: {plan: "other", number: 1}},
	}
	for id, size := range map[int64]int64{1: 10, 2: 8, 3: 100} {
		one := &limit{Name: "log", Meter: "calls", Algorithm: "sliding_log", Limit: size, Window: "1s", Mode: "enforce"}
		if err := one.parse(); err != nil {
			t.Fatal(err)
		}
		l.versions[id].limits = []*limit{one}
	}
	first := did("a", KindConsume, 6, 0, 10, OutcomeAllowed, 0)
	first.Receipt = Receipt{FirstSeq: 1, Seq: 1}
	returned := did("v", KindReverse, -1, 20, 30, OutcomeUnknown, 0)
	returned.Seq, returned.Units = 1, 1
	late := did("a", KindConsume, 6, -500, -400, OutcomeUnknown, 0)
	for _, tt := range []struct {
		name    string
		history []Call
		want    int
	}{
		{"as much as fits", []Call{first, did("b", KindConsume, 4, 900, 950, OutcomeAllowed, 0)}, 0},
		{"more", []Call{first, did("b", KindConsume, 5, 900, 950, OutcomeAllowed, 0)}, 1},
		{"a window later", []Call{first, did("b", KindConsume, 5, 900, 1001, OutcomeAllowed, 0)}, 0},
		{"the same call", []Call{first, again(first)}, 0},
		{"not allowed", []Call{first, did("b", KindConsume, 5, 900, 950, OutcomeUnknown, 0), did("c", KindConsume, 5, 900, 950, OutcomeDenied, 0)}, 0},
		{"given back", []Call{first, returned, did("b", KindConsume, 5, 900, 950, OutcomeAllowed, 0)}, 0},
		{"given back once, and told twice", []Call{first, returned, returned, did("b", KindConsume, 6, 900, 950, OutcomeAllowed, 0)}, 1},
		{"begun before the window", []Call{late, first, did("b", KindConsume, 5, 900, 950, OutcomeAllowed, 0)}, 0},
	} {
		l.over = 0
		if found := l.CheckOutside(tt.history); len(found) != tt.want || l.over != tt.want {
			t.Errorf("%s: %q, want %d findings", tt.name, found, tt.want)
		}
	}
}

// The table's numbers are counted from tags alone, and see what is planted.
func TestATallySeesWhatIsLostAndDoubled(t *testing.T) {
	t.Parallel()
	l := &Ledger{tenants: []*tenant{{name: "small", entries: []entry{
		{seq: 1, tag: "once", requestID: uuid.UUID{1}},
		{seq: 2, tag: "once", requestID: uuid.UUID{1}},
		{seq: 3, tag: "twice", requestID: uuid.UUID{2}},
		{seq: 4, tag: "twice", requestID: uuid.UUID{3}},
		{seq: 5, kind: kindExpire, requestID: uuid.UUID{4}},
		{seq: 6, kind: kindExpire, requestID: uuid.UUID{5}},
	}}}}
	var calls []Call
	for _, tag := range []string{"once", "once", "twice", "lost"} {
		calls = append(calls, did(tag, KindConsume, 1, 0, 1, OutcomeAllowed, 0))
	}
	calls = append(calls, did("denied", KindConsume, 1, 0, 1, OutcomeDenied, 0), did("unknown", KindConsume, 1, 0, 1, OutcomeUnknown, 0))
	if got, want := l.Tally(calls), (Tally{Acknowledged: 3, Lost: 1, Doubled: 1}); got != want {
		t.Errorf("Tally = %+v, want %+v", got, want)
	}
	sum := Tally{1, 2, 3, 4}.Add(Tally{10, 20, 30, 40})
	if want := (Tally{11, 22, 33, 44}); sum != want {
		t.Errorf("the sum = %+v, want %+v", sum, want)
	}
}

// A history that is too long is said to be, instead of being taken for explained.
func TestAHistoryThatIsTooLongIsNotTakenForExplained(t *testing.T) {
	t.Parallel()
	var calls []Call
	for i := range linearTagsMax + 1 {
		calls = append(calls, did(strings.Repeat("x", i+1), KindConsume, 0, i, i+1, OutcomeAllowed, 10))
	}
	findings, unsure := Counter{Meter: "calls", Limit: 10}.Linear(calls, func(string) bool { return true })
	if len(findings) != 0 || unsure != 1 {
		t.Errorf("findings %q, %d unsure; want 1 unsure", findings, unsure)
	}
	findings, unsure = Counter{Meter: "calls", Limit: 10}.Linear(slices.Clone(calls[1:]), func(string) bool { return true })
	if len(findings) != 0 || unsure != 0 {
		t.Errorf("findings %q, %d unsure; want an order", findings, unsure)
	}
}
