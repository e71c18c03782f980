package catalog

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// storedPlan is the form of plan_version.spec: the canonical spec, and each limit's
// since, which no caller writes or sees.
type storedPlan struct {
	Limits []storedLimit `json:"limits"`
}

type storedLimit struct {
	LimitSpec
	Since int32 `json:"since"`
}

// encodeStored returns plan_version.spec of a plan.
func encodeStored(p *Plan) (string, error) {
	stored := storedPlan{Limits: make([]storedLimit, 0, len(p.Limits))}
	for _, l := range p.Limits {
		if l.Since < 1 {
			return "", fmt.Errorf("limit %s of plan %s has no since", l.Name, p.Name)
		}
		stored.Limits = append(stored.Limits, storedLimit{l.Spec(), l.Since})
	}
	text, err := json.Marshal(stored)
	return string(text), err
}

// ErrUnreadable says that a stored plan version is not one that quotad wrote.
var ErrUnreadable = errors.New("the stored plan cannot be read")

// decodeStored reads plan_version.spec. What is stored was valid when it was written,
// so a fault here means that someone else wrote it.
func decodeStored(name string, version int32, versionID int64, spec []byte) (*Plan, error) {
	var stored storedPlan
	if err := json.Unmarshal(spec, &stored); err != nil {
		return nil, fmt.Errorf("%w: version %d of plan %s: %w", ErrUnreadable, version, name, err)
	}
	var faults faultList
	written := PlanSpec{Limits: make([]LimitSpec, len(stored.Limits))}
	for i, l := range stored.Limits {
		written.Limits[i] = l.LimitSpec
	}
	plan := written.compile(name, "", &faults)
	for i, l := range stored.Limits[:len(plan.Limits)] {
		if l.Since < 1 || l.Since > version {
			faults.add(itemPath("limits", i)+".since", "must be from 1 to %d", version)
		}
		plan.Limits[i].Since = l.Since
	}
	if err := faults.err(); err != nil {
		return nil, fmt.Errorf("%w: version %d of plan %s: %w", ErrUnreadable, version, name, err)
	}
	plan.Version, plan.VersionID = version, versionID
	plan.SpecText, plan.SpecDigest = slices.Clone(spec), sha256.Sum256(spec) // jsonb travels as its text
	return &plan, nil
}

// decodeMeter reads a meter from its columns as one JSON object.
func decodeMeter(name string, id int32, spec []byte) (*Meter, error) {
	var written MeterSpec
	if err := json.Unmarshal(spec, &written); err != nil {
		return nil, fmt.Errorf("stored meter %s: %w", name, err)
	}
	var faults faultList
	meter := written.compile(name, "", &faults)
	if err := faults.err(); err != nil {
		return nil, fmt.Errorf("stored meter %s: %w", name, err)
	}
	meter.ID = id
	return &meter, nil
}

// encodeWeights returns meter.weights of a meter.
func encodeWeights(m *Meter) (string, error) {
	weights := m.Spec().Weights
	if weights == nil {
		return "{}", nil
	}
	text, err := json.Marshal(weights)
	return string(text), err
}
