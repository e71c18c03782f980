package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

const (
	// segmentBytesMax is how long a file may grow: it is read back whole.
	segmentBytesMax = 4 << 20
	// segmentsMax bounds the files in the directory.
	segmentsMax = 10_000

	suffix        = ".records"
	damagedSuffix = ".damaged"
	lockName      = "lock"
	asideName     = "set-aside.jsonl"
)

// Errors of [Open] and [Spool.Append].
var (
	ErrHeld   = errors.New("the directory is held by another process")
	ErrFull   = errors.New("the spool is full")
	ErrClosed = errors.New("the spool is closed")
)

// A Spool is a directory of records. Close must be called.
type Spool struct {
	dir      string
	bytesMax int64
	lock     *os.File

	disk sync.Mutex // held while files are written, sealed or removed; taken before mu
	file *os.File   // the segment that grows; nil for none
	open *segment   // what file holds

	mu        sync.Mutex
	gathering *group // records that share the next write; nil for none
	segments  []*segment
	bytes     int64 // of all segments, and of what is gathering
	records   int
	next      int64 // number of the next segment
	closed    bool
}

// A segment is one file.
type segment struct {
	number  int64
	bytes   int64 // what was acknowledged
	records int
}

// A group is records that are written and synced together.
type group struct {
	lines   []byte
	records int
	written bool
	err     error
}

// Open takes the directory for this process alone. It makes the directory if need be, but not
// those around it, whose absence is a slip of the pen. It returns
// [ErrHeld] if another one has it. The records in it count as pending.
func Open(dir string, bytesMax int64) (*Spool, error) {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("open the spool: %w", err)
	}
	lock, err := lockFile(filepath.Join(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("open the spool %s: %w", dir, err)
	}
	s := &Spool{dir: dir, bytesMax: bytesMax, lock: lock}
	if err := s.list(); err != nil {
		lock.Close() //nolint:errcheck // nothing was written
		return nil, fmt.Errorf("open the spool %s: %w", dir, err)
	}
	return s, nil
}

// list finds the segments that an earlier process left.
func (s *Spool) list() error {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		name, ok := strings.CutSuffix(file.Name(), suffix)
		if !ok {
			continue
		}
		number, err := strconv.ParseInt(name, 10, 64)
		if err != nil {
			continue
		}
		text, err := os.ReadFile(s.path(number))
		if err != nil {
			return err
		}
		records, damaged := parse(text)
		if len(records)+damaged == 0 { // its process died before anything in it was acknowledged
			if err := os.Remove(s.path(number)); err != nil {
				return err
			}
			continue
		}
		s.segments = append(s.segments, &segment{number: number, bytes: int64(len(text)), records: len(records)})
		s.bytes += int64(len(text))
		s.records += len(records)
		s.next = max(s.next, number)
	}
	slices.SortFunc(s.segments, func(a, b *segment) int { return int(a.number - b.number) })
	return nil
}

func (s *Spool) path(number int64) string {
	return filepath.Join(s.dir, fmt.Sprintf("%012d%s", number, suffix))
}

// Pending returns how many records are kept.
func (s *Spool) Pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.records
}

// Append keeps a record, which must not hold a line feed, and returns when it is on disk.
func (s *Spool) Append(record []byte) error {
	g, err := s.join(record)
	if err != nil {
		return err
	}
	s.disk.Lock()
	defer s.disk.Unlock()
	if g.written {
		return g.err // by one of those who came with it
	}
	s.mu.Lock()
	s.gathering = nil // it is g: whoever takes the disk first writes all that gathered
	closed := s.closed
	s.mu.Unlock()
	if g.err = ErrClosed; !closed {
		g.err = s.write(g)
	}
	g.written = true
	s.mu.Lock()
	if g.err != nil {
		s.bytes -= int64(len(g.lines))
	} else {
		s.records += g.records
	}
	s.mu.Unlock()
	return g.err
}

// join adds a record to those that are written next.
func (s *Spool) join(record []byte) (*group, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	length := int64(lineBytes(record))
	switch {
	case s.closed:
		return nil, ErrClosed
	case s.bytes+length > s.bytesMax || len(s.segments) >= segmentsMax:
		return nil, ErrFull
	}
	if s.gathering == nil {
		s.gathering = &group{}
	}
	s.bytes += length
	s.gathering.lines = appendLine(s.gathering.lines, record)
	s.gathering.records++
	return s.gathering, nil
}

// write appends a group to the growing segment. After a failure nobody knows what of it
// is on disk, so the segment is cut back to what was acknowledged and left. One with nothing
// in it is removed: on a disk that is full each write would leave another one behind.
func (s *Spool) write(g *group) error {
	if s.file == nil {
		if err := s.create(); err != nil {
			return fmt.Errorf("begin a file of the spool: %w", err)
		}
	}
	_, err := s.file.Write(g.lines)
	if err == nil {
		err = s.file.Sync()
	}
	if err != nil {
		err = errors.Join(err, s.file.Truncate(s.open.bytes), s.file.Sync())
		if s.open.records == 0 {
			err = errors.Join(err, s.discard(s.open))
		}
		s.seal()
		return fmt.Errorf("write to the spool: %w", err)
	}
	s.open.bytes += int64(len(g.lines))
	s.open.records += g.records
	if s.open.bytes >= segmentBytesMax {
		s.seal()
	}
	return nil
}

// create begins a segment.
func (s *Spool) create() error {
	s.mu.Lock()
	s.next++
	made := &segment{number: s.next}
	s.mu.Unlock()
	file, err := os.OpenFile(s.path(made.number), os.O_CREATE|os.O_EXCL|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if err := s.syncDir(); err != nil {
		return errors.Join(err, file.Close(), os.Remove(s.path(made.number)))
	}
	s.file, s.open = file, made
	s.mu.Lock()
	s.segments = append(s.segments, made)
	s.mu.Unlock()
	return nil
}

// discard removes a segment's file and forgets it.
func (s *Spool) discard(gone *segment) error {
	if err := os.Remove(s.path(gone.number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments = slices.DeleteFunc(s.segments, func(have *segment) bool { return have == gone })
	return nil
}

// seal ends the growing segment. What is in it was synced.
func (s *Spool) seal() {
	if s.file != nil {
		s.file.Close() //nolint:errcheck // every record in it was synced
		s.file, s.open = nil, nil
	}
}

// syncDir makes the names in the directory durable.
func (s *Spool) syncDir() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Close gives the directory back. What is kept stays for the next process.
func (s *Spool) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.disk.Lock()
	defer s.disk.Unlock()
	s.seal()
	return s.lock.Close()
}
