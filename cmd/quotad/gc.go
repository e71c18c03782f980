package main

import (
	"os"
	"runtime/debug"
)

// heapGrowth is how far the heap may grow between collections, in percent of what is live.
// What an instance keeps is small and what each request leaves is garbage at once, so Go's
// default of 100 spends a tenth of the processor on collecting.
const heapGrowth = 400

// setHeapGrowth gives the process its own default; GOGC in the environment wins.
func setHeapGrowth() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(heapGrowth)
	}
}
