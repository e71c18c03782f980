//go:build unix

package devpg

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// binaries are the two programs a server needs, from one installation.
type binaries struct {
	postgres string
	initdb   string
}

// find returns the binaries of the first place that has both.
func find(places []string) (binaries, error) {
	for _, place := range places {
		b := binaries{postgres: filepath.Join(place, "postgres"), initdb: filepath.Join(place, "initdb")}
		if executable(b.postgres) && executable(b.initdb) {
			return b, nil
		}
	}
	return binaries{}, ErrNoBinaries
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// searchPath lists where binaries may be, best first: what PATH and pg_config name
// is the user's choice, then the usual places of packages, newest version first.
func searchPath(ctx context.Context) []string {
	var places []string
	for _, program := range []string{"postgres", "initdb"} {
		path, err := exec.LookPath(program)
		if err != nil {
			continue
		}
		// A link in PATH leads to the directory where the others are.
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}
		places = append(places, filepath.Dir(path))
	}
	if output, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		places = append(places, strings.TrimSpace(string(output)))
	}
	places = append(places, newestFirst("/usr/lib/postgresql/*/bin")...) // Debian
	places = append(places, newestFirst("/usr/pgsql-*/bin")...)          // PGDG on Red Hat
	places = append(places, newestFirst("/usr/libexec/postgresql*")...)  // Alpine
	places = append(places, "/usr/bin", "/usr/local/bin", "/usr/local/pgsql/bin")
	for _, brew := range []string{"/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew"} {
		places = append(places, newestFirst(brew+"/opt/postgresql@*/bin")...)
		places = append(places, brew+"/opt/postgresql/bin")
	}
	return append(places, newestFirst("/Applications/Postgres.app/Contents/Versions/*/bin")...)
}

// newestFirst expands a pattern and orders the paths by the number in them.
func newestFirst(pattern string) []string {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil // only a malformed pattern, and they are all above
	}
	slices.SortFunc(paths, func(a, b string) int { return versionIn(b) - versionIn(a) })
	return paths
}

// versionIn returns the major version in a path such as /usr/lib/postgresql/15/bin,
// 0 if there is none.
func versionIn(path string) int {
	version := 0
	for _, element := range strings.Split(path, string(filepath.Separator)) {
		digits := strings.TrimLeft(element, "abcdefghijklmnopqrstuvwxyz@-")
		digits, _, _ = strings.Cut(digits, ".")
		if n, err := strconv.Atoi(digits); err == nil {
			version = n
		}
	}
	return version
}
