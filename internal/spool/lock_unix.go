//go:build unix

package spool

import (
	"errors"
	"os"
	"syscall"
)

// lockFile opens a file and locks it until it is closed, by whatever end of the process.
func lockFile(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = ErrHeld
		}
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
