//go:build !linux

package main

import "syscall"

// childAttributes are the defaults: only Linux ends a child with its parent.
func childAttributes() *syscall.SysProcAttr { return nil }
