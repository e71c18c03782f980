package sim

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// TagDim is the dimension that carries a request's tag into the ledger, so that every
// entry can be traced to whoever asked for it.
const TagDim = "sim-tag"

// A Kind is what a request asks for, by the name that its entries have.
type Kind string

// Kinds.
const (
	KindConsume Kind = "consume"
	KindHold    Kind = "hold"
	KindExtend  Kind = "extend"
	KindSettle  Kind = "settle"
	KindRelease Kind = "release"
	KindReverse Kind = "reverse"

	kindExpire Kind = "expire" // nobody asks for it
)

// answersHold reports whether entries of the kind name those of a hold.
func (k Kind) answersHold() bool {
	return k == KindExtend || k == KindSettle || k == KindRelease || k == kindExpire
}

// decided reports whether limits have a say in it. Whatever else happened is recorded.
func (k Kind) decided() bool { return k == KindConsume || k == KindHold }

// A Request is one request to send.
type Request struct {
	Kind    Kind   // "" is KindConsume
	URL     string // the instance, http://127.0.0.1:port
	Tenant  string
	Subject string           // "" for none; of what answers a hold or an entry, the one of that
	Charges []Charge         // of a consume, a hold and a settle
	Costs   map[string]int64 // what an allowed answer must charge, by meter; nil: not known
	Tag     string           // of this request and its retries, of no other
	Key     string           // idempotency key, "" for none
	DryRun  bool

	TTL   time.Duration // of a hold and an extension
	Hold  uuid.UUID     // that it answers
	Seq   int64         // of the entry that a reversal gives back from
	Units int64         // that it gives back

	// Patience is how long the caller waits for an answer; 0 is as long as any instance
	// takes.
	Patience time.Duration
}

// kind is what the request asks for.
func (r *Request) kind() Kind {
	if r.Kind == "" {
		return KindConsume
	}
	return r.Kind
}

// once names what a request must have one answer to, however often it is sent: its key, or
// the end that it makes of a hold. "" is nothing.
func (r *Request) once() string {
	switch {
	case r.DryRun:
		return ""
	case r.Key != "":
		return r.Key
	case r.kind() == KindSettle, r.kind() == KindRelease:
		return "the end of hold " + r.Hold.String()
	}
	return ""
}

// path is where the request goes.
func (r *Request) path() string {
	switch kind := r.kind(); kind {
	case KindConsume:
		return "/v1/consume"
	case KindHold:
		return "/v1/holds"
	case KindReverse:
		return "/v1/reversals"
	default:
		return "/v1/holds/" + r.Hold.String() + "/" + string(kind)
	}
}

// A Charge is one meter with a cost, or with amounts per pool.
type Charge struct {
	Meter string
	Cost  int64 // ignored with Pools
	Pools map[string]int64
}

// MarshalJSON writes either the cost or the pools.
func (c Charge) MarshalJSON() ([]byte, error) {
	fields := map[string]any{"meter": c.Meter, "cost": c.Cost}
	if c.Pools != nil {
		delete(fields, "cost")
		fields["pools"] = c.Pools
	}
	return json.Marshal(fields)
}

// body is the JSON of the request.
func (r *Request) body() ([]byte, error) {
	body := struct {
		Tenant  string            `json:"tenant"`
		Subject string            `json:"subject,omitempty"`
		Charges []Charge          `json:"charges,omitempty"`
		Dims    map[string]string `json:"dims"`
		DryRun  bool              `json:"dry_run,omitempty"`
		TTL     int64             `json:"ttl_ms,omitempty"`
		Seq     int64             `json:"seq,omitempty"`
		Units   int64             `json:"units,omitempty"`
	}{
		Tenant: r.Tenant, Charges: r.Charges, Dims: map[string]string{TagDim: r.Tag}, DryRun: r.DryRun,
		TTL: r.TTL.Milliseconds(), Seq: r.Seq, Units: r.Units,
	}
	if r.kind().decided() {
		body.Subject = r.Subject
	}
	return json.Marshal(body)
}
