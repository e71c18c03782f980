package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// faultsMax bounds how many faults one error lists: a file that is wrong everywhere
// is better read from its top.
const faultsMax = 100

// A Fault is one field of a configuration that breaks a rule.
type Fault struct {
	Path string // "plans.pro.limits[2].window"; "" is the whole
	Rule string // "must be one of tenant, subject"

	// Where it stands, if it came from a file; Line and Column count from 1.
	File   string
	Line   int
	Column int
}

// Error says where, which field and what rule: "q.yaml:12:5: plans.pro.limits[2].window: must be …".
func (f Fault) Error() string {
	var b strings.Builder
	switch {
	case f.File != "" && f.Line > 0:
		fmt.Fprintf(&b, "%s:%d:%d: ", f.File, f.Line, f.Column)
	case f.File != "":
		b.WriteString(f.File + ": ")
	}
	if f.Path != "" {
		b.WriteString(f.Path + ": ")
	}
	b.WriteString(f.Rule)
	return b.String()
}

// Faults returns the faults that err joins; none if err is of another kind.
func Faults(err error) []Fault {
	switch e := err.(type) {
	case Fault:
		return []Fault{e}
	case interface{ Unwrap() []error }:
		var faults []Fault
		for _, err := range e.Unwrap() {
			faults = append(faults, Faults(err)...)
		}
		return faults
	case interface{ Unwrap() error }:
		return Faults(e.Unwrap())
	}
	return nil
}

// A faultList gathers faults. Its zero value is ready to use.
type faultList struct {
	faults []Fault
}

func (l *faultList) add(path, rule string, args ...any) {
	l.faults = append(l.faults, Fault{Path: path, Rule: fmt.Sprintf(rule, args...)})
}

// err joins the faults, or returns nil if there are none.
func (l *faultList) err() error {
	if len(l.faults) == 0 {
		return nil
	}
	errs := make([]error, 0, min(len(l.faults), faultsMax)+1)
	for _, f := range l.faults[:min(len(l.faults), faultsMax)] {
		errs = append(errs, f)
	}
	if more := len(l.faults) - faultsMax; more > 0 {
		errs = append(errs, fmt.Errorf("and %d more faults", more))
	}
	return errors.Join(errs...)
}

// without returns the faults that are not at or below one of paths.
func without(faults []Fault, paths map[string]bool) []Fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f Fault) bool {
		for path := f.Path; ; path = parentPath(path) {
			if paths[path] {
				return true
			}
			if path == "" {
				return false
			}
		}
	})
}

// fieldPath is the path of a field, or of a map's entry, of what is at path.
func fieldPath(path, name string) string {
	if len(name) > IDBytesMax {
		name = strings.ToValidUTF8(name[:IDBytesMax], "") + "…" // no valid name is cut
	}
	switch {
	case !plainInPath(name):
		return fmt.Sprintf("%s[%q]", path, name)
	case path == "":
		return name
	}
	return path + "." + name
}

// itemPath is the path of a list's item; i counts from 0.
func itemPath(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

// parentPath drops the last step of a path. A name may hold dots, so a parent need
// not exist; its own parents do.
func parentPath(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

func plainInPath(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			r == '.' || r == '_' || r == '-')
	})
}
