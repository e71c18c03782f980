package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/pgtest"
)

const applyFile = `
meters:
  api.calls: {unit: call}
plans:
  free:
    limits:
      - {name: hourly, meter: api.calls, algorithm: sliding_log, limit: 100, window: 1h}
  old: {limits: []}
tenants:
  acme: {plan: free}
  "big co": {plan: free}
`

func writeFile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "q.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestApplyPrintsWhatItChanges(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	changed := strings.NewReplacer("limit: 100", "limit: 200", "  old: {limits: []}\n", "",
		"acme: {plan: free}", "acme: {plan: free, timezone: Asia/Jakarta, billing_anchor: 9}").Replace(applyFile)
	for _, step := range []struct {
		name string
		file string
		args []string
		want string
	}{
		{"first", applyFile, nil, `
+ meter   api.calls
+ plan    free
+ plan    old
+ tenant  acme
+ tenant  "big co"
5 created; the configuration is at version 1
`},
		{"again", applyFile, nil, `
5 unchanged; the configuration is at version 1
`},
		{"dry run", changed, []string{"--dry-run", "--prune"}, `
~ plan    free  ~ hourly: limit 100 -> 200
- plan    old
~ tenant  acme  billing_anchor 1 -> 9
                timezone UTC -> Asia/Jakarta
2 changed, 1 removed, 2 unchanged; this was a dry run: nothing was changed

tenant    limit   before      after
acme      hourly  100 of 100  200 of 200
"big co"  hourly  100 of 100  200 of 200

the change is about 2 tenants: 2 would see a difference, 0 would be denied a call of cost 1, or a hold, that passes now
`},
		{"changed", changed, nil, `
~ plan    free  ~ hourly: limit 100 -> 200
~ tenant  acme  billing_anchor 1 -> 9
                timezone UTC -> Asia/Jakarta
2 changed, 2 unchanged; the configuration is at version 2
`},
		{"prune", changed, []string{"--prune"}, `
- plan  old
1 removed, 4 unchanged; the configuration is at version 3
`},
		{"default plan", changed + "default_plan: free\n", nil, `
~ settings  global  default_plan none -> free
1 changed, 4 unchanged; the configuration is at version 4
`},
		{"default plan left out", changed, nil, `
4 unchanged; the configuration is at version 4
`},
		{"default plan pruned", changed, []string{"--prune"}, `
~ settings  global  default_plan free -> none
1 changed, 4 unchanged; the configuration is at version 5
`},
	} {
		args := append([]string{"apply", "--database-url", db.URL, "-f", writeFile(t, step.file)}, step.args...)
		code, stdout, stderr := command(t, args...)
		if diff := cmp.Diff(strings.TrimPrefix(step.want, "\n"), stdout); diff != "" || code != 0 || stderr != "" {
			t.Errorf("%s: apply exits with %d, says %q on stderr and on stdout (-want +got):\n%s", step.name, code, stderr, diff)
		}
	}
	code, stdout, _ := command(t, "apply", "--json", "--database-url", db.URL, "-f", writeFile(t, changed))
	var changes catalog.Changes
	if err := json.Unmarshal([]byte(stdout), &changes); err != nil || code != 0 || changes.Version != 5 || len(changes.Items) != 4 {
		t.Errorf("apply --json exits with %d and says %q, %v; want 4 items at version 5", code, stdout, err)
	}
}

func TestApplyPrintsEveryFaultWithItsLineAndChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, tt := range []struct {
		text string
		want []string
	}{
		{
			"meters:\n  m: {unit: call, wieghts: {a: 1}}\nplans:\n  p:\n    limits:\n      - {name: l, meter: m, algorithm: gcra, rate: 5}\n",
			[]string{
				":2:19: meters.m.wieghts: is not a field here: unit, weights, on_expiry are",
				":6:9: plans.p.limits[0].burst: is required by gcra",
				":6:46: plans.p.limits[0].rate: must be units per duration such as 2/1s or 100/15m, from 0 to 999999999999999 units per 1us to 87660h",
			},
		},
		{"tenants:\n  acme: {plan: nothing}\n", []string{":2:10: tenants.acme.plan: must name a plan: there is no nothing"}},
		{"meters: [\n", []string{":1:9: cannot be read as YAML: sequence end token ']' not found"}},
	} {
		file := writeFile(t, tt.text)
		code, stdout, stderr := command(t, "apply", "--database-url", db.URL, "-f", file)
		var want strings.Builder
		for _, line := range tt.want {
			want.WriteString(file + line + "\n")
		}
		want.WriteString("quotad: nothing was changed\n")
		if diff := cmp.Diff(want.String(), stderr); diff != "" || code != 1 || stdout != "" {
			t.Errorf("apply exits with %d, says %q on stdout and on stderr (-want +got):\n%s", code, stdout, diff)
		}
	}
	if code, _, stderr := command(t, "apply", "--database-url", db.URL, "-f", "/nowhere/q.yaml"); code != 1 || !strings.Contains(stderr, "/nowhere/q.yaml") {
		t.Errorf("apply of no file exits with %d and says %q", code, stderr)
	}
}

func TestApplyReadsStandardInput(t *testing.T) {
	t.Parallel()
	config, err := readConfigFile("-", strings.NewReader(applyFile))
	if err != nil || len(config.Plans) != 2 {
		t.Errorf("readConfigFile = %+v, %v", config, err)
	}
	if _, err := readConfigFile("-", strings.NewReader("a: b")); err == nil || !strings.HasPrefix(err.Error(), "stdin:1:1: a: ") {
		t.Errorf("readConfigFile = %v, want a fault in stdin", err)
	}
	huge := strings.NewReader(strings.Repeat("#", 2*catalog.FileBytesMax))
	_, err = readConfigFile("-", huge)
	if want := "stdin: must be at most 1048576 bytes long"; err == nil || err.Error() != want || huge.Len() == 0 {
		t.Errorf("readConfigFile = %v and left %d bytes, want it to stop reading and say %q", err, huge.Len(), want)
	}
}
