package ledger

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/quotad/quotad/internal/pg"
	"github.com/quotad/quotad/internal/pgtest"
)

// bound is far beyond what a round trip here takes; it only ends a broken test.
const bound = 30 * time.Second

// Entries of these tests lie around the borders of the partitions of March and April.
var (
	march = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	april = time.Date(2026, 4, 1, 0, 0, 0, 0, time.UTC)
	may   = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
)

// world is a database with meters and a plan, and a session that writes entries to it.
type world struct {
	db         *pgtest.DB
	store      *Store
	session    *pg.Session
	meters     map[string]int32
	versionID  int64
	specDigest [32]byte
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{db: pgtest.New(t), meters: make(map[string]int32)}
	w.store = NewStore(w.db.Service(t))
	w.session = w.connect(t)
	w.db.Exec(t, "select quotad.ensure_partitions('2026-02-01', '2026-06-01')")
	owner := w.db.Owner(t)
	for _, meter := range []string{"calls", "tokens"} {
		var id int32
		err := owner.QueryRow(t.Context(),
			"insert into quotad.meter (meter, unit, catalog_version) values ($1, 'unit', 0) returning meter_id", meter).Scan(&id)
		if err != nil {
			t.Fatal(err)
		}
		w.meters[meter] = id
	}
	const spec = `{"limits": []}`
	w.specDigest = sha256.Sum256([]byte(spec))
	err := owner.QueryRow(t.Context(), `insert into quotad.plan_version (plan, version, spec, created_by)
		values ('pro', 3, $1, 'test') returning plan_version_id`, spec).Scan(&w.versionID)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// connect opens a session of its own, closed when the test ends.
func (w *world) connect(t testing.TB) *pg.Session {
	t.Helper()
	config, err := pgx.ParseConfig(w.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	session, err := pg.Connect(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

// send runs what queue queues in one transaction of session and commits it.
func send(t testing.TB, session *pg.Session, queue func(*pgx.Batch)) {
	t.Helper()
	var queries pgx.Batch
	pg.Begin(&queries)
	queue(&queries)
	if err := session.Commit(t.Context(), &queries, bound); err != nil {
		t.Fatal(err)
	}
}

// levelsOf are the levels that stand beside a total; some have none.
func levelsOf(t Total) []byte {
	if t.Calls%2 == 0 {
		return nil
	}
	return fmt.Appendf(nil, `{"at": [%d]}`, t.Calls)
}

// A journal is what a test wrote for one tenant, and the state to go on from.
type journal struct {
	world    *world
	account  Account
	totals   map[totalKey]Total
	subjects map[string]NewSubject
	postings []Posting
}

func (w *world) journal(t testing.TB, tenant string) *journal {
	t.Helper()
	hash := genesis(tenant)
	j := &journal{world: w, totals: make(map[totalKey]Total), subjects: make(map[string]NewSubject)}
	j.account = Account{Tenant: tenant, HeadHash: hash, LastAt: epoch()}
	err := w.db.Owner(t).QueryRow(t.Context(),
		"insert into quotad.account (tenant, plan, head_hash) values ($1, 'pro', $2) returning tenant_id", tenant, hash[:]).
		Scan(&j.account.TenantID)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// checks know the one plan version and dislike nothing.
func (w *world) checks(tenant string) Checks {
	return Checks{
		Genesis: genesis(tenant),
		Rules: func(e *Entry) (string, error) {
			e.Plan, e.PlanVersion, e.SpecDigest = "pro", 3, w.specDigest
			return "", nil
		},
		Visit: func(*Entry) string { return "" },
	}
}

func genesis(tenant string) [32]byte { return sha256.Sum256([]byte(tenant)) }

// A draft is what a test says of an entry; the rest follows from what came before.
type draft struct {
	at      time.Time
	meter   string
	subject string
	units   int64
	of      int64 // the entry that is given back from, or 0
	dims    map[string]string
	json    string // of dims
}

// write appends entries as a batch of the engine would.
func (j *journal) write(t testing.TB, drafts ...draft) {
	t.Helper()
	var write Write
	changed := make(map[totalKey]bool)
	batchID := uuid.New()
	for _, d := range drafts {
		p := j.posting(&write, d)
		p.BatchID = batchID
		p.Hash = p.ChainHash(j.account.HeadHash)
		j.account.Seq, j.account.HeadHash, j.account.LastAt = p.Seq, p.Hash, p.At
		write.Postings = append(write.Postings, p)
		changed[totalKey{meter: d.meter}] = true
		changed[totalKey{d.meter, p.SubjectID}] = true
	}
	for key := range changed {
		write.Totals = append(write.Totals, TotalRow{
			TenantID: j.account.TenantID, MeterID: j.world.meters[key.meter], SubjectID: key.subjectID, Total: j.totals[key],
			Levels: levelsOf(j.totals[key]),
		})
	}
	write.Accounts = []Account{j.account}
	j.postings = append(j.postings, write.Postings...)
	send(t, j.world.session, func(b *pgx.Batch) { QueueWrite(b, &write) })
}

// posting counts d and returns its entry, but for its hash.
func (j *journal) posting(write *Write, d draft) Posting {
	subject, known := j.subjects[d.subject]
	if d.subject != "" && !known {
		j.account.SubjectSeq++
		subject = NewSubject{
			TenantID: j.account.TenantID, SubjectID: j.account.SubjectSeq, Subject: d.subject,
			Salt: []byte("0123456789abcdef"), Digest: Digest([]byte("0123456789abcdef"), []byte(d.subject)),
		}
		j.subjects[d.subject] = subject
		write.Subjects = append(write.Subjects, subject)
	}
	p := Posting{
		Entry: Entry{
			Tenant: j.account.Tenant, Seq: j.account.Seq + 1, At: d.at, EffectiveAt: d.at, Kind: KindConsume, Meter: d.meter,
			Subject: d.subject, SubjectID: subject.SubjectID, Units: d.units, RequestID: uuid.New(),
			PlanVersionID: j.world.versionID, Plan: "pro", PlanVersion: 3, SpecDigest: j.world.specDigest, LimitsUsed: []int64{j.account.Seq, 5},
			Dims: d.dims, SubjectDigest: subject.Digest,
		},
		TenantID: j.account.TenantID, MeterID: j.world.meters[d.meter],
	}
	if d.of != 0 {
		p.Kind, p.RefSeq, p.EffectiveAt = KindReverse, d.of, j.postings[d.of-1].At
	}
	if d.dims != nil {
		p.DimsSalt, p.DimsJSON = []byte("fedcba9876543210"), []byte(d.json)
		p.DimsDigest = Digest(p.DimsSalt, p.DimsJSON)
	}
	p.Total = j.count(totalKey{meter: d.meter}, d)
	if d.subject != "" {
		p.SubjectTotal = j.count(totalKey{d.meter, subject.SubjectID}, d)
	}
	return p
}

func (j *journal) count(key totalKey, d draft) int64 {
	total, known := j.totals[key]
	if !known {
		total.LastAt = epoch()
	}
	total.Units += max(0, d.units)
	total.Returned += max(0, -d.units)
	if d.of == 0 {
		total.Calls++
	}
	if d.units > 0 {
		total.LastAt = d.at
	}
	j.totals[key] = total
	return total.Units
}

// entries returns what was written, as it has to be read back.
func (j *journal) entries() []Entry {
	entries := make([]Entry, len(j.postings))
	for i, p := range j.postings {
		entries[i] = p.Entry
		entries[i].SpecDigest = [32]byte{} // only verifying needs it
	}
	return entries
}

// counted reports whether a question about a meter and a subject ("" for the tenant)
// is about e.
func counted(e *Entry, meter, subject string) bool {
	return e.Meter == meter && (subject == "" || e.Subject == subject)
}

func (j *journal) String() string {
	text := ""
	for _, p := range j.postings {
		text += fmt.Sprintf("%d: %s %s %q %d\n", p.Seq, p.At.Format(instantFormat), p.Meter, p.Subject, p.Units)
	}
	return text
}
