package quota_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// steps are what a program may do, as often as their numbers say.
var steps = []struct {
	weight int
	do     func(r *run, random *rand.Rand) error
}{
	{24, (*run).moveClock},
	{24, func(r *run, random *rand.Rand) error { return r.ask(random, r.consume(random)) }},
	{14, func(r *run, random *rand.Rand) error { return r.ask(random, r.hold(random)) }},
	{8, func(r *run, random *rand.Rand) error { return r.ask(random, r.settle(random)) }},
	{3, func(r *run, random *rand.Rand) error { return r.ask(random, r.release(random)) }},
	{4, func(r *run, random *rand.Rand) error { return r.ask(random, r.extend(random)) }},
	{9, func(r *run, random *rand.Rand) error { return r.ask(random, r.reversal(random)) }},
	{8, (*run).tempt},
	{6, (*run).giveBack},
	{6, (*run).repeat},
	{4, (*run).changePlan},
	{1, (*run).changeStatus},
	{4, (*run).look},
}

func (r *run) step(seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 2))
	r.engine = r.bench.engines[random.IntN(len(r.bench.engines))]
	total := 0
	for _, s := range steps {
		total += s.weight
	}
	n := random.IntN(total)
	for _, s := range steps {
		if n -= s.weight; n < 0 {
			return s.do(r, random)
		}
	}
	panic("unreachable")
}

func (r *run) tenant(random *rand.Rand) *tenant {
	return r.model.tenants[r.names[random.IntN(len(r.names))]]
}

// request is one of a tenant, keyed or dry now and then.
func (r *run) request(random *rand.Rand, kind ledger.Kind) quota.Request {
	q := quota.Request{Kind: kind, Tenant: r.tenant(random).name}
	switch random.IntN(10) {
	case 0, 1, 2:
		q.Key = uuid.NewString()
	case 3:
		q.DryRun = true
	}
	return q
}

func (r *run) consume(random *rand.Rand) quota.Request {
	q := r.request(random, pick(random, "", ledger.KindConsume))
	r.spend(random, &q)
	return q
}

func (r *run) hold(random *rand.Rand) quota.Request {
	q := r.request(random, ledger.KindHold)
	r.spend(random, &q)
	q.TTL = pick(random, time.Millisecond, 10*time.Millisecond, time.Second, 5*time.Second, 30*time.Second,
		time.Minute, 2*time.Hour, 24*time.Hour)
	if random.IntN(4) == 0 {
		q.TTL += time.Duration(random.IntN(999)+1) * time.Microsecond
	}
	q.TTL = min(q.TTL, quota.TTLMax)
	return q
}

// spend fills in what is asked for.
func (r *run) spend(random *rand.Rand, q *quota.Request) {
	bySubject := slices.ContainsFunc(r.model.plan, func(l *limit) bool { return l.bySubject })
	if bySubject && random.IntN(12) > 0 || random.IntN(3) == 0 {
		q.Subject = pick(random, "ann", "bob")
	}
	tn := r.model.tenants[q.Tenant]
	for range pick(random, 1, 1, 1, 2, 2, 3) {
		q.Charges = append(q.Charges, r.charge(random, pick(random, r.meters...), func(meter string) int64 {
			return r.temptingCost(random, tn, meter, q.Subject)
		}))
	}
}

// tempt asks, dry, for a little more than a limit has room for, so that it says how long to
// wait for just that.
func (r *run) tempt(random *rand.Rand) error {
	tn, subject := r.tenant(random), pick(random, "ann", "bob")
	var tight []*limit
	for _, l := range r.model.plan {
		if l.mode == catalog.ModeEnforce && l.size > 0 && tn.stand(l, subject, r.model.now(tn)).used.Sign() > 0 {
			tight = append(tight, l)
		}
	}
	if len(tight) == 0 {
		return nil
	}
	l := pick(random, tight...)
	room := tn.say(l, subject, r.model.now(tn)).Remaining
	return r.ask(random, quota.Request{Tenant: tn.name, Subject: subject, DryRun: true, Charges: []quota.Charge{
		{Meter: l.meter, Cost: min(l.size, room+1+random.Int64N(l.size))},
	}})
}

