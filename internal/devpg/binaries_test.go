//go:build unix

package devpg

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindTakesTheFirstCompletePlace(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	place := func(name string, programs ...string) string {
		dir := filepath.Join(root, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, program := range programs {
			if err := os.WriteFile(filepath.Join(dir, program), nil, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	client := place("client", "psql", "initdb")
	full := place("full", "postgres", "initdb")
	later := place("later", "postgres", "initdb")
	got, err := find([]string{client, full, later})
	if err != nil {
		t.Fatal(err)
	}
	want := binaries{postgres: filepath.Join(full, "postgres"), initdb: filepath.Join(full, "initdb")}
	if got != want {
		t.Errorf("find = %+v, want %+v", got, want)
	}
}

func TestNewestVersionComesFirst(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, version := range []string{"9.6", "15", "17", "9"} {
		if err := os.MkdirAll(filepath.Join(root, "postgresql", version, "bin"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, path := range newestFirst(filepath.Join(root, "postgresql", "*", "bin")) {
		got = append(got, filepath.Base(filepath.Dir(path)))
	}
	if diff := cmp.Diff([]string{"17", "15"}, got[:2]); diff != "" {
		t.Errorf("newestFirst (-want +got):\n%s", diff)
	}
	for path, want := range map[string]int{
		"/usr/lib/postgresql/15/bin":              15,
		"/usr/pgsql-16/bin":                       16,
		"/usr/libexec/postgresql17":               17,
		"/opt/homebrew/opt/postgresql@14/bin":     14,
		"/usr/lib/postgresql/9.6/bin":             9,
		"/opt/homebrew/opt/postgresql/bin":        0,
		"/home/linuxbrew/.linuxbrew/opt/psql/bin": 0,
	} {
		if got := versionIn(path); got != want {
			t.Errorf("versionIn(%q) = %d, want %d", path, got, want)
		}
	}
}
