package pg

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"
)

// What the library reads of our bytes is what we were given: null, none, one and several.
func TestArraysAreSentAsTheLibraryReadsThem(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 30, 0, 123_456_000, time.UTC)
	old := time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	sentAs(t, pgtype.Int8ArrayOID, nil, []int64{}, []int64{1}, []int64{-1 << 63, 0, 1<<63 - 1})
	sentAs(t, pgtype.Int4ArrayOID, nil, []int32{}, []int32{-1 << 31, 0, 1<<31 - 1})
	sentAs(t, pgtype.TimestamptzArrayOID, nil, []time.Time{}, []time.Time{old, at})
	sentAs(t, pgtype.UUIDArrayOID, nil, []uuid.UUID{}, []uuid.UUID{{}, {1, 2, 15: 3}})
	sentAs(t, pgtype.TextArrayOID, nil, []string{}, []string{"", "é", `{"a":"b\\"}`, "NULL"})
	sentAs(t, pgtype.ByteaArrayOID, nil, [][]byte{}, [][]byte{nil, {}, {0, 255}})
	sentAs(t, pgtype.JSONArrayOID, nil, [][]byte{}, [][]byte{nil, []byte("{}"), []byte(`{"a": [1, 2]}`)})
}

func sentAs[T any](t *testing.T, oid uint32, examples ...[]T) {
	t.Helper()
	ours, library := pgtype.NewMap(), pgtype.NewMap()
	sendArrays(ours)
	for _, want := range examples {
		if format := ours.FormatCodeForOID(oid); format != pgtype.BinaryFormatCode {
			t.Fatalf("%T is sent in format %d", want, format)
		}
		bytes, err := ours.Encode(oid, pgtype.BinaryFormatCode, want, nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []T
		if err := library.Scan(oid, pgtype.BinaryFormatCode, bytes, &got); err != nil {
			t.Fatalf("%v is sent as what the library cannot read: %v", want, err)
		}
		for i := range got {
			if at, ok := any(&got[i]).(*time.Time); ok {
				*at = at.UTC()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v arrives otherwise (-want +got):\n%s", want, diff)
		}
	}
}

// Sending must not take the library's way, which costs several times as much.
func TestArraysAreSentWithoutAPlanPerElement(t *testing.T) {
	ours := pgtype.NewMap()
	sendArrays(ours)
	ids, buffer := make([]uuid.UUID, 100), make([]byte, 0, 4096)
	allocated := testing.AllocsPerRun(100, func() {
		if _, err := ours.Encode(pgtype.UUIDArrayOID, pgtype.BinaryFormatCode, ids, buffer); err != nil {
			t.Fatal(err)
		}
	})
	if allocated > 3 {
		t.Errorf("sending 100 numbers allocates %v times", allocated)
	}
}
