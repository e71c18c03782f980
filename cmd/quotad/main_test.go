package main

import (
	"testing"

	"github.com/quotad/quotad/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
