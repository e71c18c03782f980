package tidy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/quotad/quotad"

// mayImport is the direction of the arrows: what each package may import of ours,
// tests apart. A package that is not here must be added, which is the moment to think
// about where it stands.
var mayImport = map[string][]string{
	"internal/api":      {"internal/identity", "internal/billing", "internal/quota", "internal/ledger", "internal/calendar", "internal/catalog", "internal/cache"},
	"internal/console":  {"internal/billing", "internal/quota", "internal/ledger", "internal/calendar", "internal/catalog", "internal/cache"},
	"internal/billing":  {"internal/ledger", "internal/calendar", "internal/catalog", "internal/pg", "internal/cache"},
	"internal/quota":    {"internal/ledger", "internal/calendar", "internal/catalog", "internal/pg", "internal/cache", "internal/spool"},
	"internal/ledger":   {"internal/pg", "internal/cache"},
	"internal/calendar": {},
	"internal/catalog":  {"internal/calendar", "internal/pg", "internal/cache"},
	"internal/pg":       {},
	"internal/cache":    {},
	"internal/identity": {},
	"internal/spool":    {},
	"internal/devpg":    {},
	"internal/pgtest":   {"internal/devpg", "migrations"},
	"internal/bench":    {"internal/quota", "internal/ledger", "internal/catalog", "internal/pg", "internal/devpg", "internal/loadgen"},
	"internal/loadgen":  {},
	"internal/sim":      {}, // it checks the others, so it shares nothing with them
	"internal/mutants":  {},
	"internal/tidy":     {},
	"migrations":        {},
}

// libraryOf names the packages that may import a library, tests apart, so that SQL
// and HTTP stay where they belong.
var libraryOf = map[string][]string{
	"github.com/jackc/pgx": {
		"cmd/quotad", "internal/billing", "internal/quota", "internal/ledger", "internal/catalog",
		"internal/pg", "internal/devpg", "internal/pgtest", "internal/sim", "internal/bench", "migrations",
	},
	"database/sql":             {"migrations"},
	"github.com/pressly/goose": {"migrations"},
	"net/http":                 {"cmd/quotad", "internal/api", "internal/console", "internal/sim", "internal/bench", "internal/loadgen"},
	"testing":                  {"internal/pgtest"},
}

// listed is what `go list` says of a package.
type listed struct {
	ImportPath string
	Imports    []string
}

func list(t *testing.T) (packages []listed) {
	t.Helper()
	var stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), "go", "list", "-e", "-json=ImportPath,Imports", "./...")
	command.Dir = root
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.Bytes())
	}
	decoder := json.NewDecoder(bytes.NewReader(output))
	for {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages = append(packages, p)
	}
}

func TestImportsOnlyPointDown(t *testing.T) {
	t.Parallel()
	packages := list(t)
	if len(packages) == 0 {
		t.Fatal("go list named no packages")
	}
	for _, p := range packages {
		for _, breach := range importBreaches(p) {
			t.Error(breach)
		}
	}
}

// importBreaches says what a package imports and may not.
func importBreaches(p listed) (breaches []string) {
	name := strings.TrimPrefix(p.ImportPath, module+"/")
	allowed, known := mayImport[name]
	everything := strings.HasPrefix(name, "cmd/")
	if !known && !everything {
		return []string{name + " is not in the table of imports: add it to mayImport"}
	}
	for _, imported := range p.Imports {
		ours, isOurs := strings.CutPrefix(imported, module+"/")
		if isOurs && !everything && !slices.Contains(allowed, ours) {
			breaches = append(breaches, name+" imports "+ours+": arrows only point down, see mayImport")
		}
		if isOurs && slices.Contains([]string{"internal/pgtest", "internal/sim"}, ours) {
			breaches = append(breaches, name+" imports "+ours+" outside its tests")
		}
		for library, users := range libraryOf {
			if (imported == library || strings.HasPrefix(imported, library+"/")) && !slices.Contains(users, name) {
				breaches = append(breaches, name+" imports "+imported+": only "+strings.Join(users, ", ")+" may")
			}
		}
	}
	return breaches
}

func TestBreachesOfImportsAreSeen(t *testing.T) {
	t.Parallel()
	for _, p := range []listed{
		{module + "/internal/quota", []string{module + "/internal/billing"}},
		{module + "/internal/billing", []string{module + "/internal/quota"}},
		{module + "/internal/api", []string{module + "/internal/pg"}},
		{module + "/internal/console", []string{"github.com/jackc/pgx/v5/pgxpool"}},
		{module + "/internal/ledger", []string{"database/sql"}},
		{module + "/internal/quota", []string{"net/http/httptest"}},
		{module + "/internal/unheard", nil},
		{module + "/cmd/quotad", []string{module + "/internal/pgtest"}},
		{module + "/cmd/quotad", []string{module + "/internal/sim"}},
		{module + "/internal/sim", []string{module + "/internal/quota"}},
	} {
		if got := importBreaches(p); len(got) != 1 {
			t.Errorf("importBreaches(%+v) = %q, want one", p, got)
		}
	}
	fine := listed{module + "/cmd/quotad", []string{module + "/internal/api", "github.com/jackc/pgx/v5"}}
	if got := importBreaches(fine); got != nil {
		t.Errorf("importBreaches(%+v) = %q, want none", fine, got)
	}
}
