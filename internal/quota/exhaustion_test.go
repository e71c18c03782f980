package quota

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
)

const raisedConfig = `
plans:
  small:
    limits:
      - {name: ten, meter: calls, algorithm: sliding_log, limit: 20, window: 1h}
`

func remembering(c *Config) { c.RememberDenials = true }

// full uses acme's limit up.
func full(t *testing.T, e *Engine) {
	t.Helper()
	if d := mustDecide(t, e, consume("acme", "calls", 10)); !d.Allowed {
		t.Fatalf("got %+v, want it allowed", d)
	}
}

// wantDenied decides r, and fails the test unless it is denied, from memory or not.
func wantDenied(t *testing.T, e *Engine, r Request, remembered bool) Decision {
	t.Helper()
	d := mustDecide(t, e, r)
	if d.Allowed || d.Remembered != remembered {
		t.Fatalf("%+v: got allowed %v, remembered %v; want denied, remembered %v", r, d.Allowed, d.Remembered, remembered)
	}
	return d
}

// batches is how many transactions with decisions an engine has committed.
func batches(t *testing.T, registry *prometheus.Registry) uint64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "quotad_batch_calls" {
			return f.GetMetric()[0].GetHistogram().GetSampleCount()
		}
	}
	t.Fatal("no engine has counted its batches")
	return 0
}

func TestCallsOnAFullLimitNeedFewTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	registry := prometheus.NewRegistry()
	e := w.engine(t, func(c *Config) { remembering(c); c.Metrics = registry })
	full(t, e)
	const calls = 1000
	before, ids := batches(t, registry), map[uuid.UUID]bool{}
	for range calls {
		d := mustDecide(t, e, consume("acme", "calls", 1))
		if d.Allowed || d.Reason != ReasonQuotaExceeded || d.Limits[0].Used != 10 || !d.Limits[0].Violated {
			t.Fatalf("got %+v, want it denied by a full limit", d)
		}
		ids[d.RequestID] = true
	}
	if made := batches(t, registry) - before; made > calls/20 {
		t.Errorf("%d denials took %d transactions", calls, made)
	}
	if len(ids) != calls {
		t.Errorf("%d answers have %d request ids", calls, len(ids))
	}
	if err := e.FlushDenials(t.Context()); err != nil {
		t.Fatal(err)
	}
	var counted int64
	err := w.db.Owner(t).QueryRow(t.Context(),
		"select sum(denials) from quotad.denial_count where limit_name = ''").Scan(&counted)
	if err != nil || counted != calls {
		t.Errorf("%d denials are counted (%v), want %d", counted, err, calls)
	}
	w.verify(t)
}

// A retry of an allowed call must find its answer, and a question is only what was asked.
func TestOnlyTheSameQuestionWithoutAKeyIsAnsweredFromMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, remembering)
	keyed := consume("acme", "calls", 10)
	keyed.Key = "once"
	if d := mustDecide(t, e, keyed); !d.Allowed {
		t.Fatalf("got %+v, want it allowed", d)
	}
	question := consume("acme", "calls", 10)
	wantDenied(t, e, question, false)
	wantDenied(t, e, question, true)
	if d := mustDecide(t, e, keyed); !d.Allowed || !d.Replayed {
		t.Errorf("the retry of an allowed call got %+v", d)
	}
	wantDenied(t, e, dry(question), false)
	other := question
	other.Key = "another"
	wantDenied(t, e, other, false)
	other.Key, other.Subject = "", "ann"
	wantDenied(t, e, other, false)
	wantDenied(t, e, consume("acme", "calls", 9), false)
	if d := mustDecide(t, e, consume("globex", "calls", 10)); !d.Allowed {
		t.Errorf("another tenant got %+v", d)
	}
	results := e.DecideAll(t.Context(), []Request{question, consume("acme", "tokens", 1), keyed})
	if d := results[0].Decision; d.Allowed || !d.Remembered {
		t.Errorf("in a batch the question got %+v", d)
	}
	if !results[1].Decision.Allowed || !results[2].Decision.Replayed {
		t.Errorf("in a batch the others got %+v and %+v", results[1], results[2])
	}
}

func TestARaiseByAnotherInstanceIsSeenWithinASecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, remembering)
	full(t, e)
	question := consume("acme", "calls", 1)
	wantDenied(t, e, question, false)
	other := *w
	other.catalog = catalog.NewStore(w.db.Service(t))
	other.apply(t, raisedConfig)
	remembered := 0
	for {
		started := time.Now()
		d := mustDecide(t, e, question)
		if d.Allowed {
			break
		}
		if !d.Remembered {
			t.Fatalf("the ledger denied what fits: %+v", d)
		}
		remembered++
		if age := started.Sub(d.DecidedAt); age >= time.Second { // both are of this machine's clock
			t.Fatalf("a denial of %v ago was given again", age)
		}
	}
	t.Logf("%d denials until the raise was seen", remembered)
}

// A hold may end at any moment, here and elsewhere: what waits for it is asked anew.
func TestADenialThatAHoldMayEndIsNotRemembered(t *testing.T) {
	t.Parallel()
	w := newWorld(t, callsConfig)
	e := w.engine(t, remembering)
	held := mustDecide(t, e, Request{
		Kind: ledger.KindHold, Tenant: "acme", TTL: time.Minute, Charges: []Charge{{Meter: "calls", Cost: 10}},
	})
	question := consume("acme", "calls", 1)
	wantDenied(t, e, question, false)
	wantDenied(t, e, question, false)
	another := w.engine(t, nil)
	mustDecide(t, another, Request{Kind: ledger.KindRelease, Tenant: "acme", Hold: held.Hold.ID})
	if d := mustDecide(t, e, question); !d.Allowed {
		t.Errorf("after the release: got %+v, want it allowed", d)
	}
}

// What an instance does itself it never denies by what it knew before.
func TestOwnChangesEndRememberedDenialsAtOnce(t *testing.T) {
	t.Parallel()
	question := consume("acme", "calls", 1)
	reversal := Request{Kind: ledger.KindReverse, Tenant: "acme", Seq: 1, Key: "back"}
	for name, act := range map[string]func(t *testing.T, w *world, e *Engine){
		"a plan": func(t *testing.T, w *world, _ *Engine) { w.apply(t, raisedConfig) },
		"a plan of another instance that a stranger's call finds": func(t *testing.T, w *world, e *Engine) {
			other := *w
			other.catalog = catalog.NewStore(w.db.Service(t))
			other.apply(t, raisedConfig)
			mustDecide(t, e, consume("globex", "calls", 1))
		},
		"a tenant's plan": func(t *testing.T, w *world, _ *Engine) {
			w.apply(t, `
plans:
  large:
    limits:
      - {name: ten, meter: calls, algorithm: sliding_log, limit: 20, window: 1h}
tenants:
  acme: {plan: large}
`)
		},
		"a reversal": func(t *testing.T, _ *world, e *Engine) { mustDecide(t, e, reversal) },
		"a reversal that is sent along": func(t *testing.T, _ *world, e *Engine) {
			results := e.DecideAll(t.Context(), []Request{reversal, consume("acme", "calls", 1)})
			if d := results[1].Decision; !d.Allowed {
				t.Errorf("behind the reversal: got %+v, %v", d, results[1].Err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, callsConfig)
			e := w.engine(t, remembering)
			full(t, e)
			wantDenied(t, e, question, false)
			wantDenied(t, e, question, true)
			act(t, w, e)
			if d := mustDecide(t, e, question); !d.Allowed {
				t.Errorf("got %+v, want it allowed", d)
			}
		})
	}
}
