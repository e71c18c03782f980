//go:build !race

package quota_test

// programs is how many the model test runs.
const programs = 1000
