package catalog

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// An Object is a kind of thing that is configured.
type Object string

const (
	ObjectMeter  Object = "meter"
	ObjectPlan   Object = "plan"
	ObjectTenant Object = "tenant"
	ObjectKey    Object = "key"

	ObjectSettings Object = "settings" // one for the whole database
)

// An Outcome is what a change did to an object.
type Outcome string

const (
	Created   Outcome = "created" // or brought back after it was removed
	Changed   Outcome = "changed"
	Unchanged Outcome = "unchanged"
	Removed   Outcome = "removed"
)

// A Change is what became of one object. Before and After are its spec in canonical
// form; nil when there was or is none, and both nil when nothing changed.
type Change struct {
	Object  Object          `json:"object"`
	Name    string          `json:"name"`
	Outcome Outcome         `json:"outcome"`
	Differs []string        `json:"differs,omitempty"` // "plan free -> pro", "~ hourly: limit 1000 -> 2000"
	Before  json.RawMessage `json:"before,omitempty"`
	After   json.RawMessage `json:"after,omitempty"`
}

// Changes is what [Store.Apply] did, or would do: meters first, then plans, the
// settings and tenants, each sorted by name.
type Changes struct {
	Version int64    `json:"version"` // of the configuration afterwards
	DryRun  bool     `json:"dry_run"`
	Items   []Change `json:"changes"`
}

// Count returns how many objects had the outcome.
func (c Changes) Count(outcome Outcome) int {
	n := 0
	for _, item := range c.Items {
		if item.Outcome == outcome {
			n++
		}
	}
	return n
}

// specChange describes what became of an object; a spec of nil means that there was
// or is none.
func specChange(object Object, name string, before, after any) Change {
	c := Change{Object: object, Name: name, Outcome: Changed, Before: encodeSpec(before), After: encodeSpec(after)}
	switch {
	case before == nil:
		c.Outcome = Created
	case after == nil:
		c.Outcome = Removed
	case object == ObjectPlan:
		c.Differs = planDifferences(before.(PlanSpec), after.(PlanSpec))
	default:
		c.Differs = differences(before, after)
	}
	return c
}

func unchanged(object Object, name string) Change {
	return Change{Object: object, Name: name, Outcome: Unchanged}
}

// encodeSpec returns the JSON of a spec, which is made of texts, numbers, maps and
// lists alone.
func encodeSpec(spec any) json.RawMessage {
	if spec == nil {
		return nil
	}
	text, err := json.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("catalog: encode a %T: %v", spec, err))
	}
	return text
}

// planDifferences says which limits differ, in the order of their names.
func planDifferences(before, after PlanSpec) []string {
	old, fresh := limitsByName(before), limitsByName(after)
	names := maps.Clone(old)
	maps.Copy(names, fresh)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		was, wasThere := old[name]
		is, isThere := fresh[name]
		switch {
		case !wasThere:
			out = append(out, "+ "+name)
		case !isThere:
			out = append(out, "- "+name)
		default:
			if fields := differences(was, is); len(fields) > 0 {
				out = append(out, fmt.Sprintf("~ %s: %s", name, strings.Join(fields, ", ")))
			}
		}
	}
	if len(out) == 0 {
		out = append(out, "order of limits")
	}
	return out
}

func limitsByName(spec PlanSpec) map[string]LimitSpec {
	limits := make(map[string]LimitSpec, len(spec.Limits))
	for _, l := range spec.Limits {
		limits[l.Name] = l
	}
	return limits
}

// differences says which fields of two specs differ, in the order of their names.
func differences(before, after any) []string {
	old, fresh := fieldTexts(before), fieldTexts(after)
	names := maps.Clone(old)
	maps.Copy(names, fresh)
	var out []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if old[name] != fresh[name] {
			out = append(out, fmt.Sprintf("%s %s -> %s", name, orNone(old[name]), orNone(fresh[name])))
		}
	}
	return out
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return text
}

// fieldTexts returns each field of a spec as short text, and each entry of a map as a
// field of its own.
func fieldTexts(spec any) map[string]string {
	texts := map[string]string{}
	addFieldTexts(texts, "", encodeSpec(spec))
	return texts
}

func addFieldTexts(texts map[string]string, path string, value json.RawMessage) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(value, &fields); err != nil {
		texts[path] = strings.Trim(string(value), `"`)
		return
	}
	for name, field := range fields {
		addFieldTexts(texts, fieldPath(path, name), field)
	}
}
