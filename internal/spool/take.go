package spool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A Batch is the records of one file, oldest first.
type Batch struct {
	File    string // its path
	Records [][]byte
	// Damaged is how many lines before the last record cannot be read: they were on disk
	// once. Their file is then kept beside when it is removed.
	Damaged int

	segment *segment
}

// Oldest returns the records that were kept first, up to a few megabytes of them; later
// ones go to another file. It returns no batch if nothing is kept.
func (s *Spool) Oldest() (*Batch, error) {
	s.disk.Lock()
	defer s.disk.Unlock()
	s.mu.Lock()
	if len(s.segments) == 0 {
		s.mu.Unlock()
		return nil, nil
	}
	oldest := s.segments[0]
	s.mu.Unlock()
	if s.open == oldest {
		s.seal()
	}
	text, err := os.ReadFile(s.path(oldest.number))
	if err != nil {
		return nil, fmt.Errorf("read the spool: %w", err)
	}
	b := &Batch{File: s.path(oldest.number), segment: oldest}
	b.Records, b.Damaged = parse(text)
	return b, nil
}

// Remove forgets a batch that was taken over.
func (s *Spool) Remove(b *Batch) error {
	s.disk.Lock()
	defer s.disk.Unlock()
	remove := os.Remove
	if b.Damaged > 0 {
		remove = func(path string) error { return os.Rename(path, path+damagedSuffix) }
	}
	if err := remove(b.File); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove from the spool: %w", err)
	}
	if err := s.syncDir(); err != nil {
		return fmt.Errorf("remove from the spool: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments = slices.DeleteFunc(s.segments, func(have *segment) bool { return have == b.segment })
	s.bytes -= b.segment.bytes
	s.records -= b.segment.records
	return nil
}

// SetAside keeps a record that can never be taken over, for a person to look at.
func (s *Spool) SetAside(record []byte) (path string, err error) {
	s.disk.Lock()
	defer s.disk.Unlock()
	path = filepath.Join(s.dir, asideName)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return path, fmt.Errorf("set a record aside: %w", err)
	}
	_, err = file.Write(append(slices.Clone(record), '\n'))
	if err := errors.Join(err, file.Sync(), file.Close(), s.syncDir()); err != nil {
		return path, fmt.Errorf("set a record aside: %w", err)
	}
	return path, nil
}

// Leftovers returns the names of the files that wait for a person: records that were set
// aside, and files with damaged ones.
func (s *Spool) Leftovers() ([]string, error) {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list the spool: %w", err)
	}
	var names []string
	for _, file := range files {
		if name := file.Name(); name == asideName || strings.HasSuffix(name, damagedSuffix) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Each calls do for every record that is kept, oldest first.
func (s *Spool) Each(do func(record []byte)) error {
	s.disk.Lock()
	defer s.disk.Unlock()
	s.mu.Lock()
	segments := slices.Clone(s.segments)
	s.mu.Unlock()
	for _, kept := range segments {
		text, err := os.ReadFile(s.path(kept.number))
		if err != nil {
			return fmt.Errorf("read the spool: %w", err)
		}
		records, _ := parse(text)
		for _, record := range records {
			do(record)
		}
	}
	return nil
}
