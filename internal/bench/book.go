package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// A book is a database with a ledger, and how many entries it must hold. Nil stands for
// none: it holds what it must, and nothing is written to it.
type book struct {
	URL      string // for whoever serves
	OwnerURL string
	admin    *pgx.Conn
	entries  int64
}

// check wants the ledger to hold exactly what was allowed, numbered without gaps.
func (b *book) check(ctx context.Context, allowed int64) error {
	if b == nil {
		return nil
	}
	b.entries += allowed
	var entries, gaps int64
	if err := b.admin.QueryRow(ctx, countsSQL).Scan(&entries, &gaps); err != nil {
		return err
	}
	if entries != b.entries || gaps != 0 {
		return fmt.Errorf("the ledger holds %d entries and %d tenants whose numbers have gaps, after %d allowed answers",
			entries, gaps, b.entries)
	}
	return nil
}

// An extent is how much was written so far.
type extent struct {
	wal  string // where its end is
	size int64  // of tables and indexes
}

// written is what a run made the database write, in bytes.
type written struct {
	WAL    int64  `json:"wal"`
	Images *int64 `json:"wal_page_images"` // of WAL; nil where the server cannot tell
	Growth int64  `json:"growth"`          // of tables and indexes
}

func (b *book) extent(ctx context.Context) (e extent, err error) {
	if b == nil {
		return e, nil
	}
	err = b.admin.QueryRow(ctx, extentSQL).Scan(&e.wal, &e.size)
	return e, err
}

func (b *book) writtenSince(ctx context.Context, before extent) (w written, err error) {
	if b == nil {
		return w, nil
	}
	after, err := b.extent(ctx)
	if err != nil {
		return w, err
	}
	w.Growth = after.size - before.size
	if err := b.admin.QueryRow(ctx, walSQL, before.wal, after.wal).Scan(&w.WAL); err != nil {
		return w, err
	}
	if err := b.admin.QueryRow(ctx, imagesSQL, before.wal, after.wal).Scan(&w.Images); err != nil {
		w.Images = nil // there is no pg_walinspect, or so much was written that the first of it is gone
	}
	return w, nil
}
