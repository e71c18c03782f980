package api

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/quotad/quotad/internal/quota"
)

// appendDecision appends the JSON form of a decision: the same members in the same
// order as encoding/json makes of its tags, which a test holds it to. Reflection
// costs a few microseconds here, and every decision pays them.
func appendDecision(b []byte, d *quota.Decision) []byte {
	if d.Encoded != nil {
		return append(b, d.Encoded...)
	}
	b = append(b, `{"allowed":`...)
	b = strconv.AppendBool(b, d.Allowed)
	if d.Kind != "" {
		b = appendText(append(b, `,"kind":`...), string(d.Kind))
	}
	if d.Reason != "" {
		b = appendText(append(b, `,"reason":`...), string(d.Reason))
	}
	b = appendText(append(b, `,"tenant":`...), d.Tenant)
	if d.Subject != "" {
		b = appendText(append(b, `,"subject":`...), d.Subject)
	}
	b = append(b, `,"request_id":"`...)
	b = appendUUID(b, d.RequestID)
	b = appendInstant(append(b, `","decided_at":`...), d.DecidedAt)
	if d.DryRun {
		b = append(b, `,"dry_run":true`...)
	}
	if d.Remembered {
		b = append(b, `,"remembered":true`...)
	}
	b = append(b, `,"charges":[`...)
	for i := range d.Charges {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(append(b, `{"meter":`...), d.Charges[i].Meter)
		b = appendNumber(b, `,"cost":`, d.Charges[i].Cost)
		b = appendOptional(b, `,"held":`, d.Charges[i].Held)
		b = append(b, '}')
	}
	b = append(b, ']')
	b = appendOptional(b, `,"remaining":`, d.Remaining)
	b = append(b, `,"limits":[`...)
	for i := range d.Limits {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendLimit(b, &d.Limits[i])
	}
	b = append(b, ']')
	b = appendOptional(b, `,"delay_ms":`, d.DelayMS)
	b = appendOptional(b, `,"retry_after_ms":`, d.RetryMS)
	return append(appendRecorded(b, d), '}')
}

// appendRecorded appends what a decision made of a hold, of an entry, and of the ledger.
func appendRecorded(b []byte, d *quota.Decision) []byte {
	if d.Hold != nil {
		b = appendUUID(append(b, `,"hold":{"id":"`...), d.Hold.ID)
		b = appendText(append(b, `","state":`...), string(d.Hold.State))
		b = appendInstant(append(b, `,"expires_at":`...), d.Hold.ExpiresAt)
		if d.Hold.Late {
			b = append(b, `,"late":true`...)
		}
		b = append(b, '}')
	}
	if d.Reversal != nil {
		b = appendNumber(b, `,"reversal":{"seq":`, d.Reversal.Seq)
		b = appendText(append(b, `,"meter":`...), d.Reversal.Meter)
		b = appendNumber(b, `,"units":`, d.Reversal.Units)
		b = append(appendNumber(b, `,"left":`, d.Reversal.Left), '}')
	}
	if d.Receipt != nil {
		b = appendNumber(b, `,"receipt":{"first_seq":`, d.Receipt.FirstSeq)
		b = appendNumber(b, `,"seq":`, d.Receipt.Seq)
		b = append(b, `,"hash":"`...)
		b = hex.AppendEncode(b, d.Receipt.Hash[:])
		b = append(b, `"}`...)
	}
	return appendDegraded(b, d)
}

func appendLimit(b []byte, l *quota.LimitResult) []byte {
	b = appendText(append(b, `{"name":`...), l.Name)
	b = appendText(append(b, `,"meter":`...), l.Meter)
	b = appendText(append(b, `,"unit":`...), l.Unit)
	b = appendText(append(b, `,"algorithm":`...), string(l.Algorithm))
	b = appendText(append(b, `,"scope":`...), string(l.Scope))
	b = appendText(append(b, `,"mode":`...), string(l.Mode))
	if l.Unlimited {
		b = append(b, `,"unlimited":true`...)
	}
	if !l.Unlimited {
		b = appendNumber(b, `,"limit":`, l.Limit)
	}
	b = appendNumber(b, `,"used":`, l.Used)
	b = appendNumber(b, `,"held":`, l.Held)
	if !l.Unlimited {
		b = appendNumber(b, `,"remaining":`, l.Remaining)
	}
	if l.Violated {
		b = append(b, `,"violated":true`...)
	}
	if l.WouldDeny {
		b = append(b, `,"would_deny":true`...)
	}
	b = appendOptional(b, `,"retry_after_ms":`, l.RetryMS)
	if !l.NeverResets {
		b = appendNumber(b, `,"reset_after_ms":`, l.ResetMS)
	}
	if !l.ResetAt.IsZero() {
		b = appendInstant(append(b, `,"reset_at":`...), l.ResetAt)
	}
	b = appendOptional(b, `,"delay_ms":`, l.DelayMS)
	if o := l.Override; o != nil {
		b = appendInstant(append(b, `,"override":{"until":`...), o.Until)
		b = append(appendText(append(b, `,"reason":`...), o.Reason), '}')
	}
	if l.Approximate {
		b = append(b, `,"approximate":true`...)
	}
	return append(b, '}')
}

func appendNumber(b []byte, name string, n int64) []byte {
	return strconv.AppendInt(append(b, name...), n, 10)
}

func appendOptional(b []byte, name string, n *int64) []byte {
	if n == nil {
		return b
	}
	return appendNumber(b, name, *n)
}

func appendUUID(b []byte, id [16]byte) []byte {
	b = hex.AppendEncode(b, id[0:4])
	b = hex.AppendEncode(append(b, '-'), id[4:6])
	b = hex.AppendEncode(append(b, '-'), id[6:8])
	b = hex.AppendEncode(append(b, '-'), id[8:10])
	return hex.AppendEncode(append(b, '-'), id[10:16])
}

// appendInstant appends a time as RFC 3339 writes it.
func appendInstant(b []byte, at time.Time) []byte {
	b = at.AppendFormat(append(b, '"'), time.RFC3339Nano)
	return append(b, '"')
}

// appendText appends a JSON string. What is not UTF-8, which no validated request
// holds, becomes U+FFFD.
func appendText(b []byte, text string) []byte {
	b, _ = jsontext.AppendQuote(b, text)
	return b
}
