//go:build unix && !linux

package devpg

import "syscall"

// endWithParent does nothing: this system cannot tie a child's life to its parent's.
func endWithParent(*syscall.SysProcAttr) {}

// freeBytes returns 0: only Linux has a file system in memory in a known place.
func freeBytes(string) uint64 { return 0 }
