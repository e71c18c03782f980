package main

import (
	"runtime"
	"time"

	"github.com/prometheus/procfs"
)

// ticksPerSecond is the unit of processor time that Linux tells programs, on every
// machine.
const ticksPerSecond = 100

// A watch is whose processor time is read around the measured time, beside that of the
// process that measures.
type watch struct {
	Service    []int `json:"service"` // process ids
	Postmaster int   `json:"postmaster"`
}

// cpuTimes is processor time, user and system; all 0 where the system does not tell.
type cpuTimes struct {
	Client   time.Duration `json:"client_ns"`
	Service  time.Duration `json:"service_ns"`
	Database time.Duration `json:"database_ns"` // all of its processes
}

func (c cpuTimes) since(start cpuTimes) cpuTimes {
	return cpuTimes{c.Client - start.Client, c.Service - start.Service, c.Database - start.Database}
}

// read tells the processor time used so far.
func (w watch) read() (c cpuTimes, err error) {
	if runtime.GOOS != "linux" {
		return c, nil
	}
	self, err := procfs.Self()
	if err != nil {
		return c, err
	}
	stat, err := self.Stat()
	if err != nil {
		return c, err
	}
	c.Client = cpuTime(stat)
	for _, pid := range w.Service {
		process, err := procfs.NewProc(pid)
		if err != nil {
			return c, err
		}
		if stat, err = process.Stat(); err != nil {
			return c, err
		}
		c.Service += cpuTime(stat)
	}
	if w.Postmaster != 0 {
		c.Database, err = treeTime(w.Postmaster)
	}
	return c, err
}

// treeTime is the time of a server: of its main process, of those that it started, and
// of those of them that have ended.
func treeTime(postmaster int) (total time.Duration, err error) {
	processes, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	for _, process := range processes {
		stat, err := process.Stat()
		if err != nil { // it has ended since
			continue
		}
		switch postmaster {
		case stat.PID:
			total += cpuTime(stat) + ticks(stat.CUTime) + ticks(stat.CSTime)
		case stat.PPID:
			total += cpuTime(stat)
		}
	}
	return total, nil
}

func cpuTime(s procfs.ProcStat) time.Duration { return ticks(int(s.UTime)) + ticks(int(s.STime)) }

func ticks(n int) time.Duration { return time.Duration(n) * time.Second / ticksPerSecond }
