package quota_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// finish holds the ledger, what is read of the past, and verify to the model. What reads
// many partitions is slow, and looks at one tenant only.
func (r *run) finish(random *rand.Rand) error {
	if random.IntN(4) == 0 {
		if err := r.outlive(random); err != nil {
			return err
		}
	}
	for _, name := range r.names {
		tn := r.model.tenants[name]
		if err := cmp.Or(r.lookAt(tn, ""), r.checkEntries(tn), r.checkVerify(tn)); err != nil {
			return fmt.Errorf("%s, in the end: %w", name, err)
		}
	}
	tn := r.tenant(random)
	if err := cmp.Or(r.checkUsage(tn, random), r.checkPast(tn, random)); err != nil {
		return fmt.Errorf("%s, in the end: %w", tn.name, err)
	}
	return nil
}

// outlive repeats a request in the last instant in which its key gives the first answer
// again, and in the one behind it.
func (r *run) outlive(random *rand.Rand) error {
	keyed := slices.DeleteFunc(slices.Clone(r.asked), func(q quota.Request) bool { return q.Key == "" })
	if len(keyed) == 0 {
		return nil
	}
	q := pick(random, keyed...)
	end := r.model.tenants[q.Tenant].kept[q.Key].at + keptFor
	for _, at := range []int64{end - 1, end} {
		if at < r.model.clock || at > r.start+programMax {
			continue
		}
		r.setClock(at)
		if _, err := r.send(q); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) checkVerify(tn *tenant) error {
	result, err := r.bench.verifier.Verify(r.t.Context(), r.bench.db.Owner(r.t), tn.name, nil)
	if err != nil {
		return err
	}
	if len(result.Findings) > 0 {
		return fmt.Errorf("verify finds %v", result.Findings)
	}
	return nil
}

// checkEntries compares the ledger with the model's facts, one by one.
func (r *run) checkEntries(tn *tenant) error {
	page, err := r.bench.ledger.Entries(r.t.Context(), ledger.EntryQuery{Tenant: tn.name, Limit: ledger.EntriesMax})
	if err != nil {
		return err
	}
	var got []fact
	for _, e := range page.Entries {
		f := fact{
			kind: e.Kind, at: e.At.UnixMicro(), effective: e.EffectiveAt.UnixMicro(), meter: e.Meter, subject: e.Subject,
			units: e.Units, corrects: -1,
		}
		if e.Units < 0 {
			f.corrects = int(e.RefSeq) - 1
		}
		if e.Kind == ledger.KindHold || e.Kind == ledger.KindExtend {
			f.effective = f.at // there it is the end of the hold
		}
		got = append(got, f)
	}
	if diff := gocmp.Diff(tn.facts, got, gocmp.AllowUnexported(fact{})); diff != "" {
		return fmt.Errorf("entries of design (-) and engine (+) differ:\n%s", diff)
	}
	return nil
}

// checkUsage compares the sum that is told of a meter.
func (r *run) checkUsage(tn *tenant, random *rand.Rand) error {
	q := quota.UsageQuery{
		Tenant: tn.name, Meter: pick(random, r.meters...), Subject: pick(random, "", "", "ann"),
		From: time.UnixMicro(r.start - 1), Bucket: catalog.CalendarDay,
	}
	want, seen := int64(0), q.Subject == ""
	for _, f := range tn.facts {
		seen = seen || f.subject == q.Subject
		if f.meter == q.Meter && (q.Subject == "" || f.subject == q.Subject) {
			want += f.units
		}
	}
	if !seen {
		return nil // nobody knows it yet
	}
	usage, err := r.reader().Usage(r.t.Context(), q)
	if err != nil {
		return fmt.Errorf("usage: %w", err)
	}
	sum := int64(0)
	for _, units := range usage.Series[0].Units {
		sum += units
	}
	if usage.Total != want || sum != want {
		return fmt.Errorf("usage of %s by %q is %d, its buckets' %d, want %d", q.Meter, q.Subject, usage.Total, sum, want)
	}
	return nil
}

func (r *run) reader() *quota.Reader {
	return quota.NewReader(r.bench.db.Owner(r.t), r.bench.catalog)
}

// standing are the limits that a look at a tenant, or at one of its subjects, shows.
func (m *model) standing(subject string) (limits []*limit) {
	for _, l := range m.plan {
		if l.mode != catalog.ModeOff && (!l.bySubject || subject != "") {
			limits = append(limits, l)
		}
	}
	return limits
}

// checkPast compares how limits stood at some instant, mostly one of an entry.
func (r *run) checkPast(tn *tenant, random *rand.Rand) error {
	at := r.start + random.Int64N(max(1, r.model.now(tn)-r.start))
	if len(tn.past) > 0 && random.IntN(3) > 0 {
		at = pick(random, tn.past...).at - pick[int64](random, 0, 0, 0, 1)
	}
	state := tn.before(at)
	if at < r.start || at > r.model.now(tn) || at <= r.muddled || r.changedAmid(tn, at) ||
		len(state.expired(at)) > 0 { // the plan changed before that was noticed: it is dated then
		return nil
	}
	subject := pick(random, "", "ann")
	decision, err := r.reader().LimitsAt(r.t.Context(), tn.name, subject, time.UnixMicro(at))
	if err != nil {
		return fmt.Errorf("limits at %s: %w", time.UnixMicro(at).UTC(), err)
	}
	want := r.past(state, subject, at)
	var got []toldLimit
	for i, l := range decision.Limits {
		said := toldLimit{Name: l.Name, Used: l.Used, Held: l.Held, Remaining: l.Remaining}
		if l.Unlimited {
			said.Remaining = 0
		}
		if l.Approximate && i < len(want) && said.Used == want[i].Used-1 {
			said.Used, said.Remaining = want[i].Used, want[i].Remaining
		}
		got = append(got, said)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		return fmt.Errorf("limits of %q at %s: design (-) and reader (+) differ:\n%s", subject, time.UnixMicro(at).UTC(), diff)
	}
	return nil
}

// past is how limits stood at an instant behind which nothing was done.
func (r *run) past(state *tenant, subject string, at int64) (limits []toldLimit) {
	then := model{}
	for _, p := range r.model.plans.versions {
		if p.from <= at {
			then.plan = p.limits
		}
	}
	for _, l := range then.standing(subject) {
		limits = append(limits, state.say(l, subject, at))
	}
	return limits
}

// before is a tenant as it was behind all that was done up to and at an instant.
func (tn *tenant) before(at int64) *tenant {
	state := &tenant{zone: tn.zone, anchor: tn.anchor, meters: tn.meters, plans: tn.plans}
	for _, m := range tn.past {
		if m.at <= at {
			state = m.state
		}
	}
	return state
}

// changedAmid reports whether the plan changed at an instant at which something was
// entered: nothing says then which of them came first.
func (r *run) changedAmid(tn *tenant, at int64) bool {
	return slices.ContainsFunc(r.model.plans.versions[1:], func(p planFrom) bool { return p.from == at }) &&
		slices.ContainsFunc(tn.facts, func(f fact) bool { return f.at == at })
}
