package calendar

import (
	"math/big"
	"time"
)

const (
	second = int64(time.Second / time.Microsecond)
	minute = 60 * second
	hours  = 60 * minute
	days   = 24 * hours
	years  = 365 * days
)

// instantMaxMicros is the end of the year 9999, the last instant that RFC 3339 can write.
const instantMaxMicros = 253_402_300_799_999_999

// micros reads an instant as tests write it.
func micros(text string) int64 {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return t.UnixMicro()
}

func instant(atMicros int64) string {
	return time.UnixMicro(atMicros).UTC().Format(time.RFC3339Nano)
}

// within folds any number into a range.
func within(n, low, high int64) int64 {
	span := new(big.Int).SetInt64(high - low + 1)
	rest := new(big.Int).Mod(big.NewInt(n), span)
	return low + rest.Int64()
}
