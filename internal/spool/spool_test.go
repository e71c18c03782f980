package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const roomy = 1 << 20

func open(t *testing.T, dir string, bytesMax int64) *Spool {
	t.Helper()
	s, err := Open(dir, bytesMax)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustAppend(t *testing.T, s *Spool, records ...string) {
	t.Helper()
	for _, record := range records {
		if err := s.Append([]byte(record)); err != nil {
			t.Fatalf("Append(%q): %v", record, err)
		}
	}
}

// drain takes everything over.
func drain(t *testing.T, s *Spool) (records []string) {
	t.Helper()
	for {
		b, err := s.Oldest()
		if err != nil {
			t.Fatal(err)
		}
		if b == nil {
			return records
		}
		for _, record := range b.Records {
			records = append(records, string(record))
		}
		if err := s.Remove(b); err != nil {
			t.Fatal(err)
		}
	}
}

// files lists the files with a suffix.
func files(t *testing.T, dir, suffix string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestRecordsSurviveTheirProcessInOrder(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	first := open(t, dir, roomy)
	mustAppend(t, first, "a", "b")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := open(t, dir, roomy)
	mustAppend(t, second, "c")
	if n := second.Pending(); n != 3 {
		t.Errorf("Pending = %d, want 3", n)
	}
	var each []string
	if err := second.Each(func(record []byte) { each = append(each, string(record)) }); err != nil {
		t.Fatal(err)
	}
	want := []string{"a", "b", "c"}
	if diff := cmp.Diff(want, each); diff != "" {
		t.Errorf("Each (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want, drain(t, second)); diff != "" {
		t.Errorf("Oldest (-want +got):\n%s", diff)
	}
	if n := second.Pending(); n != 0 || len(files(t, dir, suffix)) != 0 {
		t.Errorf("Pending = %d and %v is left, want nothing", n, files(t, dir, suffix))
	}
}

// Between taking records over and removing their file a process may die: the records come
// again, and those appended meanwhile are not lost with the file.
func TestAFileIsRemovedWholeAndTakesNoLaterRecordsWithIt(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, roomy)
	mustAppend(t, s, "a")
	taken, err := s.Oldest()
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, s, "b")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, roomy)
	again, err := s.Oldest()
	if err != nil || len(again.Records) != 1 || !bytes.Equal(again.Records[0], taken.Records[0]) {
		t.Fatalf("Oldest after a crash = %+v, %v; want a again", again, err)
	}
	if err := s.Remove(again); err != nil {
		t.Fatal(err)
	}
	if got := drain(t, s); !slices.Equal(got, []string{"b"}) {
		t.Errorf("then %q is kept, want b", got)
	}
}

// A write that a crash cut short was acknowledged to nobody.
func TestATornLastRecordIsDropped(t *testing.T) {
	t.Parallel()
	whole := appendLine(appendLine(nil, []byte("a")), []byte("torn"))
	first := len(appendLine(nil, []byte("a")))
	for cut := first; cut < len(whole); cut++ {
		records, damaged := parse(whole[:cut])
		if len(records) != 1 || string(records[0]) != "a" || damaged != 0 {
			t.Errorf("cut at %d of %d: %q, %d damaged; want a alone", cut, len(whole), records, damaged)
		}
	}
	garbled := slices.Clone(whole)
	garbled[len(garbled)-2] ^= 1
	if records, damaged := parse(garbled); len(records) != 1 || damaged != 0 {
		t.Errorf("with a garbled end: %q, %d damaged; want a alone", records, damaged)
	}
}

// What was on disk once and cannot be read any more must not vanish with its file.
func TestADamagedFileIsKeptBeside(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, roomy)
	mustAppend(t, s, "a", "b", "c")
	path := files(t, dir, suffix)[0]
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text[lineBytes([]byte("a"))+checksumBytes] ^= 1
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := s.Oldest()
	if err != nil || len(b.Records) != 2 || b.Damaged != 1 {
		t.Fatalf("Oldest = %+v, %v; want two records and one damaged", b, err)
	}
	if err := s.Remove(b); err != nil {
		t.Fatal(err)
	}
	if kept := files(t, dir, damagedSuffix); len(kept) != 1 || s.Pending() != 0 {
		t.Errorf("%v is kept and %d records pend, want the damaged file and none", kept, s.Pending())
	}
}

func TestAMisspeltDirectoryIsNotMade(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	open(t, filepath.Join(parent, "new"), roomy)
	if _, err := Open(filepath.Join(parent, "misspelt", "new"), roomy); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open below a directory that is not there: %v, want %v", err, fs.ErrNotExist)
	}
	if made, err := filepath.Glob(filepath.Join(parent, "misspelt*")); err != nil || len(made) > 0 {
		t.Errorf("%v was made, %v", made, err)
	}
}

