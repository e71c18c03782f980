package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A report is what is printed.
type report struct {
	Settings settings `json:"settings"`
	Subjects []line   `json:"subjects"`
}

// settings is where and how it was measured.
type settings struct {
	Cores       int               `json:"cores"`
	Platform    string            `json:"platform"`
	Go          string            `json:"go"`
	LoadAverage string            `json:"load_average"` // of the minute before; "" if unknown
	PostgreSQL  string            `json:"postgresql"`
	Parameters  map[string]string `json:"parameters"` // of the server
	Rounds      int               `json:"rounds"`
	WarmMS      int64             `json:"warm_ms"`
	TimeMS      int64             `json:"time_ms"`
	Tenants     int               `json:"tenants"`
}

// A line is a subject's medians, and what it is compared with.
type line struct {
	Name      string  `json:"name"`
	PerSecond float64 `json:"per_second"`
	P50MS     float64 `json:"p50_ms"`
	P99MS     float64 `json:"p99_ms"`
	CPU       cpuLine `json:"cpu_us"`
	// Written is what the database wrote, where the subject has anything written.
	Written *writtenLine `json:"written_bytes,omitempty"`
	// LateMS is how late one request in a hundred was sent, where they are sent at a pace.
	LateMS   float64    `json:"late_p99_ms,omitempty"`
	Compared []compared `json:"compared,omitempty"`
}

// cpuLine is processor time for each decision; 0 where the system does not tell it, and
// where a subject has no such process.
type cpuLine struct {
	Service  float64 `json:"service"`
	Database float64 `json:"database"`
	Client   float64 `json:"client"`
}

func newCPULine(runs []measurement) cpuLine {
	each := func(of func(cpuTimes) time.Duration) float64 {
		return median(runs, func(m measurement) float64 { return m.cpuMicros(of(m.CPU)) })
	}
	return cpuLine{
		Service:  each(func(c cpuTimes) time.Duration { return c.Service }),
		Database: each(func(c cpuTimes) time.Duration { return c.Database }),
		Client:   each(func(c cpuTimes) time.Duration { return c.Client }),
	}
}

// writtenLine is bytes for each decision.
type writtenLine struct {
	WAL    float64  `json:"wal"`
	Images *float64 `json:"wal_page_images"` // of WAL; null where the server cannot tell
	Growth float64  `json:"growth"`          // of tables and indexes
}

func newWrittenLine(runs []measurement) *writtenLine {
	if len(runs) == 0 || runs[0].Total.Allowed == 0 || runs[0].Written.WAL == 0 {
		return nil
	}
	each := func(of func(written) int64) float64 {
		return median(runs, func(m measurement) float64 { return float64(of(m.Written)) / float64(m.Total.Allowed) })
	}
	l := writtenLine{
		WAL:    each(func(w written) int64 { return w.WAL }),
		Growth: each(func(w written) int64 { return w.Growth }),
	}
	if !slices.ContainsFunc(runs, func(m measurement) bool { return m.Written.Images == nil }) {
		images := each(func(w written) int64 { return *w.Images })
		l.Images = &images
	}
	return &l
}

// compared is the figures of what a subject is compared with, and the ratio: the median
// over the rounds, the lowest and the highest.
type compared struct {
	line
	Ratio   float64 `json:"ratio"`
	Lowest  float64 `json:"ratio_lowest"`
	Highest float64 `json:"ratio_highest"`
	Target  float64 `json:"target,omitempty"` // 0: none
	AtMost  bool    `json:"target_is_upper_bound,omitempty"`
	Met     *bool   `json:"met,omitempty"`
}

// parameters are those of the server that decide what a commit costs.
func parameters() []string {
	return []string{"checkpoint_timeout", "fsync", "synchronous_commit", "full_page_writes", "wal_sync_method", "shared_buffers", "max_wal_size", "autovacuum"}
}

func (w *world) settings(ctx context.Context, c *runCmd, load string) (settings, error) {
	s := settings{
		Cores: runtime.NumCPU(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), LoadAverage: load,
		Parameters: map[string]string{}, Rounds: c.Rounds, WarmMS: c.Warm.Milliseconds(), TimeMS: c.Time.Milliseconds(),
		Tenants: c.Tenants,
	}
	rows, err := w.quotad.admin.Query(ctx, settingsSQL, append(parameters(), "server_version"))
	if err != nil {
		return s, err
	}
	defer rows.Close()
	for rows.Next() {
		var name, value string
		if err := rows.Scan(&name, &value); err != nil {
			return s, err
		}
		s.Parameters[name] = value
	}
	s.PostgreSQL = s.Parameters["server_version"]
	delete(s.Parameters, "server_version")
	return s, rows.Err()
}

// lines are all subjects that something is said about, in the order they are measured;
// what is there only to be compared with stands below the others.
func (s *suite) lines() (lines []line) {
	for _, one := range s.subjects() {
		l := newLine(one)
		below := false
		for _, c := range s.comparisons {
			below = below || c.with == one
			if c.of == one {
				l.Compared = append(l.Compared, c.result())
			}
		}
		if !below || len(l.Compared) > 0 {
			lines = append(lines, l)
		}
	}
	return lines
}

