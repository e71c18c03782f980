package devpg

import "syscall"

// endWithParent has the kernel shut a server down fast when the thread that forked
// it ends. The signal is set after the credential, which would clear it.
func endWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGINT }

// freeBytes returns what a user may still write under path, 0 if that is unknown.
func freeBytes(path string) uint64 {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		return 0
	}
	return stat.Bavail * uint64(stat.Bsize)
}
