package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/pgtest"
)

// The processes that the benchmark starts of itself are this test binary.
func TestMain(m *testing.M) {
	if os.Getenv(asChildEnv) != "" {
		main()
		return
	}
	pgtest.Main(m)
}

// It measures nothing worth reading, but goes all the way: every subject, every check of
// a ledger, quotad verify over what the transactions wrote and over entries that were
// written without deciding, and the report.
func TestTheBenchmarkRunsToItsEnd(t *testing.T) {
	t.Parallel()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	said, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	code := run(t.Context(), []string{
		"--full", "--entries=2000", "--idle=500",
		"--rounds=1", "--time=50ms", "--warm=10ms", "--tenants=20", "--connections=2,3", "--callers=2", "--verify", "--json",
	}, streams{strings.NewReader(""), out, said})
	if code != 0 {
		text, _ := os.ReadFile(said.Name())
		t.Fatalf("exit code %d:\n%s", code, text)
	}
	text, err := os.ReadFile(out.Name())
	if err != nil {
		t.Fatal(err)
	}
	var got report
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if got.Settings.Parameters["fsync"] != "on" || got.Settings.Parameters["synchronous_commit"] != "on" {
		t.Errorf("settings = %+v, want commits that wait for the disk", got.Settings)
	}
	var targets []float64
	var processor float64
	for _, l := range got.Subjects {
		processor += l.CPU.Service + l.CPU.Database + l.CPU.Client
		if l.PerSecond <= 0 || l.P50MS <= 0 || l.P99MS < l.P50MS {
			t.Errorf("%s: %+v, want figures", l.Name, l)
		}
		for _, c := range l.Compared {
			if c.Ratio <= 0 || c.Lowest > c.Ratio || c.Ratio > c.Highest || (c.Met != nil) != (c.Target > 0) {
				t.Errorf("%s beside %s: %+v, want a ratio", l.Name, c.Name, c)
			}
			if c.Target > 0 {
				targets = append(targets, c.Target)
			}
		}
	}
	if runtime.GOOS == "linux" && processor <= 0 { // of one subject it may be less than can be told
		t.Error("no processor time is told")
	}
	slices.Sort(targets)
	if diff := cmp.Diff([]float64{0.33, 0.40, 0.50, 0.60, 0.70, 0.85, 0.90, 1.9, 3, 6, 8, 18}, targets); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}

// Whoever works on one thing measures that alone, beside what it is compared with.
func TestOnlyWhatWasAskedForIsMeasured(t *testing.T) {
	t.Parallel()
	command := runCmd{Tenants: 20, Connections: []int{64, 256}, Callers: []int{64, 512}}
	for only, want := range map[string][]string{
		"http.*64|chi.*64": {"quotad over HTTP, 20 tenants, 64 connections", "chi, decode and encode only, 64 connections", "quotad over HTTP, one hot tenant, 64 connections", "quotad over HTTP, an exhausted tenant, 64 connections"},
		"bare commit":      {"a bare commit of one row, one caller"},
		"half of its peak": {
			"quotad over HTTP, 20 tenants, 64 connections", "quotad over HTTP, 20 tenants, 256 connections", "quotad over HTTP, 20 tenants, half of its peak, 256 connections",
		},
	} {
		s := newSuite(&command)
		if err := s.keep(regexp.MustCompile("(?i)" + only)); err != nil {
			t.Errorf("%s: %v", only, err)
			continue
		}
		var got []string
		for _, one := range s.subjects() {
			got = append(got, one.name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: subjects (-want +got):\n%s", only, diff)
		}
		for _, c := range s.comparisons {
			if !slices.Contains(got, c.of.name) || !slices.Contains(got, c.with.name) {
				t.Errorf("%s: %q is compared with %q, and one of them is not measured", only, c.of.name, c.with.name)
			}
		}
	}
}

func TestTheTableIsAligned(t *testing.T) {
	t.Parallel()
	met := false
	var b strings.Builder
	err := report{
		Settings: settings{Cores: 2, Platform: "linux/amd64", Go: "go1", PostgreSQL: "15", Parameters: map[string]string{"fsync": "on"}, Rounds: 3},
		Subjects: []line{
			{Name: "quotad", PerSecond: 12345.6, P50MS: 1.234, P99MS: 10, CPU: cpuLine{Service: 189.4, Database: 1234}, Compared: []compared{
				{line: line{Name: "chi", PerSecond: 999}, Ratio: 12.3576, Lowest: 1, Highest: 20, Target: 0.5, AtMost: true, Met: &met},
				{line: line{Name: "SQL"}, Ratio: 1},
			}},
		},
	}.print(&b)
	if err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "\n\n")
	want := "" +
		"        a second  p50 ms  p99 ms  service  database  client  ratio                   target\n" +
		"quotad    12,346    1.23   10.00      189      1234\n" +
		"  chi        999    0.00    0.00                             12.36  (1.00 to 20.00)  at most 0.5: not met\n" +
		"  SQL          0    0.00    0.00                              1.00  (0.00 to 0.00)\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestPlainAnswersLikeQuotad(t *testing.T) {
	t.Parallel()
	real := `{"allowed":true,"tenant":"acme","request_id":"x","decided_at":"2026-01-02T03:04:05.678901Z",` +
		`"charges":[{"meter":"m","cost":1}],"remaining":9,"limits":[{"name":"hourly","meter":"m","unit":"u","algorithm":"sliding_log",` +
		`"scope":"tenant","mode":"enforce","limit":10,"used":1,"held":0,"remaining":9,"reset_after_ms":1,"reset_at":"2026-01-02T03:04:05.679901Z"}],` +
		`"receipt":{"first_seq":1,"seq":1,"hash":"00"}}`
	if _, err := plainHandler(plainSpec{Body: []byte(real)}); err != nil {
		t.Error(err)
	}
	for name, grown := range map[string]string{
		"a new member":       strings.Replace(real, `"receipt"`, `"new":1,"receipt"`, 1),
		"a missing member":   strings.Replace(real, `"remaining":9,"limits"`, `"limits"`, 1),
		"not one any longer": "null",
	} {
		if _, err := plainHandler(plainSpec{Body: []byte(grown)}); err == nil {
			t.Errorf("%s: taken for an answer of quotad", name)
		}
	}
}

func TestDirectoriesInMemoryAreRefused(t *testing.T) {
	t.Parallel()
	const memory = "/dev/shm"
	if in, err := inMemory(memory); err != nil || !in {
		t.Logf("%s is no file system in memory here: %v", memory, err)
		return
	}
	if dir, err := makeDir(memory); err == nil {
		os.RemoveAll(dir)
		t.Error("no error")
	}
}

func TestFlagsOutOfBoundsAreRefused(t *testing.T) {
	t.Parallel()
	said, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	for _, flag := range []string{
		"--rounds=-1", "--time=-1s", "--time=2m", "--tenants=0", "--tenants=10001", "--connections=64", "--connections=1,2,3",
		"--connections=0,1", "--callers=5000", "--only=nothing of the kind", "--only=(",
	} {
		if code := run(t.Context(), []string{flag}, streams{strings.NewReader(""), io.Discard, said}); code == 0 {
			t.Errorf("%s: exit code %d, want another", flag, code)
		}
	}
}

// The better of two rounds is not what is usual.
func TestTheMiddleOfTwoRoundsIsBetweenThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{7}, 7}, {[]float64{8, 4}, 6}, {[]float64{9, 1, 2}, 2}, {[]float64{4, 1, 9, 2}, 3}} {
		if got := middle(c.values); got != c.want {
			t.Errorf("middle(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}
