package catalog

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// WeightMax is the largest weight: a million units for one of a pool.
const WeightMax = 1_000_000 * WeightOne

const (
	weightDecimals = 6
	weightRule     = "must be a decimal number from 0 to 1000000 with at most 6 decimals"
)

var weightPattern = regexp.MustCompile(`^(0|[1-9][0-9]{0,6})(?:\.([0-9]{1,6}))?$`)

// ParseWeight reads a decimal from its text, so that 0.1 is exactly a tenth.
func ParseWeight(text string) (Weight, error) {
	parts := weightPattern.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("weight %q %s", text, weightRule)
	}
	whole, _ := strconv.ParseInt(parts[1], 10, 64) // at most 7 digits
	decimals := parts[2] + strings.Repeat("0", weightDecimals-len(parts[2]))
	millionths, _ := strconv.ParseInt(decimals, 10, 64) // exactly 6 digits
	weight := Weight(whole)*WeightOne + Weight(millionths)
	if weight > WeightMax {
		return 0, fmt.Errorf("weight %q %s", text, weightRule)
	}
	return weight, nil
}

// String is the weight as a decimal without trailing zeros.
func (w Weight) String() string {
	whole := strconv.FormatInt(int64(w/WeightOne), 10)
	if w%WeightOne == 0 {
		return whole
	}
	return whole + "." + strings.TrimRight(fmt.Sprintf("%06d", int64(w%WeightOne)), "0")
}

// A WeightText is a weight as it was written: a number or a quoted decimal. It keeps
// the text because a number that went through a float is no longer what was written.
type WeightText string

// UnmarshalJSON keeps the literal of a number, or the content of a string.
func (w *WeightText) UnmarshalJSON(data []byte) error {
	text := string(data)
	if text == "null" {
		return nil
	}
	if text[0] == '"' {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	*w = WeightText(text)
	return nil
}
