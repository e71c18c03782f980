package api

import (
	"bytes"
	"encoding/hex"
	stdjson "encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quotad/quotad/internal/ledger"
)

// csvColumns are the fields of an entry, named as in JSON. New ones are added at the end:
// sheets and scripts count columns.
const csvColumns = "tenant,seq,at,effective_at,kind,meter,subject,units,held,total,subject_total," +
	"request_id,batch_id,ref_seq,plan,plan_version,limits_used,dims,hash,limits_held,override_set_id\r\n"

func appendCSVHeader(b []byte) []byte { return append(b, csvColumns...) }

// appendCSVEntry appends an entry as a row of RFC 4180. Amounts are plain integers,
// instants RFC 3339, limits_used, limits_held and dims JSON; what an entry does not have is empty.
func appendCSVEntry(b []byte, e *ledger.Entry) ([]byte, error) {
	var dims []byte
	if len(e.Dims) > 0 {
		text := new(bytes.Buffer)
		encoder := stdjson.NewEncoder(text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(e.Dims); err != nil {
			return b, err
		}
		dims = bytes.TrimSuffix(text.Bytes(), []byte{'\n'})
	}
	b = append(appendCSVText(b, e.Tenant), ',')
	b = append(strconv.AppendInt(b, e.Seq, 10), ',')
	b = append(e.At.UTC().AppendFormat(b, time.RFC3339Nano), ',')
	b = append(e.EffectiveAt.UTC().AppendFormat(b, time.RFC3339Nano), ',')
	b = append(append(b, e.Kind...), ',')
	b = append(append(b, e.Meter...), ',')
	b = append(appendCSVText(b, e.Subject), ',')
	b = append(strconv.AppendInt(b, e.Units, 10), ',')
	b = append(strconv.AppendInt(b, e.Held, 10), ',')
	b = append(strconv.AppendInt(b, e.Total, 10), ',')
	if e.SubjectDigest != nil {
		b = strconv.AppendInt(b, e.SubjectTotal, 10)
	}
	b = append(appendUUID(append(b, ','), e.RequestID), ',')
	b = append(appendUUID(b, e.BatchID), ',')
	if e.RefSeq != 0 {
		b = strconv.AppendInt(b, e.RefSeq, 10)
	}
	b = append(append(append(b, ','), e.Plan...), ',')
	b = append(strconv.AppendInt(b, int64(e.PlanVersion), 10), ',')
	b = append(appendCSVField(b, string(appendIntegers(nil, e.LimitsUsed))), ',')
	b = append(appendCSVField(b, string(dims)), ',')
	b = append(hex.AppendEncode(b, e.Hash[:]), ',')
	if e.LimitsHeld != nil {
		b = appendCSVField(b, string(appendIntegers(nil, e.LimitsHeld)))
	}
	b = append(b, ',')
	if e.OverrideSetID != 0 {
		b = strconv.AppendInt(b, e.OverrideSetID, 10)
	}
	return append(b, "\r\n"...), nil
}

func appendIntegers(b []byte, list []int64) []byte {
	b = append(b, '[')
	for i, n := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return append(b, ']')
}

// formulaStarts are the first characters that make a spreadsheet run a cell, also in
// their full width; quoting does not stop it. The apostrophe is there so that the one
// in front can be told from a text's own.
const formulaStarts = "=+-@\t\r＝＋－＠'"

// appendCSVText appends a cell whose text comes from outside. One that a spreadsheet
// would take for a formula gets an apostrophe in front, which it takes for "this is
// text"; so a reader who drops one apostrophe from the front, if there is one, has
// every text as it was.
func appendCSVText(b []byte, text string) []byte {
	if first, _ := utf8.DecodeRuneInString(text); text != "" && strings.ContainsRune(formulaStarts, first) {
		text = "'" + text
	}
	return appendCSVField(b, text)
}

// appendCSVField appends a cell, in quotes where RFC 4180 wants them, or where a reader
// might trim it.
func appendCSVField(b []byte, text string) []byte {
	if !strings.ContainsAny(text, "\",\r\n") && strings.TrimSpace(text) == text {
		return append(b, text...)
	}
	b = append(b, '"')
	b = append(b, strings.ReplaceAll(text, `"`, `""`)...)
	return append(b, '"')
}
