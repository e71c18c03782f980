package main

import (
	"fmt"
	"syscall"
)

// Magic numbers of the file systems that are memory.
const (
	tmpfsMagic = 0x01021994
	ramfsMagic = 0x858458f6
)

// inMemory reports whether the files of a directory are in memory, where a flush costs
// nothing and every ratio would be of another world.
func inMemory(dir string) (bool, error) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(dir, &stat); err != nil {
		return false, fmt.Errorf("%s: %w", dir, err)
	}
	kind := uint32(stat.Type)
	return kind == tmpfsMagic || kind == ramfsMagic, nil
}
