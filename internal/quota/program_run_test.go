package quota_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// programMax is how far from its start the clock of a program goes.
const programMax = int64(90 * 24 * time.Hour / time.Microsecond)

// A run carries out one program on engines and model alike.
type run struct {
	t      testing.TB
	bench  *bench
	engine *quota.Engine // of this step
	model  *model

	name     string // of the plan; tenants are named after it
	names    []string
	meters   []string
	start    int64
	asked    []quota.Request // what may be repeated
	instants []int64         // that answers have named
	changed  int64           // when plan or tenants last were
	muddled  int64           // up to here it is not clear which plan was in force when
	log      strings.Builder
}

func (r *run) note(format string, args ...any) {
	clock := time.UnixMicro(r.model.clock).UTC().Format("01-02T15:04:05.000000")
	fmt.Fprintf(&r.log, "\t%s  "+format+"\n", append([]any{clock}, args...)...)
}

// carryOut runs a program on tenants and a plan of its own and returns the first
// disagreement, with all that led to it.
func (b *bench) carryOut(t testing.TB, p program) (failure error) {
	s := p.setting()
	b.programs++
	r := &run{t: t, bench: b, engine: b.engines[0], name: fmt.Sprintf("p%d", b.programs), meters: s.meters, start: s.clock, changed: s.clock}
	r.model = &model{clock: s.clock, meters: b.meters, plans: &planHistory{}, tenants: map[string]*tenant{}}
	b.setClock(t, s.clock)
	zone, err := time.LoadLocation(s.zone)
	if err != nil {
		t.Fatal(err)
	}
	for i := range s.tenants {
		name := fmt.Sprintf("%s-%c", r.name, 'a'+i)
		r.names = append(r.names, name)
		r.model.tenants[name] = &tenant{
			name: name, zone: zone, anchor: s.anchor, meters: b.meters, plans: r.model.plans, kept: map[string]kept{},
		}
	}
	defer func() { // a program that makes code panic is worth shortening, too
		if reason := recover(); reason != nil {
			failure = fmt.Errorf("%s\tpanic: %v", r.log.String(), reason)
		}
	}()
	r.note("%s, months from day %d, plan: %s", s.zone, s.anchor, limitsText(s.limits))
	err = r.begin(s)
	for i := 0; err == nil && i < len(p.steps); i++ {
		err = r.step(p.steps[i])
	}
	if err == nil {
		err = r.finish(rand.New(rand.NewPCG(p.seed, 3)))
	}
	if err != nil {
		return fmt.Errorf("%s\t%w", r.log.String(), err)
	}
	return nil
}

func (r *run) begin(s setting) error {
	config := &catalog.Config{Plans: map[string]catalog.PlanSpec{r.name: specOf(s.limits)}, Tenants: map[string]catalog.TenantSpec{}}
	for _, name := range r.names {
		config.Tenants[name] = catalog.TenantSpec{Plan: r.name, Timezone: s.zone, BillingAnchor: &s.anchor}
	}
	if _, err := r.bench.catalog.Apply(r.t.Context(), "program", config, catalog.ApplyOptions{}); err != nil {
		return err
	}
	r.model.setPlan(s.limits)
	return nil
}

func specOf(limits []*limit) catalog.PlanSpec {
	spec := catalog.PlanSpec{Limits: []catalog.LimitSpec{}}
	for _, l := range limits {
		spec.Limits = append(spec.Limits, l.spec())
	}
	return spec
}

func (r *run) putPlan(limits []*limit) error {
	if _, err := r.bench.catalog.PutPlan(r.t.Context(), "program", r.name, specOf(limits)); err != nil {
		return fmt.Errorf("put plan: %w", err)
	}
	r.model.setPlan(limits)
	r.changed = r.model.clock
	for _, tn := range r.model.tenants {
		if len(tn.expired(r.model.clock)) > 0 {
			r.setClock(r.changed + 1) // an end that is written at that very instant would be before its plan
		}
		if tn.last > r.model.clock {
			r.muddled = max(r.muddled, tn.last)
		}
	}
	return nil
}

func (r *run) putTenant(tn *tenant, status catalog.Status) error {
	spec := catalog.TenantSpec{Plan: r.name, Status: status}
	_, err := r.bench.catalog.PutTenant(r.t.Context(), "program", tn.name, spec)
	tn.remember(r.model.now(tn))
	r.changed = r.model.clock
	if tn.last > r.model.clock {
		r.muddled = max(r.muddled, tn.last)
	}
	return err
}

func (r *run) setClock(to int64) {
	r.model.clock = to
	r.bench.setClock(r.t, to)
}

// ask sends a request, and where it is denied until some instant, may look whether that
// is the very first one at which it passes.
func (r *run) ask(random *rand.Rand, q quota.Request) error {
	want, err := r.send(q)
	if err != nil || want.Retry == nil || random.IntN(3) > 0 {
		return err
	}
	q.DryRun, q.Key = true, ""
	at := r.model.clock + *want.Retry*1000
	if at > r.start+programMax {
		return nil
	}
	early := at - 1000 // told in whole milliseconds, rounded up
	if early > r.model.clock {
		r.setClock(early)
		if told, err := r.send(q); err != nil || told.Allowed {
			return cmp.Or(err, errors.New("it passes before retry_after_ms"))
		}
	}
	r.setClock(at)
	if told, err := r.send(q); err != nil || !told.Allowed {
		return cmp.Or(err, errors.New("it does not pass after retry_after_ms"))
	}
	return nil
}

