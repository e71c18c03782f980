package catalog

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// A LimitSpec is a limit as it is written in a file and in JSON. Which fields it may
// and must have is fixed by its algorithm; see [Limit].
type LimitSpec struct {
	Name      string    `json:"name"`
	Meter     string    `json:"meter"`
	Algorithm Algorithm `json:"algorithm"`
	Limit     *int64    `json:"limit,omitempty"` // units
	Unlimited bool      `json:"unlimited,omitempty"`
	Window    string    `json:"window,omitempty"`   // "1h", "month"
	Capacity  *int64    `json:"capacity,omitempty"` // units
	Refill    string    `json:"refill,omitempty"`   // "2/1s"
	Rate      string    `json:"rate,omitempty"`     // "6/1m"
	Burst     *int64    `json:"burst,omitempty"`    // units
	Queue     *int64    `json:"queue,omitempty"`    // units
	Scope     Scope     `json:"scope,omitempty"`    // tenant if absent
	Mode      Mode      `json:"mode,omitempty"`     // enforce if absent

	// OnError is what the limit does when the database is away: deny if absent. LocalShare
	// goes with local, in percent.
	OnError    OnError `json:"on_error,omitempty"`
	LocalShare *int64  `json:"local_share,omitempty"`
}

const (
	unitsRule          = "must be a whole number from 0 to 999999999999999"
	shareRule          = "must be a whole percentage from 1 to 100"
	openHoldsRule      = "must be at most 1000 for concurrency: a tenant may have that many open holds"
	drainRule          = "must drain at its rate within 87660h (10 years)"
	durationWindowRule = windowRule + "; calendar words are for fixed_window"
)

// algorithmFields is which of the [limitFields] each algorithm requires. It refuses
// the others.
var algorithmFields = map[Algorithm][]string{
	SlidingLog:     {"limit", "window"},
	SlidingCounter: {"limit", "window"},
	FixedWindow:    {"limit", "window"},
	TokenBucket:    {"capacity", "refill"},
	GCRA:           {"rate", "burst"},
	LeakyBucket:    {"rate", "queue"},
	Concurrency:    {"limit"},
}

// Algorithms returns every algorithm, in the order documents name them.
func Algorithms() []Algorithm {
	return []Algorithm{SlidingLog, SlidingCounter, FixedWindow, TokenBucket, GCRA, LeakyBucket, Concurrency}
}

// A limitField is one field that belongs to some algorithms: whether a spec gives it,
// how it is read into a limit and written again, and how one limit takes it from
// another. read returns the rule that the field breaks, or "".
type limitField struct {
	name  string
	given func(s *LimitSpec) bool
	read  func(s *LimitSpec, l *Limit) (rule string)
	write func(l *Limit, s *LimitSpec)
	take  func(to, from *Limit)
}

// limitFields is every field that belongs to some algorithms, in the order that
// faults are listed in.
var limitFields = []limitField{
	{
		name:  "limit",
		given: func(s *LimitSpec) bool { return s.Limit != nil || s.Unlimited },
		read:  readLimit, write: writeLimit,
		take: func(to, from *Limit) { to.Limit, to.Unlimited = from.Limit, from.Unlimited },
	},
	unitsField("capacity", func(s *LimitSpec) **int64 { return &s.Capacity }, func(l *Limit) *int64 { return &l.Capacity }),
	unitsField("burst", func(s *LimitSpec) **int64 { return &s.Burst }, func(l *Limit) *int64 { return &l.Burst }),
	unitsField("queue", func(s *LimitSpec) **int64 { return &s.Queue }, func(l *Limit) *int64 { return &l.Queue }),
	{
		name:  "window",
		given: func(s *LimitSpec) bool { return s.Window != "" },
		read:  readWindow,
		write: func(l *Limit, s *LimitSpec) { s.Window = l.Window.String() },
		take:  func(to, from *Limit) { to.Window = from.Window },
	},
	rateField("refill", func(s *LimitSpec) *string { return &s.Refill }, func(l *Limit) *Rate { return &l.Refill }),
	rateField("rate", func(s *LimitSpec) *string { return &s.Rate }, func(l *Limit) *Rate { return &l.Rate }),
}

