package catalog

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of the overrides of a tenant.
const (
	OverridesMax   = 16  // of a tenant; a set's active ones fit 16 bits
	reasonBytesMax = 256 // of an override
)

const (
	instantRule  = "must be an instant of RFC 3339 from 1970 to 9999, such as 2027-01-31T00:00:00Z, to the microsecond"
	untilRule    = "must be after from"
	overlapRule  = "must not overlap %s, which overrides the same limit"
	numbersRule  = "must give a number of the limit: limit or unlimited, capacity, refill, rate, burst or queue"
	instantYears = 10_000 // RFC 3339 has four digits
)

// An OverrideSpec is an override as it is written in a file and in JSON: the name of a
// limit, other numbers for it, and for how long they hold.
type OverrideSpec struct {
	Name      string `json:"name"`
	Limit     *int64 `json:"limit,omitempty"` // units
	Unlimited bool   `json:"unlimited,omitempty"`
	Capacity  *int64 `json:"capacity,omitempty"` // units
	Refill    string `json:"refill,omitempty"`   // "2/1s"
	Rate      string `json:"rate,omitempty"`     // "6/1m"
	Burst     *int64 `json:"burst,omitempty"`    // units
	Queue     *int64 `json:"queue,omitempty"`    // units
	From      string `json:"from,omitempty"`     // RFC 3339, inclusive; at once if absent
	Until     string `json:"until"`              // RFC 3339, exclusive
	Reason    string `json:"reason"`
}

// An Override gives a tenant's limit other numbers from an instant until another. Like a
// limit it is a value, with numbers already validated.
type Override struct {
	Name        string
	FromMicros  int64 // inclusive; 0 as soon as it is set
	UntilMicros int64 // exclusive
	Reason      string

	numbers Limit // those that it gives, and no other field
	given   uint8 // which: bit i is limitFields[i]
}

// An OverrideSet is the overrides that a tenant has between two changes of them. It
// never changes; entries name the one they were decided under.
type OverrideSet struct {
	ID        int64
	Overrides []Override

	text []byte // as PostgreSQL prints it, which digests cover
}

// limitSpec is the override's numbers as a limit is written.
func (s OverrideSpec) limitSpec() LimitSpec {
	return LimitSpec{
		Limit: s.Limit, Unlimited: s.Unlimited, Capacity: s.Capacity, Refill: s.Refill,
		Rate: s.Rate, Burst: s.Burst, Queue: s.Queue,
	}
}

// compileOverrides checks overrides by themselves: what they name is anywhere else.
func compileOverrides(specs []OverrideSpec, path string, faults *faultList) []Override {
	atMost(faults, path, len(specs), OverridesMax)
	overrides := make([]Override, 0, min(len(specs), OverridesMax))
	for i, spec := range specs[:min(len(specs), OverridesMax)] {
		at := itemPath(path, i)
		o := spec.compile(at, faults)
		first := slices.IndexFunc(overrides, o.overlaps)
		if first >= 0 {
			faults.add(at, overlapRule, itemPath("overrides", first))
		}
		overrides = append(overrides, o)
	}
	return overrides
}

func (s OverrideSpec) compile(path string, faults *faultList) Override {
	o := Override{Name: s.Name, Reason: s.Reason}
	requiredName(faults, fieldPath(path, "name"), s.Name)
	numbers := s.limitSpec()
	for i, field := range limitFields {
		if !field.given(&numbers) {
			continue
		}
		o.given |= 1 << i
		if rule := field.read(&numbers, &o.numbers); rule != "" {
			faults.add(fieldPath(path, field.name), "%s", rule)
		}
	}
	if o.given == 0 {
		faults.add(path, numbersRule)
	}
	if s.From != "" {
		o.FromMicros = readInstant(s.From, fieldPath(path, "from"), faults)
	}
	if s.Until == "" {
		faults.add(fieldPath(path, "until"), "is required")
	} else if o.UntilMicros = readInstant(s.Until, fieldPath(path, "until"), faults); o.UntilMicros != 0 && o.UntilMicros <= o.FromMicros {
		faults.add(fieldPath(path, "until"), untilRule)
	}
	if s.Reason == "" {
		faults.add(fieldPath(path, "reason"), "is required")
	} else if rule := shortTextRule(s.Reason, reasonBytesMax); rule != "" {
		faults.add(fieldPath(path, "reason"), "%s", rule)
	}
	return o
}

// readInstant reads an instant in microseconds; 0 with a fault.
func readInstant(text, path string, faults *faultList) int64 {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || at.Nanosecond()%1000 != 0 || at.UnixMicro() <= 0 || at.UTC().Year() >= instantYears {
		faults.add(path, instantRule)
		return 0
	}
	return at.UnixMicro()
}

func writeInstant(micros int64) string { return time.UnixMicro(micros).UTC().Format(time.RFC3339Nano) }