func newLine(one *subject) line {
	return line{
		Name:      one.name,
		PerSecond: median(one.runs, func(m measurement) float64 { return m.PerSecond }),
		P50MS:     median(one.runs, func(m measurement) float64 { return inMS(m.P50) }),
		P99MS:     median(one.runs, func(m measurement) float64 { return inMS(m.P99) }),
		LateMS:    median(one.runs, func(m measurement) float64 { return inMS(m.LateP99) }),
		CPU:       newCPULine(one.runs),
		Written:   newWrittenLine(one.runs),
	}
}

// result compares round by round: what slows the machine for a while slows both.
func (c comparison) result() compared {
	ratios := make([]float64, len(c.of.runs))
	for i := range ratios {
		ratios[i] = c.ratio(c.of.runs[i], c.with.runs[i])
	}
	r := compared{
		line: newLine(c.with), Ratio: middle(ratios),
		Lowest: slices.Min(ratios), Highest: slices.Max(ratios), Target: c.target, AtMost: c.atMost,
	}
	if c.target > 0 {
		met := r.Ratio >= c.target
		if c.atMost {
			met = r.Ratio <= c.target
		}
		r.Met = &met
	}
	return r
}

// print writes the table.
func (r report) print(to io.Writer) error {
	s := r.Settings
	load := ""
	if s.LoadAverage != "" {
		load = ", load average " + s.LoadAverage + " before"
	}
	fmt.Fprintf(to, "%d cores, %s, %s%s\n", s.Cores, s.Platform, s.Go, load)
	var values []string
	for _, name := range parameters() {
		values = append(values, name+" "+s.Parameters[name])
	}
	fmt.Fprintf(to, "PostgreSQL %s on a disk: %s\n", s.PostgreSQL, strings.Join(values, ", "))
	fmt.Fprintf(to, "medians of %d rounds of %d ms after %d ms; a ratio is of the line above that is not indented to its own\n"+
		"line: the median over the rounds (lowest to highest); processor time is in µs for each decision\n\n", s.Rounds, s.TimeMS, s.WarmMS)
	if err := r.table().print(to); err != nil {
		return err
	}
	writes := r.writes()
	if len(writes) == 1 {
		return nil
	}
	fmt.Fprintf(to, "\nbytes that the database wrote for each decision\n\n")
	return writes.print(to)
}

// writes is the table of what was written.
func (r report) writes() table {
	t := table{{"", "log", "of it page images", "tables and indexes"}}
	for _, l := range r.Subjects {
		if l.Written == nil {
			continue
		}
		images := "?"
		if l.Written.Images != nil {
			images = grouped(*l.Written.Images)
		}
		t = append(t, []string{l.Name, grouped(l.Written.WAL), images, grouped(l.Written.Growth)})
	}
	return t
}

func (r report) table() table {
	t := table{{"", "a second", "p50 ms", "p99 ms", "service", "database", "client", "ratio", "", "target"}}
	for _, l := range r.Subjects {
		t = append(t, append(l.cells(""), "", "", ""))
		for _, c := range l.Compared {
			t = append(t, append(c.cells("  "), fixed(c.Ratio, 2),
				fmt.Sprintf("(%s to %s)", fixed(c.Lowest, 2), fixed(c.Highest, 2)), c.verdict()))
		}
	}
	return t
}

func (l line) cells(indent string) []string {
	return []string{
		indent + l.Name, grouped(l.PerSecond), fixed(l.P50MS, 2), fixed(l.P99MS, 2),
		orNone(l.CPU.Service), orNone(l.CPU.Database), orNone(l.CPU.Client),
	}
}

// orNone is a processor time, "" for none.
func orNone(micros float64) string {
	if micros == 0 {
		return ""
	}
	return fixed(micros, 0)
}

// verdict is the target and whether it is met.
func (c compared) verdict() string {
	if c.Met == nil {
		return ""
	}
	bound, verdict := "at least", "not met"
	if c.AtMost {
		bound = "at most"
	}
	if *c.Met {
		verdict = "met"
	}
	return fmt.Sprintf("%s %s: %s", bound, strconv.FormatFloat(c.Target, 'f', -1, 64), verdict)
}

// A table is rows of cells, all of one length.
type table [][]string

// numbersFrom and numbersUntil are the columns that are aligned to the right.
const numbersFrom, numbersUntil = 1, 8

func (t table) print(to io.Writer) error {
	widths := make([]int, len(t[0]))
	for _, row := range t {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	for _, row := range t {
		var b strings.Builder
		for i, cell := range row {
			space := strings.Repeat(" ", widths[i]-len(cell))
			if i >= numbersFrom && i < numbersUntil {
				cell = space + cell
			} else {
				cell += space
			}
			b.WriteString(cell + "  ")
		}
		if _, err := fmt.Fprintln(to, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func fixed(v float64, decimals int) string { return strconv.FormatFloat(v, 'f', decimals, 64) }

// grouped writes a number without decimals and with commas between thousands.
func grouped(v float64) string {
	text := fixed(v, 0)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func median(runs []measurement, of func(measurement) float64) float64 {
	values := make([]float64, len(runs))
	for i, m := range runs {
		values[i] = of(m)
	}
	return middle(values)
}

// middle is the median, between the two middle ones of an even number; 0 without any.
func middle(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// loadAverage is how busy the machine was in the last minute, "" where it does not say.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(text), " ")
	return first
}