func unitsField(name string, text func(*LimitSpec) **int64, value func(*Limit) *int64) limitField {
	return limitField{
		name:  name,
		given: func(s *LimitSpec) bool { return *text(s) != nil },
		read: func(s *LimitSpec, l *Limit) string {
			if units := **text(s); units < 0 || units > UnitsMax {
				return unitsRule
			}
			*value(l) = **text(s)
			return ""
		},
		write: func(l *Limit, s *LimitSpec) {
			units := *value(l)
			*text(s) = &units
		},
		take: func(to, from *Limit) { *value(to) = *value(from) },
	}
}

func rateField(name string, text func(*LimitSpec) *string, value func(*Limit) *Rate) limitField {
	return limitField{
		name:  name,
		given: func(s *LimitSpec) bool { return *text(s) != "" },
		read: func(s *LimitSpec, l *Limit) string {
			rate, err := ParseRate(*text(s))
			if err != nil {
				return rateRule
			}
			*value(l) = rate
			return ""
		},
		write: func(l *Limit, s *LimitSpec) { *text(s) = value(l).String() },
		take:  func(to, from *Limit) { *value(to) = *value(from) },
	}
}

func readLimit(s *LimitSpec, l *Limit) string {
	switch {
	case s.Unlimited && s.Limit != nil:
		return "must not stand beside unlimited: true"
	case s.Unlimited:
		l.Unlimited = true
	case *s.Limit < 0 || *s.Limit > UnitsMax:
		return unitsRule
	case s.Algorithm == Concurrency && *s.Limit > HoldsOpenMax:
		return openHoldsRule
	default:
		l.Limit = *s.Limit
	}
	return ""
}

func writeLimit(l *Limit, s *LimitSpec) {
	if s.Unlimited = l.Unlimited; !l.Unlimited {
		units := l.Limit
		s.Limit = &units
	}
}

func readWindow(s *LimitSpec, l *Limit) string {
	window, err := ParseWindow(s.Window)
	calendarAllowed := s.Algorithm == FixedWindow
	switch {
	case err != nil && calendarAllowed:
		return calendarRule
	case err != nil || window.Calendar != "" && !calendarAllowed:
		return durationWindowRule
	}
	l.Window = window
	return ""
}

// Validate returns every fault of the plan. The meters it names may be anywhere;
// [Store.Apply] and [Store.PutPlan] check that they exist.
func (s PlanSpec) Validate() error {
	var faults faultList
	s.compile("", "", &faults)
	return faults.err()
}

// compile translates the plan; each limit's Since is left for whoever knows the
// version before.
func (s PlanSpec) compile(name, path string, faults *faultList) Plan {
	plan := Plan{Name: name, Limits: make([]Limit, 0, len(s.Limits))}
	limitsPath := fieldPath(path, "limits")
	atMost(faults, limitsPath, len(s.Limits), LimitsMax)
	names := map[string]int{}
	onMeter := map[string]int{}
	for i, limit := range s.Limits[:min(len(s.Limits), LimitsMax)] {
		at := itemPath(limitsPath, i)
		plan.Limits = append(plan.Limits, limit.compile(at, faults))
		if first, taken := names[limit.Name]; taken && limit.Name != "" {
			faults.add(fieldPath(at, "name"), "is already the name of %s", itemPath("limits", first))
		} else {
			names[limit.Name] = i
		}
		onMeter[limit.Meter]++
		if onMeter[limit.Meter] == LimitsPerMeterMax+1 && limit.Meter != "" {
			faults.add(fieldPath(at, "meter"), "a plan must have at most %d limits on one meter", LimitsPerMeterMax)
		}
	}
	return plan
}

func (s LimitSpec) compile(path string, faults *faultList) Limit {
	l := Limit{Name: s.Name, Meter: s.Meter, Algorithm: s.Algorithm, Scope: s.Scope, Mode: s.Mode}
	requiredName(faults, fieldPath(path, "name"), s.Name)
	requiredName(faults, fieldPath(path, "meter"), s.Meter)
	if l.Scope == "" {
		l.Scope = ScopeTenant
	}
	if l.Mode == "" {
		l.Mode = ModeEnforce
	}
	oneOf(faults, fieldPath(path, "scope"), l.Scope, ScopeTenant, ScopeSubject)
	oneOf(faults, fieldPath(path, "mode"), l.Mode, ModeEnforce, ModeShadow, ModeOff)
	s.compileOnError(path, &l, faults)
	s.compileFields(path, &l, faults)
	return l
}

