package sim

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A Querier runs a query: a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// A Ledger is everything that a database holds of its tenants.
type Ledger struct {
	meters   map[int32]string
	charging map[string]bool // meters of which an expired hold is used
	versions map[int64]*version
	tenants  []*tenant
	byID     map[int64]*tenant
	byName   map[string]*tenant

	over int // entries that passed a limit, which checks find
}

// A tenant is what the database holds of one tenant.
type tenant struct {
	id       int64
	name     string
	zone     *time.Location
	anchor   int
	moved    bool // had another calendar once
	seq      int64
	lastAt   int64 // microseconds, as are all instants here
	headHash string
	terms    []terms // in order
	entries  []entry // by seq
	counters map[counterKey]counter
	levels   map[levelKey]storedLevel
	answers  []keptAnswer
	subjects map[int64]string

	// What checks find.
	subjectIDs map[string]int64
	requests   map[uuid.UUID]*request
	kept       map[string][sha256.Size]byte // of the answer by key
}

// An entry is one row of the ledger.
type entry struct {
	seq, at, effectiveAt int64
	kind                 Kind
	meter                string
	subject              int64
	units, held          int64
	total, subjectTotal  int64
	requestID, batchID   uuid.UUID
	refSeq               int64
	version              int64
	overrideSet          int64
	limitsUsed           []int64
	limitsHeld           []int64 // nil: nothing was
	hash                 string
	tag                  string
}

type counterKey struct {
	meter   string
	subject int64
}

type counter struct {
	units, held, calls, lastAt int64
	returned                   int64
}

type levelKey struct {
	meter   string
	limit   string
	subject int64
}

type storedLevel struct {
	version, overrideSet          int64
	units, remainder, denominator int64
	at                            int64
}

type keptAnswer struct {
	key      string
	at       int64
	firstSeq int64
	answer   []byte
}

// Entries returns how many entries there are.
func (l *Ledger) Entries() int {
	n := 0
	for _, t := range l.tenants {
		n += len(t.entries)
	}
	return n
}

// Units returns the sum of all entries' units on one meter.
func (l *Ledger) Units(meter string) int64 {
	var sum int64
	for _, t := range l.tenants {
		for i := range t.entries {
			if t.entries[i].meter == meter {
				sum += t.entries[i].units
			}
		}
	}
	return sum
}

// EntriesOf returns how many entries a tenant has.
func (l *Ledger) EntriesOf(tenant string) int {
	if t := l.byName[tenant]; t != nil {
		return len(t.entries)
	}
	return 0
}

// Read reads the ledger from db, which should be one repeatable-read transaction.
func Read(ctx context.Context, db Querier) (*Ledger, error) {
	l := &Ledger{
		meters: make(map[int32]string), charging: make(map[string]bool), versions: make(map[int64]*version),
		byID: make(map[int64]*tenant), byName: make(map[string]*tenant),
	}
	for _, part := range []struct {
		what string
		read func(context.Context, Querier) error
	}{
		{"meters", l.readMeters},
		{"plan versions", l.readVersions},
		{"accounts", l.readAccounts},
		{"terms", l.readTerms},
		{"subjects", l.readSubjects},
		{"entries", l.readEntries},
		{"counters", l.readCounters},
		{"levels", l.readLevels},
		{"kept answers", l.readAnswers},
	} {
		if err := part.read(ctx, db); err != nil {
			return nil, fmt.Errorf("read %s: %w", part.what, err)
		}
	}
	return l, nil
}

// each runs a query and calls row after every row is scanned into targets.
func each(ctx context.Context, db Querier, sql string, targets []any, row func() error, args ...any) error {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, targets, row)
	return err
}

// of returns the tenant a row belongs to; one without an account gets a name of its own.
func (l *Ledger) of(id int64) *tenant {
	if t := l.byID[id]; t != nil {
		return t
	}
	return l.add(&tenant{id: id, name: fmt.Sprintf("(no account %d)", id), zone: time.UTC, anchor: 1})
}

func (l *Ledger) add(t *tenant) *tenant {
	t.counters, t.levels = make(map[counterKey]counter), make(map[levelKey]storedLevel)
	t.subjects, t.subjectIDs = make(map[int64]string), map[string]int64{"": 0}
	l.tenants = append(l.tenants, t)
	l.byID[t.id], l.byName[t.name] = t, t
	return t
}

// Every query of this package reads a whole table in one sequential scan and takes no
// lock.
const metersSQL = `
select m.meter_id, m.meter, m.on_expiry = 'charge'
from quotad.meter m`

func (l *Ledger) readMeters(ctx context.Context, db Querier) error {
	var id int32
	var name string
	var charges bool
	return each(ctx, db, metersSQL, []any{&id, &name, &charges}, func() error {
		l.meters[id], l.charging[name] = name, charges
		return nil
	})
}

const versionsSQL = `
select v.plan_version_id, v.plan, v.version, v.spec, v.created_at
from quotad.plan_version v`

func (l *Ledger) readVersions(ctx context.Context, db Querier) error {
	var id int64
	var plan string
	var number int32
	var spec []byte
	var at time.Time
	return each(ctx, db, versionsSQL, []any{&id, &plan, &number, &spec, &at}, func() error {
		v, err := parseVersion(plan, number, spec)
		if err == nil {
			v.id, v.at = id, at.UnixMicro()
			l.versions[id] = v
		}
		return err
	})
}

