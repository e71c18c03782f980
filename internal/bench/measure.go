package main

import (
	"time"

	"github.com/quotad/quotad/internal/loadgen"
)

// A task is what every process that measures is told.
type task struct {
	Drive loadgen.Drive `json:"drive"`
	Watch watch         `json:"watch"`
}

// A measurement is what came of one run.
type measurement struct {
	loadgen.Measurement
	CPU cpuTimes `json:"cpu"` // in the measured time
	// Written is what the database wrote in the whole run, told by the process that
	// started it.
	Written written `json:"written"`
}

// run measures, with processor time.
func (t task) run(drive func(loadgen.Drive) (loadgen.Measurement, error)) (m measurement, err error) {
	var at []cpuTimes
	t.Drive.Edge = func() error {
		now, err := t.Watch.read()
		at = append(at, now)
		return err
	}
	if m.Measurement, err = drive(t.Drive); err != nil {
		return m, err
	}
	m.CPU = at[1].since(at[0])
	return m, nil
}

// cpuMicros is processor time for each decision.
func (m measurement) cpuMicros(used time.Duration) float64 {
	return float64(used.Microseconds()) / float64(m.Counts.Decisions())
}
