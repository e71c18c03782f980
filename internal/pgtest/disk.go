//go:build unix

package pgtest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quotad/quotad/internal/devpg"
)

// A Disk is a small file system that a server keeps its log or a database on, and that a
// test fills. It is in memory, and in a mount namespace of its own: nobody else sees it,
// and it goes with the test however that ends. It needs the right to mount, or a kernel
// that gives it to ordinary users in a user namespace.
type Disk struct {
	path string
}

// What mounts the file system at $1, of $2 bytes, and then holds the namespace
// until the test closes its input or ends, as the user $3 of the group $4: who may look
// into a namespace by /proc is who may trace its processes.
const (
	mountByRoot = `mount -t tmpfs -o size="$2",mode=1777 quotad "$1" && exec setpriv --reuid "$3" --regid "$4" --clear-groups sh -c 'echo mounted; exec cat'`
	mountByUser = `mount -t tmpfs -o size="$2",mode=1777 quotad "$1" && echo mounted && exec cat`
)

// NewDisk makes a file system of that many bytes for the processes of a server. It is gone
// when the test ends, after the server.
func NewDisk(t testing.TB, server *devpg.Server, bytes int64) *Disk {
	t.Helper()
	var owner syscall.Stat_t
	if err := syscall.Stat(filepath.Join(server.Dir(), "data"), &owner); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	at := Dir(t)
	arguments := []string{"--mount", "sh", "-c", mountByRoot}
	if os.Geteuid() != 0 {
		arguments = []string{"--user", "--map-root-user", "--mount", "sh", "-c", mountByUser}
	}
	arguments = append(arguments, "sh", at, strconv.FormatInt(bytes, 10), strconv.Itoa(int(owner.Uid)), strconv.Itoa(int(owner.Gid)))
	holder := exec.Command("unshare", arguments...)
	var said strings.Builder
	holder.Stderr = &said
	in, inErr := holder.StdinPipe()
	out, outErr := holder.StdoutPipe()
	if err := errors.Join(inErr, outErr, holder.Start()); err != nil {
		t.Fatalf("pgtest: a small disk: %v", err)
	}
	t.Cleanup(func() {
		_ = server.Stop()
		in.Close()
		_ = holder.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "mounted\n" {
		_, _ = io.Copy(io.Discard, out)
		_ = holder.Wait()
		t.Fatalf("pgtest: a small disk needs the right to mount (CAP_SYS_ADMIN) or user namespaces for ordinary users: %v: %s", err, said.String())
	}
	return &Disk{path: fmt.Sprintf("/proc/%d/root%s", holder.Process.Pid, at)}
}

// TakeLog moves the write-ahead log of a server that does not run onto the disk.
func (d *Disk) TakeLog(t testing.TB, server *devpg.Server) {
	t.Helper()
	from, to := filepath.Join(server.Dir(), "data", "pg_wal"), filepath.Join(d.path, "pg_wal")
	move := exec.CommandContext(t.Context(), "mv", from, to)
	if output, err := move.CombinedOutput(); err != nil {
		t.Fatalf("pgtest: mv %s %s: %v: %s", from, to, err, output)
	}
	if err := os.Symlink(to, from); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

// Take moves the files of a database that nobody uses onto the disk.
func (d *Disk) Take(t testing.TB, db *DB, server *devpg.Server) {
	t.Helper()
	place := filepath.Join(d.path, "tables")
	if err := os.Mkdir(place, 0o700); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	var owner syscall.Stat_t
	if err := syscall.Stat(filepath.Join(server.Dir(), "data"), &owner); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	if err := os.Chown(place, int(owner.Uid), int(owner.Gid)); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	db.Owner(t).Reset()
	execOn(t, server.URL("postgres"), "create tablespace small location '"+place+"'")
	execOn(t, server.URL("postgres"), "alter database "+db.Name+" set tablespace small")
}

// fillBytes is written at once; what is less than that stays free.
const fillBytes = 8 << 10

// Fill takes all the space that is left, but for what is less than one page.
func (d *Disk) Fill(t testing.TB) {
	t.Helper()
	file, err := os.OpenFile(d.filler(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	defer file.Close()
	for page := make([]byte, fillBytes); err == nil; {
		_, err = file.Write(page)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("pgtest: fill a disk: %v", err)
	}
}

// Free gives the space back that Fill has taken.
func (d *Disk) Free(t testing.TB) {
	t.Helper()
	if err := os.Remove(d.filler()); err != nil {
		t.Fatalf("pgtest: %v", err)
	}
}

func (d *Disk) filler() string { return filepath.Join(d.path, "filler") }
