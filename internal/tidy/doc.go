// Package tidy holds the house rules that no linter knows: who may import whom, how
// long a file and a function may be, which calls belong only in one place. It has no
// code of its own, only tests that read the tree.
//
// Every exception stands in a table with its reason, and one that nothing needs any
// more fails the test too.
package tidy