const accountsSQL = `
select a.tenant_id, a.tenant, a.timezone, a.billing_anchor, a.calendar_past is not null, a.seq, a.last_at, a.head_hash
from quotad.account a
order by a.tenant_id`

func (l *Ledger) readAccounts(ctx context.Context, db Querier) error {
	var t tenant
	var zone string
	var lastAt time.Time
	var hash []byte
	return each(ctx, db, accountsSQL, []any{&t.id, &t.name, &zone, &t.anchor, &t.moved, &t.seq, &lastAt, &hash}, func() (err error) {
		row := t
		row.lastAt, row.headHash = lastAt.UnixMicro(), hex.EncodeToString(hash)
		row.zone, err = time.LoadLocation(zone)
		l.add(&row)
		return err
	})
}

const subjectsSQL = `
select s.tenant_id, s.subject_id, coalesce(s.subject, '(erased)')
from quotad.subject s`

func (l *Ledger) readSubjects(ctx context.Context, db Querier) error {
	var tenantID, id int64
	var text string
	return each(ctx, db, subjectsSQL, []any{&tenantID, &id, &text}, func() error {
		t := l.of(tenantID)
		t.subjects[id], t.subjectIDs[text] = text, id
		return nil
	})
}

const entriesSQL = `
select e.tenant_id, e.seq, e.at, e.effective_at, e.kind, e.meter_id, e.subject_id, e.units, e.held, e.total,
       e.subject_total, e.request_id, e.batch_id, e.ref_seq, e.plan_version_id, e.override_set_id, e.limits_used,
       e.limits_held, e.hash, coalesce(d.dims ->> $1, '')
from quotad.entry e
left join quotad.entry_dims d on d.tenant_id = e.tenant_id and d.seq = e.seq and d.at = e.at
order by e.tenant_id, e.seq, e.at`

func (l *Ledger) readEntries(ctx context.Context, db Querier) error {
	var tenantID int64
	var meterID int32
	var at, effectiveAt time.Time
	var hash []byte
	var e entry
	return each(ctx, db, entriesSQL, []any{
		&tenantID, &e.seq, &at, &effectiveAt, &e.kind, &meterID, &e.subject, &e.units, &e.held, &e.total,
		&e.subjectTotal, &e.requestID, &e.batchID, &e.refSeq, &e.version, &e.overrideSet, &e.limitsUsed, &e.limitsHeld, &hash, &e.tag,
	}, func() error {
		row := e
		row.at, row.effectiveAt, row.hash = at.UnixMicro(), effectiveAt.UnixMicro(), hex.EncodeToString(hash)
		row.meter = l.meterName(meterID)
		t := l.of(tenantID)
		t.entries = append(t.entries, row)
		e.limitsUsed, e.limitsHeld = nil, nil // the row owns them
		return nil
	}, TagDim)
}

func (l *Ledger) meterName(id int32) string {
	if name, ok := l.meters[id]; ok {
		return name
	}
	return fmt.Sprintf("(no meter %d)", id)
}

const countersSQL = `
select t.tenant_id, t.meter_id, t.subject_id, t.units, t.held, t.calls, t.last_at, t.returned
from quotad.meter_total t`

func (l *Ledger) readCounters(ctx context.Context, db Querier) error {
	var tenantID int64
	var meterID int32
	var key counterKey
	var c counter
	var lastAt time.Time
	return each(ctx, db, countersSQL, []any{&tenantID, &meterID, &key.subject, &c.units, &c.held, &c.calls, &lastAt, &c.returned}, func() error {
		key.meter, c.lastAt = l.meterName(meterID), lastAt.UnixMicro()
		l.of(tenantID).counters[key] = c
		return nil
	})
}

const levelsSQL = `
select t.tenant_id, t.meter_id, t.subject_id, l.key, array(select json_array_elements_text(l.value)::bigint)
from quotad.meter_total t
cross join lateral json_each(t.levels) l`

func (l *Ledger) readLevels(ctx context.Context, db Querier) error {
	var tenantID int64
	var meterID int32
	var key levelKey
	var n []int64
	return each(ctx, db, levelsSQL, []any{&tenantID, &meterID, &key.subject, &key.limit, &n}, func() error {
		if len(n) != 6 {
			return fmt.Errorf("the level of limit %s has %d numbers", key.limit, len(n))
		}
		key.meter = l.meterName(meterID)
		l.of(tenantID).levels[key] = storedLevel{n[0], n[1], n[2], n[3], n[4], n[5]}
		return nil
	})
}

const answersSQL = `
select i.tenant_id, i.key, i.created_at, i.first_seq, i.answer
from quotad.idempotency i
order by i.tenant_id, i.first_seq, i.key`

func (l *Ledger) readAnswers(ctx context.Context, db Querier) error {
	var tenantID int64
	var a keptAnswer
	var at time.Time
	return each(ctx, db, answersSQL, []any{&tenantID, &a.key, &at, &a.firstSeq, &a.answer}, func() error {
		row := a
		row.at = at.UnixMicro()
		t := l.of(tenantID)
		t.answers = append(t.answers, row)
		a.answer = nil // the row owns it
		return nil
	})
}
