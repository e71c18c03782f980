//go:build !unix

package spool

import "os"

// lockFile opens a file. Nothing here keeps another process from doing the same: give
// each instance a directory of its own.
func lockFile(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
}
