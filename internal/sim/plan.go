package sim

import (
	"encoding/json"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"
)

// A version is one version of a plan, as its stored JSON says.
type version struct {
	id     int64
	at     int64 // microseconds, when it was made
	plan   string
	number int32
	limits []*limit
}

// A limit is one rule of a version.
type limit struct {
	Name      string `json:"name"`
	Meter     string `json:"meter"`
	Algorithm string `json:"algorithm"`
	Limit     int64  `json:"limit"`
	Unlimited bool   `json:"unlimited"`
	Window    string `json:"window"`
	Capacity  int64  `json:"capacity"`
	Refill    string `json:"refill"`
	Rate      string `json:"rate"`
	Burst     int64  `json:"burst"`
	Queue     int64  `json:"queue"`
	Scope     string `json:"scope"`
	Mode      string `json:"mode"`
	Since     int32  `json:"since"`

	size   *big.Int // the limit, capacity, burst or queue
	rate   *big.Rat // units per microsecond, of those that keep a level
	window int64    // microseconds; 0 for a calendar word
}

// calendarWords are the windows that follow the tenant's calendar.
var calendarWords = []string{"hour", "day", "week", "month", "year"}

func parseVersion(plan string, number int32, spec []byte) (*version, error) {
	var stored struct {
		Limits []*limit `json:"limits"`
	}
	if err := json.Unmarshal(spec, &stored); err != nil {
		return nil, fmt.Errorf("version %d of plan %s: %w", number, plan, err)
	}
	for _, l := range stored.Limits {
		if err := l.parse(); err != nil {
			return nil, fmt.Errorf("version %d of plan %s: limit %s: %w", number, plan, l.Name, err)
		}
	}
	return &version{plan: plan, number: number, limits: stored.Limits}, nil
}

func (l *limit) parse() (err error) {
	switch l.Algorithm {
	case "sliding_log", "sliding_counter", "fixed_window":
		l.size = big.NewInt(l.Limit)
		if slices.Contains(calendarWords, l.Window) {
			return nil
		}
		var window time.Duration
		window, err = time.ParseDuration(l.Window)
		l.window = window.Microseconds()
		return err
	case "token_bucket":
		l.size = big.NewInt(l.Capacity)
		l.rate, err = parseRate(l.Refill)
	case "gcra":
		l.size = big.NewInt(l.Burst)
		l.rate, err = parseRate(l.Rate)
	case "leaky_bucket":
		l.size = big.NewInt(l.Queue)
		l.rate, err = parseRate(l.Rate)
	case "concurrency":
		l.size = big.NewInt(l.Limit)
	default:
		return fmt.Errorf("algorithm %q is not known here", l.Algorithm)
	}
	return err
}

// parseRate turns "7/1m0s" into units per microsecond.
func parseRate(text string) (*big.Rat, error) {
	unitsText, per, _ := strings.Cut(text, "/")
	units, ok := new(big.Int).SetString(unitsText, 10)
	span, err := time.ParseDuration(per)
	if !ok || err != nil || span <= 0 {
		return nil, fmt.Errorf("rate %q cannot be read", text)
	}
	return new(big.Rat).SetFrac(units, big.NewInt(span.Microseconds())), nil
}

// keepsLevel reports whether the limit's usage is kept instead of counted.
func (l *limit) keepsLevel() bool { return l.rate != nil }

// asked reports whether the limit has a say in what entries of a kind take: one of
// concurrency only in holds.
func (l *limit) asked(kind Kind) bool {
	return kind == KindHold || kind == KindConsume && !l.countsPlaces()
}

// countsPlaces reports whether the limit counts open holds, whatever they set aside.
func (l *limit) countsPlaces() bool { return l.Algorithm == "concurrency" }

// countsHeld reports whether what is set aside stands against the limit.
func (l *limit) countsHeld() bool { return !l.countsPlaces() && l.Algorithm != "leaky_bucket" }

// counts reports whether the limit counts what a subject does; 0 is none.
func (l *limit) counts(subject int64) bool { return l.Scope != "subject" || subject != 0 }

// blocks reports whether the limit lets nothing pass, not even a cost of 0.
func (l *limit) blocks() bool {
	return !l.Unlimited && (l.size.Sign() == 0 || (l.rate != nil && l.rate.Sign() == 0))
}

// subjectOf returns the subject that the limit counts for: 0 for the whole tenant.
func (l *limit) subjectOf(subject int64) int64 {
	if l.Scope == "subject" {
		return subject
	}
	return 0
}

// on returns the limits on a meter that are looked at, in the plan's order, and
// whether the plan names the meter at all.
func (v *version) on(meter string) (limits []*limit, named bool) {
	for _, l := range v.limits {
		if l.Meter != meter {
			continue
		}
		named = true
		if l.Mode != "off" {
			limits = append(limits, l)
		}
	}
	return limits, named
}
