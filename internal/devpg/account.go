//go:build unix

package devpg

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// account is the user that a server runs as.
type account struct {
	own      bool // this process's own user; nothing to change
	name     string
	uid, gid uint32
}

// chooseAccount returns who the server runs as. PostgreSQL refuses root, so root
// runs it as the owner of the files in data, or for new files as user postgres or
// nobody.
func chooseAccount(data string) (account, error) {
	if os.Geteuid() != 0 {
		return account{own: true, name: strconv.Itoa(os.Geteuid())}, nil
	}
	info, err := os.Lstat(data)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return account{}, fmt.Errorf("devpg: %w", err)
	default:
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || stat.Uid == 0 {
			return account{}, fmt.Errorf("devpg: %s belongs to root; give it to the user that PostgreSQL shall run as", data)
		}
		return account{name: strconv.Itoa(int(stat.Uid)), uid: stat.Uid, gid: stat.Gid}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(found.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(found.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
		}
	}
	return account{}, errors.New("devpg: PostgreSQL does not run as root, and there is no user postgres or nobody; " +
		"create one or run this as another user")
}

// take makes the account the owner of path.
func (a account) take(path string) error {
	if a.own {
		return nil
	}
	if err := os.Chown(path, int(a.uid), int(a.gid)); err != nil {
		return fmt.Errorf("devpg: %w", err)
	}
	return nil
}

// childAttributes is how a child starts: in a group of its own, so that Ctrl-C in a
// terminal reaches us and we end it in order; as a, without our other groups; and
// ended by the kernel when we are killed, where the kernel can.
func childAttributes(a account) *syscall.SysProcAttr {
	attributes := &syscall.SysProcAttr{Setpgid: true}
	if !a.own {
		attributes.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	endWithParent(attributes)
	return attributes
}
