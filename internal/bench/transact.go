package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/loadgen"
	"github.com/quotad/quotad/internal/pg"
)

// sqlSpec is the task of the processes that work on a database without HTTP.
type sqlSpec struct {
	task
	Database string   `json:"database"`
	Names    []string `json:"names"` // of the tenants that requests are spread over
	// Pipelined sends a transaction in two round trips, as quotad does, instead of one
	// for each statement.
	Pipelined bool `json:"pipelined"`
	// Each has the engine decide once for each tenant and end.
	Each bool `json:"each"`
}

// roundTripMax bounds one of them; among callers of one tenant it includes the wait for
// the lock.
const roundTripMax = 30 * time.Second

// runSQL decides with a transaction for each request, on quotad's own schema, with the
// settings of its sessions and the hash of its chain: what somebody would write who
// wants the same guarantees and does not batch. The plan is held in memory, as quotad
// holds it. `quotad verify` finds nothing wrong with the ledger that it leaves.
func runSQL(ctx context.Context, spec sqlSpec) (measurement, error) {
	config, err := pgx.ParseConfig(spec.Database)
	if err != nil {
		return measurement{}, err
	}
	var sessions []*pg.Session
	defer func() {
		for _, s := range sessions {
			s.Close()
		}
	}()
	prepare := func(ctx context.Context, i int) (loadgen.Caller, error) {
		session, err := pg.Connect(ctx, config)
		if err != nil {
			return nil, err
		}
		sessions = append(sessions, session)
		t := transactor{session: session, pipelined: spec.Pipelined}
		if err := t.prepare(ctx); err != nil {
			return nil, err
		}
		random := rand.New(rand.NewPCG(2, uint64(i)))
		return func(ctx context.Context) (loadgen.Outcome, error) {
			allowed, err := t.decide(ctx, spec.Names[random.IntN(len(spec.Names))])
			return outcome(allowed), err
		}, nil
	}
	return spec.run(func(d loadgen.Drive) (loadgen.Measurement, error) { return d.Run(ctx, prepare) })
}

func outcome(allowed bool) loadgen.Outcome {
	if allowed {
		return loadgen.Outcome{Counts: loadgen.Counts{Allowed: 1}}
	}
	return loadgen.Outcome{Counts: loadgen.Counts{Denied: 1}}
}

// A transactor decides one request at a time on one session.
type transactor struct {
	session   *pg.Session
	pipelined bool
	plan      knownPlan
}

// prepare reads what every decision needs and none changes.
func (t *transactor) prepare(ctx context.Context) error {
	var b pgx.Batch
	b.Queue(lockTimeoutSQL)
	b.Queue(planSQL, meterName, planName).QueryRow(t.plan.scan)
	if err := t.session.Send(ctx, &b, roundTripMax); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	return nil
}

// A standing is what a decision reads under the account's lock.
type standing struct {
	tenantID     int64
	seq          int64
	head         [32]byte
	at           time.Time
	units, calls int64
	before       *int64 // the running total before the window; nil when it is empty
	left         *int64 // in the bucket at leftAt; nil when it was never used
	leftAt       *time.Time
}

// decide locks the account, reads counter, window edge and bucket, decides, and writes
// entry, counter, bucket and account.
func (t *transactor) decide(ctx context.Context, tenant string) (allowed bool, err error) {
	var read pgx.Batch
	var s standing
	pg.Begin(&read)
	queueStanding(&read, tenant, t.plan.meterID, &s)
	if err := t.send(ctx, &read); err != nil {
		return false, fmt.Errorf("read the account: %w", err)
	}
	if s.tenantID == 0 {
		return false, fmt.Errorf("there is no tenant %q", tenant)
	}
	inWindow, inBucket := s.used()
	var write pgx.Batch
	if allowed = inWindow+callUnits <= limitUnits && inBucket+callUnits <= limitUnits; allowed {
		p, err := t.entry(tenant, []int64{inWindow, inBucket}, &s)
		if err != nil {
			return false, err
		}
		queuePosting(&write, p, s.calls+1, limitUnits-inBucket-callUnits)
	}
	if !t.pipelined {
		if err := t.send(ctx, &write); err != nil {
			return false, fmt.Errorf("write: %w", err)
		}
		write = pgx.Batch{}
	}
	return allowed, t.session.Commit(ctx, &write, roundTripMax)
}

// used is what the two limits count.
func (s *standing) used() (inWindow, inBucket int64) {
	if s.before != nil {
		inWindow = s.units - *s.before
	}
	if s.left != nil {
		inBucket = bucketUsed(limitUnits-*s.left, s.at.Sub(*s.leftAt))
	}
	return inWindow, inBucket
}

// entry makes the next entry of an account's chain.
func (t *transactor) entry(tenant string, used []int64, s *standing) (*ledger.Posting, error) {
	requestID, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	p := &ledger.Posting{TenantID: s.tenantID, MeterID: t.plan.meterID, Entry: ledger.Entry{
		Tenant: tenant, Seq: s.seq + 1, At: s.at, EffectiveAt: s.at, Kind: ledger.KindConsume, Meter: meterName,
		Units: callUnits, Total: s.units + callUnits, RequestID: requestID, BatchID: uuid.New(),
		PlanVersionID: t.plan.versionID, SpecDigest: t.plan.specDigest, LimitsUsed: used,
	}}
	p.Hash = p.ChainHash(s.head)
	return p, nil
}

// send sends the statements of b, at once or one after the other.
func (t *transactor) send(ctx context.Context, b *pgx.Batch) error {
	if t.pipelined {
		return t.session.Send(ctx, b, roundTripMax)
	}
	for _, query := range b.QueuedQueries {
		one := pgx.Batch{QueuedQueries: []*pgx.QueuedQuery{query}}
		if err := t.session.Send(ctx, &one, roundTripMax); err != nil {
			return err
		}
	}
	return nil
}

// runCommits commits one row at a time: what a durable answer costs at least.
func runCommits(ctx context.Context, spec sqlSpec) (measurement, error) {
	conn, err := pgx.Connect(ctx, spec.Database)
	if err != nil {
		return measurement{}, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	prepare := func(context.Context, int) (loadgen.Caller, error) {
		n := int64(0)
		return func(ctx context.Context) (loadgen.Outcome, error) {
			n++
			_, err := conn.Exec(ctx, commitSQL, n)
			return outcome(err == nil), err
		}, nil
	}
	return spec.run(func(d loadgen.Drive) (loadgen.Measurement, error) { return d.Run(ctx, prepare) })
}
