package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// A mutant is the code with one fault planted in it.
type mutant struct {
	name     string // what is wrong with it
	file     string // from the module's root
	old, new string // old stands in file exactly once
	pkg      string // where the test is that notices
	test     string // with its subtests, as it is printed when it fails
}

// apply returns the mutant's file.
func (m *mutant) apply(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		return "", err
	}
	if n := strings.Count(string(text), m.old); n != 1 {
		return "", fmt.Errorf("%s has the text %d times, want once: %q", m.file, n, m.old)
	}
	return strings.Replace(string(text), m.old, m.new, 1), nil
}

// function is the test without its subtests.
func (m *mutant) function() string {
	function, _, _ := strings.Cut(m.test, "/")
	return function
}

// pattern selects the test and nothing else.
func (m *mutant) pattern() string {
	return "^" + strings.ReplaceAll(regexp.QuoteMeta(m.test), "/", "$/^") + "$"
}

func selected(all []mutant, wanted *regexp.Regexp) (some []mutant) {
	for _, m := range all {
		if wanted.MatchString(m.name) || wanted.MatchString(m.file) || wanted.MatchString(m.test) {
			some = append(some, m)
		}
	}
	return some
}
