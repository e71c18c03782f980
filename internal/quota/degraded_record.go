package quota

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	// grantsPosted is how many grants are entered into the ledger at once.
	grantsPosted = 256
	// grantsLookEvery is how soon grants are noticed that nobody announced.
	grantsLookEvery = 2 * time.Second
)

// neverEntered is why the ledger will never take a grant: what it is of is gone.
var neverEntered = []Code{CodeInvalidRequest, CodeTenantNotFound, CodeMeterNotFound, CodeAmountOverflow}

// A grant is what was granted without the database, as it is kept until it is in the
// ledger. Its JSON form is on disk: fields may be added, none may change.
type grant struct {
	RequestID uuid.UUID         `json:"request_id"`
	At        time.Time         `json:"at"`
	Tenant    string            `json:"tenant"`
	Subject   string            `json:"subject,omitzero"`
	Charges   []ChargeResult    `json:"charges"`
	Dims      map[string]string `json:"dims,omitzero"`

	// Key and what it is bound to, for a retry that comes later.
	Key         string          `json:"key,omitzero"`
	Fingerprint Hash            `json:"fingerprint"`
	Answer      json.RawMessage `json:"answer,omitzero"`

	decision Decision
	done     chan struct{} // closed when it is on disk, or is not to be
}

// keyedGrant names a grant by its caller's key.
type keyedGrant struct{ tenant, key string }

// once runs decide, unless the request's key names a grant already: then it is answered
// as that one was.
func (g *degrader) once(r *Request, decide func() (Decision, error)) (Decision, error) {
	if r.Key == "" {
		return decide()
	}
	name := keyedGrant{r.Tenant, r.Key}
	for {
		g.mu.Lock()
		have := g.keyed[name]
		if have == nil {
			have = &grant{Fingerprint: r.fingerprint(), done: make(chan struct{})}
			g.keyed[name] = have
			g.mu.Unlock()
			return g.first(name, have, decide)
		}
		g.mu.Unlock()
		<-have.done // its write ends
		g.mu.Lock()
		granted := g.keyed[name] == have
		g.mu.Unlock()
		switch {
		case !granted:
			continue // it was denied, or could not be recorded
		case have.Fingerprint != Hash(r.fingerprint()):
			return Decision{}, errKeyReused()
		}
		d := have.decision
		d.Replayed = true
		return d, nil
	}
}

// first decides the first request of a key, and keeps the answer if it was granted.
func (g *degrader) first(name keyedGrant, made *grant, decide func() (Decision, error)) (Decision, error) {
	d, err := decide()
	g.mu.Lock()
	defer g.mu.Unlock()
	defer close(made.done)
	if err != nil || !d.Allowed {
		delete(g.keyed, name)
		return d, err
	}
	made.decision = d
	return d, nil
}

// record writes a grant to disk.
func (g *degrader) record(r *Request, d *Decision) error {
	kept := grant{
		RequestID: d.RequestID, At: d.DecidedAt, Tenant: r.Tenant, Subject: r.Subject,
		Charges: d.Charges, Dims: r.Dims, Key: r.Key, Fingerprint: r.fingerprint(),
	}
	if r.Key != "" {
		answer, err := d.JSON()
		if err != nil {
			return fmt.Errorf("encode the answer: %w", err)
		}
		kept.Answer, d.Encoded = answer, answer
	}
	text, err := json.Marshal(&kept)
	if err != nil {
		return fmt.Errorf("encode a grant: %w", err)
	}
	return g.spool.Append(text)
}

// recorded answers a request whose key names a grant of this instance that is not in the
// ledger yet, whether the database is there again or not: the ledger does not know it.
func (g *degrader) recorded(r *Request) (result Result, known bool) {
	if g.spool == nil || r.Key == "" || r.DryRun {
		return Result{}, false
	}
	g.mu.Lock()
	have := g.keyed[keyedGrant{r.Tenant, r.Key}]
	g.mu.Unlock()
	if have == nil {
		return Result{}, false
	}
	select {
	case <-have.done:
	default:
		return Result{}, false // its write has not ended: once waits for it
	}
	if !have.decision.Allowed {
		return Result{}, false // it could not be recorded
	}
	if have.Fingerprint != Hash(r.fingerprint()) {
		return Result{Err: errKeyReused()}, true
	}
	d := have.decision
	d.Replayed = true
	g.engine.metrics.degraded.WithLabelValues("replayed").Inc()
	return Result{Decision: d}, true
}

func errKeyReused() *Error {
	return &Error{Code: CodeKeyReused, Faults: []Fault{{"Idempotency-Key", "was used before for another request"}}}
}

// remember takes up a grant of an earlier process.
func (g *degrader) remember(record []byte) {
	kept, err := readGrant(record)
	if err != nil || kept.Key == "" {
		return // whoever posts it says what is wrong
	}
	g.keyed[keyedGrant{kept.Tenant, kept.Key}] = kept
}