// send has both answer a request and compares what they say.
func (r *run) send(q quota.Request) (told, error) {
	decision, err := r.engine.Decide(r.t.Context(), q)
	got := tell(decision, err)
	var id uuid.UUID
	if got.Hold != nil {
		id = got.Hold.ID
	}
	key := ""
	if q.Key != "" {
		key = " key " + q.Key[:4]
	}
	r.note("%s%s: %s -> %s", q.Tenant, key, describe(q), got.line())
	want := r.model.do(q, id)
	if want.Replayed || got.Replayed {
		return want, r.checkReplay(q, decision, want, got)
	}
	if diff := r.compare(q.Tenant, want, got); diff != "" {
		return want, fmt.Errorf("design (-) and engine (+) differ:\n%s", diff)
	}
	r.keep(q, decision, want)
	return want, nil
}

// compare returns how two answers differ. A dry hold has no id that anyone could know.
func (r *run) compare(tenant string, want, got told) string {
	got.retryAt, want.retryAt = 0, 0
	for _, t := range []*told{&want, &got} {
		t.Limits = slices.Clone(t.Limits)
		slices.SortFunc(t.Limits, func(a, b toldLimit) int { return cmp.Compare(a.Name, b.Name) })
	}
	return gocmp.Diff(want, got, gocmp.AllowUnexported(told{}))
}

// keep remembers what was answered, so that its repetition can be compared with it.
func (r *run) keep(q quota.Request, d quota.Decision, want told) {
	if want.retryAt > 0 {
		r.instants = append(r.instants, want.retryAt)
	}
	for _, l := range want.Limits {
		if l.Reset > 0 {
			r.instants = append(r.instants, r.model.clock+l.Reset*1000)
		}
	}
	if !want.Allowed || q.DryRun {
		return
	}
	tn := r.model.tenants[q.Tenant]
	answer := textOf(d)
	if q.Key != "" {
		tn.kept[q.Key] = kept{describe(q), answer, want.At}
	}
	for _, h := range tn.holds {
		if h.id == q.Hold && h.resolution != "" {
			h.answer = answer
		}
	}
	if q.Key != "" || q.Kind == ledger.KindSettle || q.Kind == ledger.KindRelease {
		r.asked = append(r.asked, q)
	}
}

// checkReplay compares a repeated answer with the first one.
func (r *run) checkReplay(q quota.Request, d quota.Decision, want, got told) error {
	if want.Replayed != got.Replayed || want.Error != got.Error {
		return fmt.Errorf("replayed: got %t (error %q), want %t (error %q)", got.Replayed, got.Error, want.Replayed, want.Error)
	}
	tn := r.model.tenants[q.Tenant]
	before, ok := r.model.keptAnswer(tn, q.Key)
	if !ok {
		i := slices.IndexFunc(tn.holds, func(h *hold) bool { return h.id == q.Hold })
		before.answer = tn.holds[i].answer
	}
	if answer := textOf(d); !bytes.Equal(answer, before.answer) {
		return fmt.Errorf("replayed\n%s\nwas\n%s", answer, before.answer)
	}
	return nil
}

func textOf(d quota.Decision) []byte {
	if d.Encoded != nil {
		return bytes.TrimSpace(d.Encoded)
	}
	text, err := json.Marshal(d)
	if err != nil {
		panic(err)
	}
	return text
}

// tell takes from an answer of the engine what the model says, too.
func tell(d quota.Decision, err error) told {
	if err != nil {
		var e *quota.Error
		if !errors.As(err, &e) {
			return told{Error: quota.Code(err.Error())}
		}
		return told{Error: e.Code}
	}
	t := told{
		Replayed: d.Replayed, Allowed: d.Allowed, Reason: d.Reason, At: d.DecidedAt.UnixMicro(), Remaining: d.Remaining,
		Retry: d.RetryMS, Delay: d.DelayMS, Hold: d.Hold, Reversal: d.Reversal,
	}
	t.Charges = append(t.Charges, d.Charges...)
	if d.Receipt != nil {
		t.Entries = [2]int64{d.Receipt.FirstSeq, d.Receipt.Seq}
	}
	for _, l := range d.Limits {
		said := toldLimit{
			Name: l.Name, Used: l.Used, Held: l.Held, Remaining: l.Remaining, Violated: l.Violated,
			WouldDeny: l.WouldDeny, Retry: l.RetryMS, Delay: l.DelayMS, Reset: l.ResetMS, Never: l.NeverResets,
		}
		if l.Unlimited {
			said.Remaining = 0
		}
		t.Limits = append(t.Limits, said)
	}
	return t
}

// line is an answer in a few words.
func (t told) line() string {
	text := cmp.Or(string(t.Error), string(t.Reason), "allowed")
	if t.Replayed {
		text += ", replayed"
	}
	if t.Retry != nil {
		text += fmt.Sprintf(", retry after %d ms", *t.Retry)
	}
	if t.Hold != nil {
		text += fmt.Sprintf(", hold %s %s", t.Hold.ID, t.Hold.State)
	}
	if t.Entries[0] > 0 {
		text += fmt.Sprintf(", entry %d", t.Entries[0])
	}
	return text
}

// look compares how all limits of a tenant stand.
func (r *run) look(random *rand.Rand) error {
	return r.lookAt(r.tenant(random), pick(random, "", "ann", "bob"))
}

func (r *run) lookAt(tn *tenant, subject string) error {
	decision, err := r.engine.Limits(r.t.Context(), tn.name, subject)
	got := tell(decision, err)
	r.note("%s: limits of %q", tn.name, subject)
	r.model.tidy(tn)
	want := told{At: r.model.now(tn), Allowed: got.Allowed, Reason: got.Reason}
	r.model.report("", tn, r.model.standing(subject), subject, &want)
	if diff := r.compare(tn.name, want, got); diff != "" {
		return fmt.Errorf("limits: design (-) and engine (+) differ:\n%s", diff)
	}
	return nil
}
