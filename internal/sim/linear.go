package sim

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	// linearTagsMax bounds the different calls on one tenant whose history is searched.
	linearTagsMax = 256
	// linearTimeMax bounds the search of one tenant's history.
	linearTimeMax = 5 * time.Second
)

// A Counter is what a tenant's one limit comes to for as long as a history is: a sliding log
// whose window is longer, on one meter.
type Counter struct {
	Meter string
	Limit int64
}

// Linear checks that the answers on each tenant of a history can be told by one counter that
// took the calls one after another, each at some instant between its beginning and its end,
// and those without an answer at any later one, or never. It looks at nothing but the calls,
// which must have keys (an answer that is given again from memory is not of its instant).
// unsure is how many tenants' histories were too long to search.
func (c Counter) Linear(calls []Call, of func(tenant string) bool) (findings []string, unsure int) {
	histories := make(map[string][]*Call)
	for i := range calls {
		if call := &calls[i]; of(call.Tenant) && call.Outcome != OutcomeRefused && !call.DryRun {
			histories[call.Tenant] = append(histories[call.Tenant], call)
		}
	}
	for _, tenant := range sortedKeys(histories) {
		h := c.history(histories[tenant])
		if len(h.tags) > linearTagsMax {
			unsure++
			continue
		}
		switch porcupine.CheckOperationsTimeout(c.model(), h.operations, linearTimeMax) {
		case porcupine.Illegal:
			findings = append(findings, fmt.Sprintf("tenant %q: no order of its %d calls explains their answers", tenant, len(h.operations)))
		case porcupine.Unknown:
			unsure++
		case porcupine.Ok:
		}
	}
	return findings, unsure
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// A linearHistory is the calls on one tenant as porcupine takes them.
type linearHistory struct {
	operations []porcupine.Operation
	tags       map[string]int // numbers the different calls
	holds      map[string]linearInput
}

// A linearInput is what a call asks for.
type linearInput struct {
	kind  Kind
	tag   int
	units int64
	hold  int   // the number of the call that made the hold which it answers
	held  int64 // by that
}

func (c Counter) history(calls []*Call) *linearHistory {
	h := &linearHistory{tags: make(map[string]int), holds: make(map[string]linearInput)}
	first, last := calls[0].Started, calls[0].end()
	for _, call := range calls {
		if call.Started.Before(first) {
			first = call.Started
		}
		if call.end().After(last) {
			last = call.end()
		}
		if _, known := h.tags[call.Tag]; !known {
			h.tags[call.Tag] = len(h.tags)
		}
		if call.kind() == KindHold && call.Outcome == OutcomeAllowed {
			h.holds[call.HoldID.String()] = linearInput{tag: h.tags[call.Tag], units: call.Charged[c.Meter]}
		}
	}
	for n, call := range calls {
		input := linearInput{kind: call.kind(), tag: h.tags[call.Tag], units: call.Costs[c.Meter]}
		if call.kind().answersHold() {
			hold := h.holds[call.Hold.String()]
			input.hold, input.held = hold.tag, hold.units
		}
		returned := call.end()
		if call.Outcome == OutcomeUnknown {
			returned = last.Add(time.Hour) // it may yet happen
		}
		h.operations = append(h.operations, porcupine.Operation{
			ClientId: n, Input: input, Output: call, Call: int64(call.Started.Sub(first)), Return: int64(returned.Sub(first)),
		})
	}
	return h
}

// linearState is what the counter knows: bits of done and ended are calls by number.
type linearState struct {
	used, held  int64
	done, ended [linearTagsMax / 64]uint64
}

func has(bits *[linearTagsMax / 64]uint64, n int) bool { return bits[n/64]&(1<<(n%64)) != 0 }
func set(bits *[linearTagsMax / 64]uint64, n int)      { bits[n/64] |= 1 << (n % 64) }

func (c Counter) model() porcupine.Model {
	return (&porcupine.NondeterministicModel{
		Init: func() []any { return []any{linearState{}} },
		Step: func(state, input, output any) []any {
			return c.step(state.(linearState), input.(linearInput), output.(*Call))
		},
	}).ToModel()
}

// step returns the states that a call may leave the counter in; none if it cannot have been
// answered so.
func (c Counter) step(s linearState, in linearInput, call *Call) []any {
	after, applies := c.apply(s, in)
	switch {
	case call.Outcome == OutcomeUnknown && applies:
		return []any{s, after}
	case call.Outcome == OutcomeUnknown:
		return []any{s}
	case call.Outcome == OutcomeAllowed && call.Replayed && has(&s.done, in.tag):
		return []any{s}
	case call.Outcome == OutcomeAllowed && !call.Replayed && applies && call.Remaining == c.remaining(after):
		return []any{after}
	case call.Outcome == OutcomeDenied && !has(&s.done, in.tag) && !applies && call.Remaining == c.remaining(s):
		return []any{s}
	}
	return nil
}

func (c Counter) remaining(s linearState) int64 { return max(0, c.Limit-s.used-s.held) }

// apply is the state after a call, and whether it can have happened.
func (c Counter) apply(s linearState, in linearInput) (linearState, bool) {
	if has(&s.done, in.tag) {
		return s, false
	}
	fits := in.units == 0 || s.used+s.held+in.units <= c.Limit
	set(&s.done, in.tag)
	switch in.kind {
	case KindConsume:
		s.used += in.units
		return s, fits
	case KindHold:
		s.held += in.units
		return s, fits
	case KindReverse:
		s.used += in.units // below 0
		return s, true
	default:
		open := !has(&s.ended, in.hold)
		if in.kind != KindExtend {
			s.held, s.used = s.held-in.held, s.used+in.units
			set(&s.ended, in.hold)
		}
		return s, open
	}
}
