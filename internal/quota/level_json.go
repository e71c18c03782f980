package quota

import (
	"bytes"
	"errors"
	"slices"
	"strconv"
)

// keptLevels are the levels that stand in the row of a running total: those of the limits
// that count by it, also of limits that the plan does not have now, since it may get them
// again. They are few.
type keptLevels []namedLevel

type namedLevel struct {
	limit string
	level
}

// of returns the level of a limit, a fresh one if none is kept.
func (k keptLevels) of(limit string) level {
	for i := range k {
		if k[i].limit == limit {
			return k[i].level
		}
	}
	return level{}
}

// put keeps the level of a limit.
func (k *keptLevels) put(limit string, v level) {
	v.changed = false
	for i := range *k {
		if (*k)[i].limit == limit {
			(*k)[i].level = v
			return
		}
	}
	*k = append(*k, namedLevel{limit, v})
}

// encode returns the levels as the column has them, nil for none: an object of the limits,
// each with six integers. Names of limits need no escapes.
func (k keptLevels) encode() []byte {
	if len(k) == 0 {
		return nil
	}
	text := make([]byte, 0, 128*len(k))
	for i := range k {
		v := &k[i]
		text = append(text, ',', '"')
		text = append(text, v.limit...)
		text = append(text, '"', ':')
		for j, n := range v.integers() {
			text = append(text, "[,,,,,"[j])
			text = strconv.AppendInt(text, *n, 10)
		}
		text = append(text, ']')
	}
	text[0] = '{'
	return append(text, '}')
}

// integers are what the column says of a level, in its order.
func (v *level) integers() [6]*int64 {
	return [...]*int64{&v.versionID, &v.overrideSetID, &v.Units, &v.Remainder, &v.Denominator, &v.AtMicros}
}

var errLevels = errors.New("levels are not an object of limits with six integers each")

// decodeLevels reads what encode wrote, or what means the same; nil is none.
func decodeLevels(text []byte) (kept keptLevels, err error) {
	if text == nil {
		return nil, nil
	}
	r := levelReader{rest: text}
	for separator := byte('{'); r.take(separator); separator = ',' {
		if separator == '{' && r.take('}') {
			return nil, r.end()
		}
		v := namedLevel{limit: r.name()}
		r.want(':')
		for j, n := range v.integers() {
			r.want("[,,,,,"[j])
			*n = r.integer()
		}
		r.want(']')
		if kept.of(v.limit) != (level{}) || v.Denominator <= 0 || v.Remainder < 0 || v.Remainder >= v.Denominator {
			return nil, errLevels
		}
		kept = append(kept, v)
	}
	r.want('}')
	return kept, r.end()
}

// A levelReader reads JSON that has no more than levels do.
type levelReader struct {
	rest []byte
	bad  bool
}

// take takes a byte, if it is the next one behind white space.
func (r *levelReader) take(c byte) bool {
	r.rest = bytes.TrimLeft(r.rest, " \t\r\n")
	if len(r.rest) == 0 || r.rest[0] != c {
		return false
	}
	r.rest = r.rest[1:]
	return true
}

func (r *levelReader) want(c byte) {
	if !r.take(c) {
		r.bad = true
	}
}

// name takes a string without escapes.
func (r *levelReader) name() string {
	r.want('"')
	name, rest, closed := bytes.Cut(r.rest, []byte{'"'})
	r.bad = r.bad || !closed || bytes.IndexByte(name, '\\') >= 0
	r.rest = rest
	return string(name)
}

func (r *levelReader) integer() int64 {
	r.rest = bytes.TrimLeft(r.rest, " \t\r\n")
	size := slices.IndexFunc(r.rest, func(c byte) bool { return c != '-' && (c < '0' || c > '9') })
	n, err := strconv.ParseInt(string(r.rest[:max(0, size)]), 10, 64)
	r.bad = r.bad || err != nil
	r.rest = r.rest[max(0, size):]
	return n
}

// end says whether the text was as it should be, and all was read.
func (r *levelReader) end() error {
	if r.bad || len(bytes.TrimSpace(r.rest)) > 0 {
		return errLevels
	}
	return nil
}
