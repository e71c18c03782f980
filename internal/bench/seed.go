package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
)

const (
	// entriesMax in a window leave each the time in which the bucket is full again.
	entriesMax = 50_000_000
	// seedSpan is how long ago seeded entries begin: a month's partition and part of the
	// one before, which both exist.
	seedSpan = 28 * 24 * time.Hour
	// seedChunk entries are one copy, so that progress can be told.
	seedChunk = 250_000
)

// seed writes a ledger as if it had been decided: entries in the order of time, hashes
// that verify, counters that agree.
func (b *book) seed(ctx context.Context, c *runCmd, note func(string)) error {
	now := time.Now().UTC().Truncate(time.Microsecond)
	each := max(1, c.Entries/c.Tenants)
	spread := &seeding{
		book: b, note: note, names: tenantNames(c.Tenants), each: int64(each),
		start: now.Add(-seedSpan), step: (seedSpan - time.Minute) / time.Duration(each),
	}
	// All in one window, which ended a window ago.
	idle := &seeding{
		book: b, note: note, names: []string{idleTenant}, each: int64(c.Idle),
		start: now.Add(-3 * limitSpan), step: limitSpan / time.Duration(c.Idle),
	}
	for _, s := range []*seeding{idle, spread} {
		if err := s.run(ctx); err != nil {
			return fmt.Errorf("write entries: %w", err)
		}
	}
	note("vacuuming")
	_, err := b.admin.Exec(ctx, vacuumSQL)
	return err
}

// A seeding writes entries for some tenants in turns, each a step after its last.
type seeding struct {
	book  *book
	note  func(string)
	names []string
	each  int64
	start time.Time
	step  time.Duration

	plan    knownPlan
	batchID uuid.UUID
	ids     []int64
	heads   [][32]byte
	written int64
}

func (s *seeding) run(ctx context.Context) error {
	s.batchID = uuid.New()
	if err := s.plan.scan(s.book.admin.QueryRow(ctx, planSQL, meterName, planName)); err != nil {
		return err
	}
	if err := s.lookUp(ctx); err != nil {
		return err
	}
	total := s.each * int64(len(s.ids))
	for s.written < total {
		s.note(fmt.Sprintf("writing entries: %s of %s", grouped(float64(s.written)), grouped(float64(total))))
		until := min(total, s.written+seedChunk)
		_, err := s.book.admin.CopyFrom(ctx, pgx.Identifier{"quotad", "entry"}, entryColumns(), pgx.CopyFromFunc(func() ([]any, error) {
			if s.written == until {
				return nil, nil
			}
			return s.row()
		}))
		if err != nil {
			return err
		}
	}
	s.book.entries += total
	return s.finish(ctx)
}

// lookUp reads the tenants' accounts, which have no entry yet.
func (s *seeding) lookUp(ctx context.Context) error {
	rows, err := s.book.admin.Query(ctx, accountsSQL, s.names)
	if err != nil {
		return err
	}
	defer rows.Close()
	s.names = s.names[:0:0]
	for rows.Next() {
		var id int64
		var name string
		var head []byte
		if err := rows.Scan(&id, &name, &head); err != nil {
			return err
		}
		s.ids, s.names, s.heads = append(s.ids, id), append(s.names, name), append(s.heads, [32]byte(head))
	}
	return rows.Err()
}

// at is the instant of a tenant's entry; tenants follow each other by a microsecond.
func (s *seeding) at(i int, seq int64) time.Time {
	return s.start.Add(time.Duration(seq-1)*s.step + time.Duration(i)*time.Microsecond).Truncate(time.Microsecond)
}

// row makes the next entry.
func (s *seeding) row() ([]any, error) {
	i, seq := int(s.written%int64(len(s.ids))), s.written/int64(len(s.ids))+1
	at := s.at(i, seq)
	requestID, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	e := ledger.Entry{
		Tenant: s.names[i], Seq: seq, At: at, EffectiveAt: at, Kind: ledger.KindConsume, Meter: meterName,
		Units: callUnits, Total: seq * callUnits, RequestID: requestID, BatchID: s.batchID,
		PlanVersionID: s.plan.versionID, SpecDigest: s.plan.specDigest, LimitsUsed: []int64{s.used(i, seq), 0},
	}
	e.Hash = e.ChainHash(s.heads[i])
	s.heads[i] = e.Hash
	s.written++
	return []any{
		s.ids[i], e.Seq, e.At, e.EffectiveAt, string(e.Kind), s.plan.meterID, int64(0), e.Units, int64(0), e.Total, int64(0),
		[16]byte(e.RequestID), [16]byte(e.BatchID), int64(0), e.PlanVersionID, e.LimitsUsed, nil, e.Hash[:],
	}, nil
}

// used is what the window had counted just before an entry: those in its window.
func (s *seeding) used(i int, seq int64) int64 {
	first := max(1, seq-int64(limitSpan/s.step)-1)
	for first < seq && !s.at(i, first).After(s.at(i, seq).Add(-limitSpan)) {
		first++
	}
	return (seq - first) * callUnits
}

// finish brings accounts, counters and buckets to where the entries end.
func (s *seeding) finish(ctx context.Context) error {
	seqs, lastAts, heads := make([]int64, len(s.ids)), make([]time.Time, len(s.ids)), make([][]byte, len(s.ids))
	for i := range s.ids {
		seqs[i], lastAts[i], heads[i] = s.each, s.at(i, s.each), s.heads[i][:]
	}
	if _, err := s.book.admin.Exec(ctx, advanceAccountsSQL, s.ids, seqs, lastAts, heads); err != nil {
		return err
	}
	_, err := s.book.admin.Exec(ctx, seedTotalsSQL, s.ids, seqs, lastAts, s.plan.meterID, callUnits,
		bucketName, s.plan.versionID, limitUnits-callUnits)
	return err
}