// giveBack uses a meter a few times, gives units of one of them back and tempts: a wait goes
// by what is left of each.
func (r *run) giveBack(random *rand.Rand) error {
	tn, meter := r.tenant(random), pick(random, r.meters...)
	for range 3 {
		q := quota.Request{Tenant: tn.name, Subject: "ann", Charges: []quota.Charge{{Meter: meter, Cost: 1 + random.Int64N(3)}}}
		if err := r.ask(random, q); err != nil {
			return err
		}
		r.setClock(r.model.clock + 1 + random.Int64N(900))
	}
	back := quota.Request{
		Kind: ledger.KindReverse, Tenant: tn.name, Key: uuid.NewString(), Units: random.Int64N(3),
		Seq: max(1, int64(len(tn.facts))-random.Int64N(3)),
	}
	if err := r.ask(random, back); err != nil {
		return err
	}
	return r.tempt(random)
}

// charge asks for a cost, by pools where the meter has them, now and then.
func (r *run) charge(random *rand.Rand, meter string, cost func(meter string) int64) quota.Charge {
	c := quota.Charge{Meter: meter}
	if m := r.model.meters[meter]; len(m.weights) > 0 && random.IntN(2) == 0 {
		c.Pools = map[string]int64{"input": random.Int64N(6)}
		if random.IntN(2) == 0 {
			c.Pools["cached"] = random.Int64N(25)
		}
		return c
	}
	c.Cost = cost(meter)
	return c
}

// temptingCost is small, or what just fits a limit, or just does not.
func (r *run) temptingCost(random *rand.Rand, tn *tenant, meter, subject string) int64 {
	if random.IntN(4) == 0 && len(r.model.plan) > 0 {
		l := pick(random, r.model.plan...)
		room := tn.say(l, subject, r.model.now(tn)).Remaining
		return max(0, pick(random, room, room+1, l.size, l.size+1))
	}
	return pick[int64](random, 0, 1, 1, 1, 2, 2, 3, 5)
}

// ofHolds is a request about a hold, which need not be open nor the tenant's own.
func (r *run) ofHolds(random *rand.Rand, kind ledger.Kind) (q quota.Request, h *hold) {
	q = r.request(random, kind)
	tn := r.model.tenants[q.Tenant]
	var open []*hold
	for _, h := range tn.holds {
		if h.state == quota.HoldOpen {
			open = append(open, h)
		}
	}
	switch {
	case len(open) > 0 && random.IntN(3) > 0:
		h = pick(random, open...)
	case len(tn.holds) > 0 && random.IntN(8) > 0:
		h = pick(random, tn.holds...)
	default:
		h = &hold{id: uuid.Must(uuid.NewV7()), parts: []part{{meter: r.meters[0], units: 1}}}
		for _, other := range r.model.tenants {
			if len(other.holds) > 0 && other != tn {
				h = other.holds[0]
			}
		}
	}
	q.Hold = h.id
	return q, h
}

func (r *run) settle(random *rand.Rand) quota.Request {
	q, h := r.ofHolds(random, ledger.KindSettle)
	for _, p := range h.parts {
		q.Charges = append(q.Charges, r.charge(random, p.meter, func(string) int64 {
			return max(0, p.units+pick[int64](random, 0, 0, 0, -1, -2, 1, 3, 12, -p.units))
		}))
	}
	switch random.IntN(12) {
	case 0:
		q.Charges[0].Meter, q.Charges[0].Pools = pick(random, r.meters...), nil
	case 1, 2:
		if len(h.parts) == 1 {
			q.Charges[0].Meter = ""
		} else {
			q.Charges = q.Charges[:1]
		}
	}
	return q
}

func (r *run) release(random *rand.Rand) quota.Request {
	q, _ := r.ofHolds(random, ledger.KindRelease)
	return q
}

func (r *run) extend(random *rand.Rand) quota.Request {
	q, _ := r.ofHolds(random, ledger.KindExtend)
	q.TTL = pick(random, time.Millisecond, 3*time.Second, time.Minute, 24*time.Hour)
	return q
}