// readGrant reads a grant from its form on disk.
func readGrant(record []byte) (*grant, error) {
	kept := &grant{done: make(chan struct{})}
	close(kept.done)
	if err := json.Unmarshal(record, kept); err != nil {
		return nil, fmt.Errorf("read a grant: %w", err)
	}
	if len(kept.Answer) > 0 {
		if err := json.Unmarshal(kept.Answer, &kept.decision); err != nil {
			return nil, fmt.Errorf("read a grant's answer: %w", err)
		}
		kept.decision.Encoded = kept.Answer
	}
	return kept, nil
}

// pending returns how many grants are not in the ledger yet.
func (g *degrader) pending() int {
	if g.spool == nil {
		return 0
	}
	return g.spool.Pending()
}

// warnings says what someone should look at.
func (g *degrader) warnings() (warnings []string) {
	if n := g.pending(); n > 0 {
		warnings = append(warnings, fmt.Sprintf("%d requests granted without the database are not in the ledger yet", n))
	}
	if g.spool != nil {
		names, err := g.spool.Leftovers()
		if len(names) > 0 {
			warnings = append(warnings, "grants that are not in the ledger wait for a person in --degraded-dir: "+strings.Join(names, ", "))
		}
		if err != nil {
			warnings = append(warnings, "--degraded-dir: "+err.Error())
		}
		return warnings
	}
	if snapshot := g.engine.snapshot.Load(); snapshot != nil {
		for _, plan := range snapshot.Plans() {
			for i := range plan.Limits {
				if plan.Limits[i].OnError != "" {
					return append(warnings, fmt.Sprintf(
						"limit %s of plan %s is on_error: %s and --degraded-dir is not set: without the database nothing is granted",
						plan.Limits[i].Name, plan.Name, plan.Limits[i].OnError))
				}
			}
		}
	}
	return warnings
}

// run enters grants into the ledger while the database is there, until ctx ends.
func (g *degrader) run(ctx context.Context) {
	for ctx.Err() == nil && g.spool != nil {
		if g.pending() == 0 || g.engine.reach.isAway() || !g.post(ctx) {
			pause(ctx, grantsLookEvery)
		}
	}
}

// post enters the grants of the oldest file into the ledger and removes it. A crash before
// that, or an error, makes it do so again: the ledger knows what it has.
func (g *degrader) post(ctx context.Context) (done bool) {
	log := g.engine.config.Log
	batch, err := g.spool.Oldest()
	if err != nil || batch == nil {
		if err != nil {
			log.Error("grants cannot be read", "error", err)
		}
		return false
	}
	if batch.Damaged > 0 {
		log.Error("grants are damaged; their file is kept", "file", batch.File, "lines", batch.Damaged)
	}
	var grants []*grant
	entered := 0
	for _, record := range batch.Records {
		kept, err := readGrant(record)
		if err != nil {
			if !g.setAside(ctx, record, err) {
				return false
			}
			continue
		}
		grants = append(grants, kept)
	}
	for len(grants) > 0 {
		n := min(len(grants), grantsPosted)
		for i, err := range g.engine.adjust(ctx, grants[:n]) {
			if err == nil {
				entered++
			} else if !g.refused(ctx, grants[i], err) {
				return false
			}
		}
		g.forget(grants[:n])
		grants = grants[n:]
	}
	if err := g.spool.Remove(batch); err != nil {
		log.Error("grants that are in the ledger cannot be removed", "error", err)
		return false
	}
	log.Info("grants are in the ledger", "grants", entered)
	return true
}

// refused sets a grant aside that the ledger will never take; false if it may later.
func (g *degrader) refused(ctx context.Context, kept *grant, err error) bool {
	var refusal *Error
	if ctx.Err() != nil || !errors.As(err, &refusal) || !slices.Contains(neverEntered, refusal.Code) {
		g.engine.config.Log.LogAttrs(ctx, g.engine.health.retryLevel(), "a grant is not in the ledger yet", slog.Any("error", err))
		return false
	}
	record, encodeErr := json.Marshal(kept)
	return encodeErr == nil && g.setAside(ctx, record, err)
}

func (g *degrader) setAside(ctx context.Context, record []byte, cause error) bool {
	path, err := g.spool.SetAside(record)
	if err != nil {
		g.engine.config.Log.Error("a grant that cannot be entered into the ledger cannot be set aside", "file", path, "cause", cause, "error", err)
		return false
	}
	g.engine.config.Log.Error("a grant cannot be entered into the ledger and is set aside", "file", path, "cause", cause)
	return true
}

// forget drops the keys of grants that are in the ledger, which knows them now.
func (g *degrader) forget(grants []*grant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, kept := range grants {
		if kept.Key != "" {
			delete(g.keyed, keyedGrant{kept.Tenant, kept.Key})
		}
	}
}
