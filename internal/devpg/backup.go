//go:build unix

package devpg

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Backup makes dir, which must be empty or not exist, a copy of the running server's
// files, which Start then runs as its standby: it follows the server by streaming
// replication, under the name given, until it is promoted. ctx bounds the copy.
func (s *Server) Backup(ctx context.Context, dir, name string) error {
	dir, err := prepareKept(dir)
	if err != nil {
		return fmt.Errorf("devpg: %w", err)
	}
	h := &home{dir: dir, data: filepath.Join(dir, "data"), found: s.home.found, account: s.home.account}
	if err := h.makeReachable(ctx); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(h.data, 0o700), os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600)); err != nil {
		return fmt.Errorf("devpg: %w", err)
	}
	if err := h.account.take(h.data); err != nil {
		return err
	}
	runtime.LockOSThread() // see Server.own
	defer runtime.UnlockOSThread()
	command := exec.CommandContext(ctx, filepath.Join(filepath.Dir(h.found.postgres), "pg_basebackup"),
		"--pgdata="+h.data, "--dbname=host="+s.home.run+" port="+socketPort+" user="+superuser+" application_name="+name,
		"--write-recovery-conf", "--checkpoint=fast", "--wal-method=stream", "--no-sync")
	command.Dir = h.data
	command.Env = environment()
	command.SysProcAttr = childAttributes(h.account)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("devpg: pg_basebackup: %w\n%s", errors.Join(err, ctx.Err()), bytes.TrimSpace(output))
	}
	return nil
}
