package main

import (
	"os"
	"testing"

	"github.com/quotad/quotad/internal/pgtest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asQuotadEnv) != "" {
		asQuotad()
		return
	}
	pgtest.Main(m)
}
