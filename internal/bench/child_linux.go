package main

import "syscall"

// childAttributes have the kernel end a child when the thread that forked it ends, so
// that a killed benchmark leaves no server behind.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
}
