package api

import (
	"fmt"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// costDefault is what a charge that names neither cost nor pools spends.
const costDefault = 1

// A form is what the body of an operation holds beside tenant, dims and dry_run.
type form struct {
	kind    ledger.Kind // of the request that it makes; "" is consume
	subject bool        // or client
	charges bool        // meter with cost or pools, or charges
	ttl     bool        // ttl_ms
	entry   bool        // seq and units
	hold    bool        // the path has a hold
	denies  bool        // the limits decide it
}

// The forms of all requests that change what a tenant has used:
//
//	{tenant, subject? | client?, meter, cost? | pools?, dims?, dry_run?}
//	{tenant, subject? | client?, charges: [{meter, cost? | pools?}], dims?, dry_run?}
//	{…, ttl_ms?}                                        of a hold
//	{tenant, meter?, cost | pools, dims?, dry_run?}     of a settle: it says what it came to
//	{tenant, dims?, dry_run?}                           of a release
//	{tenant, ttl_ms?, dims?, dry_run?}                  of an extension
//	{tenant, seq, units?, dims?, dry_run?}              of a reversal
var (
	consumeForm = form{subject: true, charges: true, denies: true}
	holdForm    = form{kind: ledger.KindHold, subject: true, charges: true, ttl: true, denies: true}
	settleForm  = form{kind: ledger.KindSettle, charges: true, hold: true}
	releaseForm = form{kind: ledger.KindRelease, hold: true}
	extendForm  = form{kind: ledger.KindExtend, ttl: true, hold: true}
	reverseForm = form{kind: ledger.KindReverse, entry: true}
)

// holdTTLDefault is how long a hold lasts that does not say it.
const holdTTLDefault = time.Minute

// idempotencyKeyField is where an item of a batch has what a request alone has in its
// header.
const idempotencyKeyField = "idempotency_key"

// decodeBody reads the whole body of an operation. Faults are left in b; the caller adds
// those of [quota.Request.Validate].
func decodeBody(b *bodyReader, f form) quota.Request {
	r := decodeRequest(b, f, false)
	b.end()
	return r
}

// A requestBody is a request as its members come in, and which of them came.
type requestBody struct {
	quota.Request
	single     chargeBody
	fromClient string

	hasTenant, hasSubject, hasClient, hasCharges, hasSeq bool
}

// decodeRequest reads one request; keyed ones may hold an idempotency key.
func decodeRequest(b *bodyReader, f form, keyed bool) quota.Request {
	r := requestBody{Request: quota.Request{Kind: f.kind}}
	if !b.object("") {
		b.broken = true // it has no fields that could be missing
		return r.Request
	}
	if f.ttl {
		r.TTL = holdTTLDefault
	}
	for b.member() {
		r.decode(b, f, keyed)
	}
	if b.broken {
		return r.Request
	}
	if !r.hasTenant {
		b.fault("tenant", "is required")
	}
	switch {
	case r.hasClient && r.hasSubject:
		b.fault("client", "must not be given together with subject")
	case r.hasClient:
		r.Subject = r.fromClient
	case r.hasSubject && r.Subject == "" && !b.faulted("subject"):
		b.fault("subject", quota.IDRule(""))
	}
	if f.entry && !r.hasSeq {
		b.fault("seq", "is required")
	}
	switch {
	case !f.charges:
	case r.hasCharges && r.single.given():
		b.fault("charges", "must not be given together with meter, cost or pools")
	case !r.hasCharges:
		r.Charges = []quota.Charge{r.single.charge(b, f)}
	}
	return r.Request
}

// decode reads the current member.
func (r *requestBody) decode(b *bodyReader, f form, keyed bool) {
	name := string(b.name)
	switch {
	case name == "tenant":
		r.hasTenant = true
		r.Tenant = b.string("tenant")
	case name == "subject" && f.subject:
		r.hasSubject = true
		r.Subject = b.string("subject")
	case name == "client" && f.subject:
		r.hasClient = true
		r.fromClient = decodeClient(b)
	case name == "charges" && f.charges:
		r.hasCharges = true
		r.Charges = decodeCharges(b, f)
	case name == "ttl_ms" && f.ttl:
		ms := b.whole("ttl_ms", quota.TTLRule)
		r.TTL = time.Duration(min(ms, quota.TTLMax.Milliseconds()+1)) * time.Millisecond
	case name == "seq" && f.entry:
		r.hasSeq = true
		r.Seq = b.whole("seq", seqRule)
	case name == "units" && f.entry:
		r.Units = b.whole("units", quota.ReversalUnitsRule)
		if r.Units == 0 && !b.faulted("units") { // absent is all of it: 0 must not be
			b.fault("units", quota.ReversalUnitsRule)
		}
	case name == "dims":
		r.Dims = decodeDims(b)
	case name == "dry_run":
		r.DryRun = b.bool("dry_run")
	case name == idempotencyKeyField && keyed:
		r.Key = b.string(idempotencyKeyField)
		if r.Key == "" && !b.faulted(idempotencyKeyField) {
			b.fault(idempotencyKeyField, "must not be empty")
		}
	case f.charges:
		r.single.decode(b)
	default:
		b.unknown()
	}
}

// decodeCharges reads an array of charges.
func decodeCharges(b *bodyReader, f form) []quota.Charge {
	if !b.array("charges") {
		return nil
	}
	charges := make([]quota.Charge, 0, 4)
	for i := 0; b.more(); i++ {
		var body chargeBody
		path := chargePath(i)
		if !b.object(path) {
			charges = append(charges, quota.Charge{Path: path})
			continue
		}
		b.prefix = path
		for b.member() {
			body.decode(b)
		}
		charge := body.charge(b, f)
		charge.Path = path
		charges = append(charges, charge)
		b.prefix = ""
	}
	return charges
}

// A chargeBody is one charge as its members come in, and which of them came.
type chargeBody struct {
	meter                       string
	cost                        int64
	pools                       map[string]int64
	hasMeter, hasCost, hasPools bool
}

// decode reads the current member, which is one of a charge or unknown.
func (c *chargeBody) decode(b *bodyReader) {
	switch string(b.name) {
	case "meter":
		c.hasMeter = true
		c.meter = b.string("meter")
	case "cost":
		c.hasCost = true
		c.cost = b.units("cost")
	case "pools":
		c.hasPools = true
		c.pools = decodePools(b)
	default:
		b.unknown()
	}
}

func (c *chargeBody) given() bool { return c.hasMeter || c.hasCost || c.hasPools }

// charge returns the charge once all members are read. A settle says what its hold came
// to, and need not say the one meter that the hold is on.
func (c *chargeBody) charge(b *bodyReader, f form) quota.Charge {
	if b.broken {
		return quota.Charge{}
	}
	settles := f.kind == ledger.KindSettle
	switch unnamed := settles && b.prefix == ""; {
	case !c.hasMeter && !unnamed:
		b.fault(b.field("meter"), "is required")
	case c.hasMeter && c.meter == "" && unnamed && !b.faulted("meter"):
		b.fault("meter", catalog.NameRule)
	}
	if c.hasCost && c.hasPools {
		b.fault(b.field("pools"), "must not be given together with cost")
	}
	if !c.hasCost && !c.hasPools && settles {
		b.fault(b.field("cost"), "is required, or pools: what the hold came to, 0 if nothing")
	}
	if !c.hasCost {
		c.cost = costDefault
	}
	return quota.Charge{Meter: c.meter, Cost: c.cost, Pools: c.pools}
}

// decodePools reads amounts by pool; the map is not nil, as the charge has pools.
func decodePools(b *bodyReader) map[string]int64 {
	pools := map[string]int64{}
	if !b.object("pools") {
		return pools
	}
	for b.member() {
		pool := string(b.name)
		if !catalog.ValidName(pool) {
			b.skip("pools", "names "+catalog.NameRule)
			continue
		}
		pools[pool] = b.units("pools." + pool)
	}
	return pools
}

func decodeDims(b *bodyReader) map[string]string {
	if !b.object("dims") {
		return nil
	}
	dims := map[string]string{}
	b.prefix = "dims"
	for b.member() {
		name := string(b.name)
		if name == "" {
			b.unknown()
			continue
		}
		dims[name] = b.string(name)
	}
	b.prefix = ""
	return dims
}

// chargePaths are the names of the charges a request may have, made once.
var chargePaths = func() (paths [quota.ChargesMax]string) {
	for i := range paths {
		paths[i] = fmt.Sprintf("charges[%d]", i)
	}
	return paths
}()

func chargePath(i int) string {
	if i < len(chargePaths) {
		return chargePaths[i]
	}
	return fmt.Sprintf("charges[%d]", i)
}
