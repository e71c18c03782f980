package pg

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// Parameters share memory that is used again: none may be written over before it is sent,
// neither by a later one of its statement nor by a later statement, and however large.
func TestParametersOfARoundTripArriveAsTheyWereGiven(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, size := range []int{1, 100, bufferBytes} { // the last one outgrows every buffer
		var batch pgx.Batch
		var want, got [][]int64
		for first := range int64(3) {
			numbers := slices.Repeat([]int64{first}, size)
			others := slices.Repeat([]int64{-first}, size)
			want = append(want, numbers, others)
			batch.Queue("select $1::bigint[], $2::bigint[]", numbers, others).QueryRow(func(row pgx.Row) error {
				var one, other []int64
				err := row.Scan(&one, &other)
				got = append(got, one, other)
				return err
			})
		}
		if err := b.session.Send(t.Context(), &batch, bound); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("of arrays of %d, others arrive (-sent +got):\n%.500s", size, diff)
		}
	}
}
