package api

import (
	"fmt"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// costDefault is what a charge that names neither cost nor pools spends.
const costDefault = 1

// decodeConsume reads the body of POST /v1/consume:
//
//	{tenant, subject? | client?, meter, cost? | pools?, dims?, dry_run?}
//	{tenant, subject? | client?, charges: [{meter, cost? | pools?}], dims?, dry_run?}
//
// Faults are left in b; the caller adds those of [quota.Request.Validate].
func decodeConsume(b *bodyReader) quota.Request {
	r := decodeRequest(b, false)
	b.end()
	return r
}

// idempotencyKeyField is where an item of a batch has what a request alone has in its
// header.
const idempotencyKeyField = "idempotency_key"

// decodeRequest reads one request; keyed ones may hold an idempotency key.
func decodeRequest(b *bodyReader, keyed bool) quota.Request {
	var r quota.Request
	var single chargeBody
	var fromClient string
	var charges, client, subject, tenant bool
	if !b.object("") {
		b.broken = true // it has no fields that could be missing
		return r
	}
	for b.member() {
		name := string(b.name)
		switch {
		case name == "tenant":
			tenant = true
			r.Tenant = b.string("tenant")
		case name == "subject":
			subject = true
			r.Subject = b.string("subject")
		case name == "client":
			client = true
			fromClient = decodeClient(b)
		case name == "charges":
			charges = true
			r.Charges = decodeCharges(b)
		case name == "dims":
			r.Dims = decodeDims(b)
		case name == "dry_run":
			r.DryRun = b.bool("dry_run")
		case name == idempotencyKeyField && keyed:
			r.Key = b.string(idempotencyKeyField)
			if r.Key == "" && !b.faulted(idempotencyKeyField) {
				b.fault(idempotencyKeyField, "must not be empty")
			}
		default:
			single.decode(b)
		}
	}
	if b.broken {
		return r
	}
	if !tenant {
		b.fault("tenant", "is required")
	}
	switch {
	case client && subject:
		b.fault("client", "must not be given together with subject")
	case client:
		r.Subject = fromClient
	case subject && r.Subject == "" && !b.faulted("subject"):
		b.fault("subject", quota.IDRule(""))
	}
	switch {
	case charges && single.given():
		b.fault("charges", "must not be given together with meter, cost or pools")
	case !charges:
		r.Charges = []quota.Charge{single.charge(b)}
	}
	return r
}

// decodeCharges reads an array of charges.
func decodeCharges(b *bodyReader) []quota.Charge {
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
		charge := body.charge(b)
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

// charge returns the charge once all members are read.
func (c *chargeBody) charge(b *bodyReader) quota.Charge {
	if b.broken {
		return quota.Charge{}
	}
	if !c.hasMeter {
		b.fault(b.field("meter"), "is required")
	}
	if c.hasCost && c.hasPools {
		b.fault(b.field("pools"), "must not be given together with cost")
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