// overlaps reports whether both ever hold for one limit.
func (o Override) overlaps(other Override) bool {
	return o.Name == other.Name && o.FromMicros < other.UntilMicros && other.FromMicros < o.UntilMicros
}

// Until is the instant from which the plan's own numbers hold again.
func (o Override) Until() time.Time { return time.UnixMicro(o.UntilMicros).UTC() }

// Spec is the override as it is written, in its one canonical form.
func (o Override) Spec() OverrideSpec {
	spec := OverrideSpec{Name: o.Name, Until: writeInstant(o.UntilMicros), Reason: o.Reason}
	if o.FromMicros != 0 {
		spec.From = writeInstant(o.FromMicros)
	}
	var numbers LimitSpec
	for i := range limitFields {
		if o.gives(i) {
			limitFields[i].write(&o.numbers, &numbers)
		}
	}
	spec.Limit, spec.Unlimited, spec.Capacity, spec.Refill = numbers.Limit, numbers.Unlimited, numbers.Capacity, numbers.Refill
	spec.Rate, spec.Burst, spec.Queue = numbers.Rate, numbers.Burst, numbers.Queue
	return spec
}

func (o *Override) gives(field int) bool { return o.given&(1<<field) != 0 }

// over returns a limit with the override's numbers; rule says why it cannot have them.
func (o *Override) over(l Limit) (fresh Limit, rule string) {
	fresh = l
	fresh.Override = o
	for i := range limitFields {
		field := &limitFields[i]
		if !o.gives(i) {
			continue
		}
		if !slices.Contains(algorithmFields[l.Algorithm], field.name) {
			return l, fmt.Sprintf("gives %s, which is no number of limit %s: %s has %s", field.name, l.Name, l.Algorithm,
				strings.Join(numbersOf(l.Algorithm), " and "))
		}
		field.take(&fresh, &o.numbers)
	}
	switch {
	case fresh.Algorithm == LeakyBucket && !fresh.drains():
		return l, drainRule
	case fresh.Algorithm == Concurrency && fresh.Limit > HoldsOpenMax:
		return l, openHoldsRule
	}
	return fresh, ""
}

// numbersOf is the fields of an algorithm that an override may give.
func numbersOf(a Algorithm) []string {
	return slices.DeleteFunc(slices.Clone(algorithmFields[a]), func(field string) bool { return field == "window" })
}

// Active returns which overrides of the set hold at an instant, one bit each. A nil set
// has none.
func (s *OverrideSet) Active(atMicros int64) (active uint16) {
	if s == nil {
		return 0
	}
	for i := range s.Overrides {
		if o := &s.Overrides[i]; o.FromMicros <= atMicros && atMicros < o.UntilMicros {
			active |= 1 << i
		}
	}
	return active
}

// Under returns the plan as a tenant with a set of overrides has it at an instant: the
// set's numbers where it is active, and a digest that covers the set. An override of a
// limit that the plan does not have, or not by that algorithm, has no effect. Without a
// set it is the plan itself.
func (p *Plan) Under(s *OverrideSet, atMicros int64) *Plan {
	if s == nil {
		return p
	}
	under := *p
	under.OverrideSetID = s.ID
	under.SpecDigest = sha256.Sum256(slices.Concat(p.SpecText, s.text))
	under.Limits = slices.Clone(p.Limits)
	active := s.Active(atMicros)
	for i := range under.Limits {
		under.Limits[i] = s.over(under.Limits[i], active)
	}
	return &under
}

// over returns a limit with the numbers of the active override that names it, if any.
func (s *OverrideSet) over(l Limit, active uint16) Limit {
	for i := range s.Overrides {
		if active&(1<<i) != 0 && s.Overrides[i].Name == l.Name {
			l, _ = s.Overrides[i].over(l)
		}
	}
	return l
}

// encodeOverrides returns override_set.overrides.
func encodeOverrides(overrides []Override) (string, error) {
	text, err := json.Marshal(overrideSpecs(overrides))
	return string(text), err
}

func overrideSpecs(overrides []Override) (specs []OverrideSpec) {
	for _, o := range overrides {
		specs = append(specs, o.Spec())
	}
	return specs
}

// decodeOverrides reads override_set.overrides; nil for no set. What is stored was valid
// when it was written, so a fault here means that someone else wrote it.
func decodeOverrides(id int64, text []byte) (*OverrideSet, error) {
	if id == 0 {
		return nil, nil
	}
	var specs []OverrideSpec
	if err := json.Unmarshal(text, &specs); err != nil {
		return nil, fmt.Errorf("%w: override set %d: %w", ErrUnreadable, id, err)
	}
	var faults faultList
	overrides := compileOverrides(specs, "", &faults)
	if err := faults.err(); err != nil {
		return nil, fmt.Errorf("%w: override set %d: %w", ErrUnreadable, id, err)
	}
	return &OverrideSet{ID: id, Overrides: overrides, text: slices.Clone(text)}, nil
}
