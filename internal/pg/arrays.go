package pg

import (
	"encoding/binary"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// A batch sends its rows as some forty arrays. The library's codec for arrays asks for a
// plan per element, and goes through reflection or text for some; these write the binary
// form at once. They are of slices alone: whatever else is sent or received goes the
// library's way.

// microsecondsTo2000 is what the server's timestamps count from, in Unix microseconds.
const microsecondsTo2000 = 946_684_800_000_000

// sendArrays makes slices of the types that batches are made of cheap to send, on the one
// connection that m is of.
func sendArrays(m *pgtype.Map) {
	buffer := make([]byte, bufferBytes)
	sendArray(m, buffer, pgtype.Int8ArrayOID, pgtype.Int8OID, func(b []byte, v int64) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, 8), uint64(v))
	})
	sendArray(m, buffer, pgtype.Int4ArrayOID, pgtype.Int4OID, func(b []byte, v int32) []byte {
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, 4), uint32(v))
	})
	sendArray(m, buffer, pgtype.TimestamptzArrayOID, pgtype.TimestamptzOID, func(b []byte, v time.Time) []byte {
		return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, 8), uint64(v.UnixMicro()-microsecondsTo2000))
	})
	sendArray(m, buffer, pgtype.UUIDArrayOID, pgtype.UUIDOID, func(b []byte, v uuid.UUID) []byte {
		return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v[:]...)
	})
	sendArray(m, buffer, pgtype.TextArrayOID, pgtype.TextOID, func(b []byte, v string) []byte {
		return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
	})
	sendArray(m, buffer, pgtype.ByteaArrayOID, pgtype.ByteaOID, appendBytes)
	sendArray(m, buffer, pgtype.JSONArrayOID, pgtype.JSONOID, appendBytes)
}

// appendBytes appends an element of bytes, of which nil is null.
func appendBytes(b, v []byte) []byte {
	if v == nil {
		return binary.BigEndian.AppendUint32(b, ^uint32(0))
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(v))), v...)
}

func sendArray[T any](m *pgtype.Map, buffer []byte, arrayOID, elementOID uint32, element func([]byte, T) []byte) {
	known, ok := m.TypeForOID(arrayOID)
	if !ok {
		return
	}
	m.RegisterType(&pgtype.Type{Name: known.Name, OID: arrayOID, Codec: &arrayCodec[T]{known.Codec, buffer, elementOID, element}})
}

// An arrayCodec is the library's, but for a slice of T that is sent in binary.
type arrayCodec[T any] struct {
	pgtype.Codec
	buffer     []byte // for the parameters of one statement, shared by all types of the connection
	elementOID uint32
	element    func(b []byte, v T) []byte // appends the length of an element and its bytes
}

// PreferredFormat implements [pgtype.Codec]: also texts, which the library sends as text.
func (c *arrayCodec[T]) PreferredFormat() int16 { return pgtype.BinaryFormatCode }

// PlanEncode implements [pgtype.Codec].
func (c *arrayCodec[T]) PlanEncode(m *pgtype.Map, oid uint32, format int16, value any) pgtype.EncodePlan {
	if _, ours := value.([]T); ours && format == pgtype.BinaryFormatCode {
		return c
	}
	return c.Codec.PlanEncode(m, oid, format, value)
}

// Encode implements [pgtype.EncodePlan]. A nil slice is null.
func (c *arrayCodec[T]) Encode(value any, b []byte) ([]byte, error) {
	values := value.([]T)
	if values == nil {
		return nil, nil
	}
	if len(b) == 0 { // those of the statement before were copied when it was queued
		b = c.buffer[:0]
	}
	dimensions, flags := uint32(1), uint32(0)
	if len(values) == 0 {
		dimensions = 0
	}
	b = binary.BigEndian.AppendUint32(b, dimensions)
	b = binary.BigEndian.AppendUint32(b, flags) // a hint alone: the server looks at each element
	b = binary.BigEndian.AppendUint32(b, c.elementOID)
	if len(values) == 0 {
		return b, nil
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(values)))
	b = binary.BigEndian.AppendUint32(b, 1) // the lower bound
	for _, v := range values {
		b = c.element(b, v)
	}
	return b, nil
}
