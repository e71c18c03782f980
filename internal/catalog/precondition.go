package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
)

// A Tag tells the states of one object apart: it is the same exactly while the object
// is stored the same. The zero Tag is that of an object which is not there.
type Tag [16]byte

// String is the tag in hex.
func (t Tag) String() string { return hex.EncodeToString(t[:]) }

// tagOf computes every tag, from the object as it is stored.
func tagOf(object Object, name string, stored ...any) Tag {
	text, err := json.Marshal([]any{object, name, stored})
	if err != nil {
		panic(fmt.Sprintf("catalog: encode %s %s: %v", object, name, err)) // texts, numbers, maps and lists
	}
	sum := sha256.Sum256(text)
	return Tag(sum[:len(Tag{})])
}

// Tag is the tag of the meter as it is stored.
func (m *Meter) Tag() Tag { return tagOf(ObjectMeter, m.Name, m.Spec()) }

// Tag is the tag of the plan as it is stored.
func (p *Plan) Tag() Tag { return tagOf(ObjectPlan, p.Name, p.Version, p.Spec()) }

// Tag is the tag of the tenant's configuration as it is stored. The instant it was
// created at is left out: it never changes, as tenants are never removed.
func (t Tenant) Tag() Tag { return tagOf(ObjectTenant, t.Name, t.Spec()) }

// Tag is the tag of the settings as they are stored.
func (s Settings) Tag() Tag { return tagOf(ObjectSettings, settingsName, s.Spec()) }

// A Precondition is what must hold of an object before it is changed. The zero value
// always holds.
type Precondition struct {
	Match     *TagSet // the object is there, in one of these states
	NoneMatch *TagSet // the object is in none of these states
}

// A TagSet is tags, or every tag that an object may have.
type TagSet struct {
	Any  bool
	Tags []Tag
}

func (s *TagSet) has(t Tag) bool {
	return t != Tag{} && (s.Any || slices.Contains(s.Tags, t))
}

// Check returns a *[PreconditionError] unless the precondition holds of an object with
// this tag.
func (p Precondition) Check(t Tag) error {
	if p.Match != nil && !p.Match.has(t) || p.NoneMatch != nil && p.NoneMatch.has(t) {
		return &PreconditionError{Tag: t}
	}
	return nil
}

// A PreconditionError says that an object is not in the state that its change was
// meant for. Nothing was changed.
type PreconditionError struct {
	Tag Tag // of the object as it is; zero if there is none
}

// Error says whether there is an object.
func (e *PreconditionError) Error() string {
	if e.Tag == (Tag{}) {
		return "a precondition does not hold: the object is not there"
	}
	return "a precondition does not hold: the object has tag " + e.Tag.String()
}

// tag returns the tag of an object that was read; zero if there is none.
func (s state) tag(object Object, name string) Tag {
	switch object {
	case ObjectMeter:
		if m, ok := s.meters[name]; ok && !m.removed {
			return m.Tag()
		}
	case ObjectPlan:
		if p, ok := s.plans[name]; ok && !p.removed {
			return p.Tag()
		}
	case ObjectTenant:
		if t, ok := s.tenants[name]; ok {
			return t.Tag()
		}
	case ObjectSettings:
		return s.settings.Tag()
	}
	return Tag{}
}
