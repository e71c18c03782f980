//go:build race

package quota_test

// programs is how many the model test runs. The race detector costs several times the time,
// and what a program asks for is asked one after another.
const programs = 100
