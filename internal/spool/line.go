package spool

import (
	"bytes"
	"hash/crc32"
	"strconv"
)

// checksumBytes is the checksum in hexadecimal and the space behind it.
const checksumBytes = 8 + 1

// lineBytes is how long the line of a record is.
func lineBytes(record []byte) int { return checksumBytes + len(record) + 1 }

func checksum(record []byte) uint32 {
	return crc32.Checksum(record, crc32.MakeTable(crc32.Castagnoli))
}

// appendLine appends the line of a record.
func appendLine(b, record []byte) []byte {
	sum := strconv.FormatUint(uint64(checksum(record))|1<<32, 16)
	b = append(b, sum[1:]...) // the 1 in front keeps its leading zeros
	b = append(b, ' ')
	b = append(b, record...)
	return append(b, '\n')
}

// parse returns the records of a file, and how many lines before the last of them are
// none. What comes after it is a write that a crash cut short: nobody was told that it
// was kept.
func parse(text []byte) (records [][]byte, damaged int) {
	broken := 0
	for len(text) > 0 {
		line, rest, ended := bytes.Cut(text, []byte{'\n'})
		text = rest
		record, ok := recordOf(line)
		if !ended || !ok {
			broken++
			continue
		}
		records = append(records, record)
		damaged, broken = damaged+broken, 0
	}
	return records, damaged
}

// recordOf returns the record of a line; false if the line is not one.
func recordOf(line []byte) (record []byte, ok bool) {
	if len(line) < checksumBytes || line[checksumBytes-1] != ' ' {
		return nil, false
	}
	record = line[checksumBytes:]
	sum, err := strconv.ParseUint(string(line[:checksumBytes-1]), 16, 32)
	return record, err == nil && uint32(sum) == checksum(record)
}