func (r *run) reversal(random *rand.Rand) quota.Request {
	q := r.request(random, ledger.KindReverse)
	q.Key = uuid.NewString()
	tn := r.model.tenants[q.Tenant]
	q.Seq = 1 + random.Int64N(int64(len(tn.facts))+1)
	if random.IntN(2) == 0 {
		q.Seq = max(1, int64(len(tn.facts))-random.Int64N(3))
	}
	for range 3 { // mostly of what used something
		if i := q.Seq - 1; i < int64(len(tn.facts)) && tn.facts[i].units <= 0 {
			q.Seq = 1 + random.Int64N(int64(len(tn.facts)))
		}
	}
	q.Units = pick[int64](random, 0, 0, 1, 1, 2, 3, 20)
	return q
}

// repeat sends an earlier request again, or another one with its key.
func (r *run) repeat(random *rand.Rand) error {
	if len(r.asked) == 0 {
		return nil
	}
	q := pick(random, r.asked...)
	q.DryRun = false
	if q.Key != "" && random.IntN(4) == 0 {
		q.Charges = []quota.Charge{{Meter: r.meters[0], Cost: 77}}
		if q.Kind == ledger.KindReverse || q.Kind == ledger.KindRelease || q.Kind == ledger.KindExtend {
			q.Charges, q.Seq, q.TTL = nil, q.Seq+1, q.TTL/2+time.Millisecond
		}
	}
	return r.ask(random, q)
}

// changePlan gives the plan its next version.
func (r *run) changePlan(random *rand.Rand) error {
	next := nextPlan(random, r.model.plan, r.meters)
	if limitsText(next) == limitsText(r.model.plan) {
		return nil // no version
	}
	r.note("plan changes: %s", limitsText(next))
	return r.putPlan(next)
}

func limitsText(limits []*limit) string {
	text := ""
	for _, l := range limits {
		text += "\n\t\t" + l.String()
	}
	return text
}

func (r *run) changeStatus(random *rand.Rand) error {
	tn := r.tenant(random)
	if err := r.lookAt(tn, ""); err != nil { // what ended before is not of the new status
		return err
	}
	tn.suspended = !tn.suspended
	status := catalog.StatusActive
	if tn.suspended {
		status = catalog.StatusSuspended
	}
	r.note("%s becomes %s", tn.name, status)
	return r.putTenant(tn, status)
}

// moveClock steps mostly forward, often to where something ends.
func (r *run) moveClock(random *rand.Rand) error {
	to := r.model.clock + random.Int64N(pick(random, 50, micros(10*time.Millisecond), micros(10*time.Second),
		micros(10*time.Second), micros(2*time.Minute), micros(3*time.Hour), micros(30*time.Hour)))
	switch random.IntN(20) {
	case 0:
		return r.fallBack(r.model.clock - random.Int64N(pick(random, 100, micros(2*time.Second), micros(2*time.Hour))))
	case 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11:
		if ends := r.ends(); len(ends) > 0 {
			to = pick(random, ends...) + pick[int64](random, -1000, -1, 0, 0, 0, 1, 1000)
		}
	}
	if to < r.model.clock {
		return nil
	}
	r.setClock(to)
	return nil
}

// fallBack moves the clock back, though never behind a change of the plan or of a tenant,
// which would then be of an instant to come. What has expired by then is written before.
func (r *run) fallBack(to int64) error {
	for _, name := range r.names {
		if err := r.lookAt(r.model.tenants[name], ""); err != nil {
			return fmt.Errorf("before the clock falls back: %w", err)
		}
	}
	r.setClock(max(to, r.changed))
	return nil
}

// ends are instants at which something comes back or ends.
func (r *run) ends() (ends []int64) {
	ends = slices.Clone(r.instants)
	for _, name := range r.names {
		tn := r.model.tenants[name]
		for _, h := range tn.holds {
			ends = append(ends, h.expires)
		}
		for _, l := range r.model.plan {
			if l.algorithm == catalog.FixedWindow || l.algorithm == catalog.SlidingCounter {
				_, end := tn.cell(l, r.model.now(tn))
				ends = append(ends, end)
			}
			if l.algorithm == catalog.SlidingLog && len(tn.facts) > 0 {
				ends = append(ends, tn.facts[len(tn.facts)/2].effective+l.window)
			}
		}
	}
	const farMax = int64(40 * 24 * time.Hour / time.Microsecond) // partitions are made ahead for months
	limit := min(r.model.clock+farMax/8, r.start+farMax)
	return slices.DeleteFunc(ends, func(at int64) bool { return at < r.model.clock || at > limit })
}