func TestADirectoryHasOneProcess(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, roomy)
	if _, err := Open(dir, roomy); !errors.Is(err, ErrHeld) {
		t.Errorf("Open of a directory that is held: %v, want %v", err, ErrHeld)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir, roomy)
	if err := s.Append([]byte("late")); !errors.Is(err, ErrClosed) {
		t.Errorf("Append after Close: %v, want %v", err, ErrClosed)
	}
}

func TestAFullSpoolTakesNothingUntilItHasRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, 3*int64(lineBytes([]byte("a"))))
	mustAppend(t, s, "a", "b", "c")
	if err := s.Append([]byte("d")); !errors.Is(err, ErrFull) {
		t.Errorf("Append beyond the bound: %v, want %v", err, ErrFull)
	}
	if got := drain(t, s); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("kept %q", got)
	}
	mustAppend(t, s, "d")
}

// A disk that fails once: nobody knows what is in the file, so nothing that was refused
// may come out of it, and nothing that was acknowledged may be lost.
func TestARecordThatCouldNotBeWrittenIsNotThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, roomy)
	mustAppend(t, s, "a")
	if err := s.file.Close(); err != nil { // every write to it fails now
		t.Fatal(err)
	}
	if err := s.Append([]byte("refused")); err == nil {
		t.Fatal("Append to a file that takes no writes returned nil")
	}
	mustAppend(t, s, "b")
	if n := s.Pending(); n != 2 {
		t.Errorf("Pending = %d, want 2", n)
	}
	if got := drain(t, s); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("kept %q, want a and b", got)
	}
}

// A full disk takes a new file and nothing into it, again and again.
func TestWritesThatFailLeaveNoFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, roomy)
	for range 3 {
		if err := errors.Join(s.create(), s.file.Close()); err != nil { // every write to it fails now
			t.Fatal(err)
		}
		if err := s.Append([]byte("refused")); err == nil {
			t.Fatal("Append to a file that takes no writes returned nil")
		}
	}
	if left := files(t, dir, suffix); len(left) > 0 || len(s.segments) > 0 || s.bytes != 0 {
		t.Errorf("%v is left, %d files and %d bytes are counted, want none", left, len(s.segments), s.bytes)
	}
	mustAppend(t, s, "a")
	if got := drain(t, s); !slices.Equal(got, []string{"a"}) {
		t.Errorf("kept %q, want a", got)
	}
}

// What a crash left of a first write was acknowledged to nobody, and counts as no file.
func TestFilesWithoutRecordsAreRemovedAtTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, dir, roomy)
	mustAppend(t, first, "a")
	torn := appendLine(nil, []byte("torn"))
	err := errors.Join(first.Close(), os.WriteFile(first.path(7), nil, 0o600), os.WriteFile(first.path(8), torn[:len(torn)-1], 0o600))
	if err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, roomy)
	if left := files(t, dir, suffix); len(left) != 1 || len(s.segments) != 1 {
		t.Errorf("%v is left and %d files are counted, want the one with a record", left, len(s.segments))
	}
	mustAppend(t, s, "b")
	if got := drain(t, s); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("kept %q, want a and b", got)
	}
}

func TestRecordsOfManyCallersAreAllKept(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), roomy)
	var callers sync.WaitGroup
	var want []string
	for i := range 64 {
		want = append(want, fmt.Sprintf("%02d", i))
		callers.Go(func() {
			if err := s.Append(fmt.Appendf(nil, "%02d", i)); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	got := drain(t, s)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
}

func TestARecordSetAsideIsThereForAPerson(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, roomy)
	for _, record := range []string{"a", "b"} {
		if _, err := s.SetAside([]byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, asideName))
	if err != nil || string(text) != "a\nb\n" {
		t.Errorf("set aside: %q, %v", text, err)
	}
}

// FuzzParse: whatever a disk gives back, no record is made up and none that is whole is
// lost.
func FuzzParse(f *testing.F) {
	f.Add([]byte("a"), []byte("garbage\n"), uint(3))
	f.Fuzz(func(t *testing.T, record, behind []byte, cut uint) {
		record = bytes.ReplaceAll(record, []byte{'\n'}, nil) // no record holds one
		line := appendLine(nil, record)
		records, _ := parse(append(slices.Clone(line), behind...))
		if len(records) == 0 || !bytes.Equal(records[0], record) {
			t.Errorf("parse lost %q before %q", record, behind)
		}
		for _, torn := range [][]byte{line[:cut%uint(len(line))]} {
			if records, damaged := parse(torn); len(records) != 0 || damaged != 0 {
				t.Errorf("parse(%q) = %q, %d damaged; want nothing", torn, records, damaged)
			}
		}
	})
}