// compileOnError reads what the limit does when the database is away.
func (s LimitSpec) compileOnError(path string, l *Limit, faults *faultList) {
	if s.OnError != "" && s.OnError != OnErrorDeny {
		l.OnError = s.OnError
		oneOf(faults, fieldPath(path, "on_error"), s.OnError, OnErrorDeny, OnErrorAllow, OnErrorLocal)
	}
	share := fieldPath(path, "local_share")
	switch local := l.OnError == OnErrorLocal; {
	case l.OnError != "" && s.Algorithm == Concurrency:
		faults.add(fieldPath(path, "on_error"), "must be deny for concurrency: a hold is never granted without the database")
	case local && s.Unlimited:
		faults.add(fieldPath(path, "on_error"), "local must not stand beside unlimited: true, which has no numbers to share")
	case local && s.LocalShare == nil:
		faults.add(share, "is required by on_error: local")
	case local && (*s.LocalShare < 1 || *s.LocalShare > 100):
		faults.add(share, shareRule)
	case local:
		l.LocalShare = *s.LocalShare
	case s.LocalShare != nil:
		faults.add(share, "is only for on_error: local")
	}
}

// compileFields reads the fields that the algorithm requires and refuses the others.
func (s LimitSpec) compileFields(path string, l *Limit, faults *faultList) {
	required, known := algorithmFields[s.Algorithm]
	switch {
	case known:
	case s.Algorithm == "":
		faults.add(fieldPath(path, "algorithm"), "is required")
		return
	default:
		oneOf(faults, fieldPath(path, "algorithm"), s.Algorithm, Algorithms()...)
		return
	}
	for _, field := range limitFields {
		given, wanted := field.given(&s), slices.Contains(required, field.name)
		switch {
		case given && wanted:
			if rule := field.read(&s, l); rule != "" {
				faults.add(fieldPath(path, field.name), "%s", rule)
			}
		case given:
			name := field.name
			if name == "limit" && s.Limit == nil {
				name = "unlimited"
			}
			faults.add(fieldPath(path, name), "is not a field of %s, which has %s",
				s.Algorithm, strings.Join(required, " and "))
		case wanted:
			faults.add(fieldPath(path, field.name), "is required by %s", s.Algorithm)
		}
	}
	if l.Algorithm == LeakyBucket && !l.drains() {
		faults.add(fieldPath(path, "queue"), drainRule)
	}
}

// drains reports whether a full queue is empty within the longest duration: whoever is
// let in is told when it leaves.
func (l *Limit) drains() bool {
	if l.Queue <= 0 || l.Rate.Units <= 0 {
		return true // it lets nobody in
	}
	hi, lo := bits.Mul64(uint64(l.Queue), uint64(l.Rate.PerMicros))
	if hi >= uint64(l.Rate.Units) {
		return false
	}
	micros, _ := bits.Div64(hi, lo, uint64(l.Rate.Units))
	return micros <= uint64(spanMicrosMax)
}

// Spec is the plan as it is written, in its one canonical form: defaults are spelled
// out, so that a changed default never changes a stored plan.
func (p *Plan) Spec() PlanSpec {
	spec := PlanSpec{Limits: make([]LimitSpec, 0, len(p.Limits))}
	for _, l := range p.Limits {
		spec.Limits = append(spec.Limits, l.Spec())
	}
	return spec
}

// Spec is the limit as it is written, in its one canonical form. on_error: deny is left
// out: plans were stored before there was anything else.
func (l Limit) Spec() LimitSpec {
	spec := LimitSpec{Name: l.Name, Meter: l.Meter, Algorithm: l.Algorithm, Scope: l.Scope, Mode: l.Mode, OnError: l.OnError}
	if l.LocalShare != 0 {
		spec.LocalShare = &l.LocalShare
	}
	for _, field := range limitFields {
		if slices.Contains(algorithmFields[l.Algorithm], field.name) {
			field.write(&l, &spec)
		}
	}
	return spec
}

func requiredName(faults *faultList, path, name string) {
	switch {
	case name == "":
		faults.add(path, "is required")
	case !ValidName(name):
		faults.add(path, "%s", fmt.Sprintf("a name %s", NameRule))
	}
}
