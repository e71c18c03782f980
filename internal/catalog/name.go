package catalog

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// NameRule is the rule of meter, plan and limit names, as an error says it.
const NameRule = "must match [a-z0-9][a-z0-9._-]{0,63}"

// ValidName reports whether name may name a meter, a plan, a limit or a pool. Every request
// has some, so it is read by hand.
func ValidName(name string) bool {
	if name == "" || len(name) > 64 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		if !letter && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// IDBytesMax bounds a tenant's or a subject's id, which is the caller's own.
const IDBytesMax = 256

// IDRule returns the rule of tenant and subject ids that id breaks, or "".
func IDRule(id string) string {
	switch {
	case id == "" || len(id) > IDBytesMax:
		return fmt.Sprintf("must be 1 to %d bytes long", IDBytesMax)
	case id == "." || id == "..":
		return "must not be . or .."
	}
	return CharactersRule(id)
}

// CharactersRule returns the rule of any text that text breaks, however long, or "".
func CharactersRule(text string) string {
	if !utf8.ValidString(text) {
		return "must be valid UTF-8"
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return "must not contain control characters"
	}
	return ""
}

// TextRule returns the rule of the texts that lists are filtered by that text breaks,
// or "".
func TextRule(text string) string { return shortTextRule(text, IDBytesMax) }

// shortTextRule returns the rule of units and key names that text breaks, or "".
func shortTextRule(text string, bytesMax int) string {
	if text == "" || len(text) > bytesMax {
		return fmt.Sprintf("must be 1 to %d bytes long", bytesMax)
	}
	return CharactersRule(text)
}
