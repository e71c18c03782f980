package api

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/quota"
)

// Page sizes of every list.
const (
	pageDefault = 100
	pageMax     = 1000
)

// query returns the request's query. A parameter that the operation does not have is
// refused, as an unknown field is: a misspelt filter must not pass for no filter.
func (c *call) query(known ...string) (url.Values, error) {
	if c.r.URL.RawQuery == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, invalid("query", "must be percent-encoded name=value pairs")
	}
	var faults []quota.Fault
	for name, given := range values {
		switch {
		case name == "":
			faults = append(faults, quota.Fault{Field: "query", Rule: "must not have a parameter with an empty name"})
		case !slices.Contains(known, name):
			faults = append(faults, quota.Fault{Field: shorten(name), Rule: "is not a parameter of this request"})
		case len(given) > 1:
			faults = append(faults, quota.Fault{Field: name, Rule: "must be given only once"})
		}
	}
	if len(faults) == 0 {
		return values, nil
	}
	slices.SortFunc(faults, func(a, b quota.Fault) int {
		if a.Field < b.Field {
			return -1
		}
		return 1
	})
	return nil, &problem{code: codeInvalidRequest, faults: faults[:min(len(faults), faultsMax)]}
}

// A filter reads the parameters of a list and collects their faults.
type filter struct {
	values url.Values
	faults []quota.Fault
}

func (f *filter) fault(field, rule string) {
	f.faults = append(f.faults, quota.Fault{Field: field, Rule: rule})
}

// text returns a parameter that, where given, must satisfy rule ("" is satisfied).
func (f *filter) text(name string, rule func(string) string) string {
	if !f.values.Has(name) {
		return ""
	}
	value := f.values.Get(name)
	if broken := rule(value); broken != "" {
		f.fault(name, broken)
	}
	return value
}

// instant returns a parameter in RFC 3339, cut to microseconds; zero if not given.
func (f *filter) instant(name string) time.Time {
	if !f.values.Has(name) {
		return time.Time{}
	}
	text := f.values.Get(name)
	at, err := time.Parse(time.RFC3339Nano, text)
	at = at.UTC().Truncate(time.Microsecond)
	if err != nil || !instantPattern.MatchString(text) || !instantAllowed(at) {
		f.fault(name, "must be an instant as RFC 3339 writes it, like 2026-01-31T12:00:00Z, from 1970 to 9999")
		return time.Time{}
	}
	return at
}

// instantPattern is RFC 3339's form. Go's parser takes more: a comma for the dot, an hour
// of one digit, and offsets of a day or more.
var instantPattern = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// instantAllowed reports whether an instant, in UTC, is one that a request may name:
// RFC 3339 cannot write what comes after, and nothing was counted before.
func instantAllowed(at time.Time) bool { return at.Year() >= 1970 && at.Year() <= 9999 }

// seqRule is the rule of an entry's number.
const seqRule = "must be a whole number from 1 to 999999999999999"

// seq returns the parameter seq, an entry's number; 0 if not given.
func (f *filter) seq() int64 {
	if !f.values.Has("seq") {
		return 0
	}
	seq, ok := parseUnits([]byte(f.values.Get("seq")))
	if !ok || seq == 0 {
		f.fault("seq", seqRule)
	}
	return seq
}

// uuid returns a parameter; zero if not given.
func (f *filter) uuid(name string) uuid.UUID {
	if !f.values.Has(name) {
		return uuid.Nil
	}
	text := f.values.Get(name)
	id, err := uuid.Parse(text)
	if err != nil || !strings.EqualFold(text, id.String()) || id == uuid.Nil {
		f.fault(name, uuidRule)
	}
	return id
}

const uuidRule = "must be a UUID as answers write it, like 0198c5d7-8f5e-7c4e-9d6c-3f2a1b0c9d8e"

// span returns the parameters from (inclusive) and to (exclusive); zero if not given.
func (f *filter) span() (from, to time.Time) {
	from, to = f.instant("from"), f.instant("to")
	if !from.IsZero() && !to.IsZero() && !from.Before(to) {
		f.fault("to", "must be after from")
	}
	return from, to
}

// place reads the parameter cursor, where it is given, with the function for the places
// of its list. A damaged one is a fault, so what was read of it is never used.
func (f *filter) place(list [cursorDigestBytes]byte, read func(*placeReader)) {
	if !f.values.Has("cursor") {
		return
	}
	place, ok := decodeCursor(list, f.values.Get("cursor"))
	p := placeReader{rest: place}
	if ok {
		read(&p)
	}
	if !ok || p.damaged || len(p.rest) > 0 {
		f.fault("cursor", cursorRule)
	}
}

// seqCursor returns the number that the list goes on behind; 0 at its beginning.
func (f *filter) seqCursor(list [cursorDigestBytes]byte) (seq int64) {
	f.place(list, func(p *placeReader) { seq = p.number() })
	return seq
}

// pageSize returns the parameter limit.
func (f *filter) pageSize() int {
	if !f.values.Has("limit") {
		return pageDefault
	}
	size, ok := parseUnits([]byte(f.values.Get("limit")))
	if !ok || size < 1 || size > pageMax {
		f.fault("limit", "must be a whole number from 1 to "+strconv.Itoa(pageMax))
		return pageDefault
	}
	return int(size)
}

func (f *filter) problem() error {
	if len(f.faults) == 0 {
		return nil
	}
	return &problem{code: codeInvalidRequest, faults: f.faults}
}
