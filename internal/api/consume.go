package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/quota"
)

// decide is every operation that changes what a tenant has used. Consume is the path that
// everything else exists for, so it reads the body once, writes one, and touches no map or
// formatter that it does not need.
func (h *Handler) decide(f form) func(c *call) error {
	return func(c *call) error { return h.decideOne(c, f) }
}

func (h *Handler) decideOne(c *call, f form) error {
	deniedStatus, err := c.deniedStatus(f)
	if err != nil {
		return err
	}
	r, err := c.decisionRequest(f)
	if err != nil {
		return err
	}
	if !c.key.MayActFor(r.Tenant) {
		return errTenantForbidden()
	}
	decision, err := h.Engine.Decide(c.r.Context(), r)
	if err != nil {
		return err
	}
	c.answer(&decision, deniedStatus)
	return nil
}

// deniedStatus is the status a denial gets: 429, or 200 if the caller asked for that
// with ?deny_status=200.
func (c *call) deniedStatus(f form) (int, error) {
	if c.r.URL.RawQuery == "" {
		return http.StatusTooManyRequests, nil
	}
	if !f.denies {
		_, err := c.query()
		return http.StatusTooManyRequests, err
	}
	query, err := c.query("deny_status")
	if err != nil {
		return 0, err
	}
	switch status := query.Get("deny_status"); {
	case status == "200":
		return http.StatusOK, nil
	case status == "429", !query.Has("deny_status"):
		return http.StatusTooManyRequests, nil
	}
	return 0, invalid("deny_status", "must be 200 or 429")
}

// decisionRequest reads and checks the whole request.
func (c *call) decisionRequest(f form) (quota.Request, error) {
	key, err := idempotencyKey(c.r.Header)
	if err != nil {
		return quota.Request{}, err
	}
	var hold uuid.UUID
	if f.hold {
		if hold, err = c.holdParam(); err != nil {
			return quota.Request{}, err
		}
	}
	if err := c.readBody(consumeBytesMax); err != nil {
		return quota.Request{}, err
	}
	c.in.reset()
	r := decodeBody(&c.in, f)
	r.Key, r.Hold = key, hold
	return r, c.in.check(r)
}

// check adds the faults of a request that was read to those noted on the way, and
// returns the problem that they come to, or nil. Of one that was not read to its end
// there is no more to say.
func (b *bodyReader) check(r quota.Request) error {
	if b.broken {
		return b.problem()
	}
	err := r.Validate()
	if err == nil && len(b.faults) == 0 {
		return nil
	}
	// A field that could not be read is zero now, and so is what is in it: one fault of it
	// is enough.
	unread := b.faults
	var q *quota.Error
	if errors.As(err, &q) {
		for _, f := range q.Faults {
			if !b.faulted(f.Field) && !slices.ContainsFunc(unread, func(u quota.Fault) bool { return within(f.Field, u.Field) }) {
				b.fault(f.Field, f.Rule)
			}
		}
	}
	return b.problem()
}

// within reports whether a field is a part of another, as charges[1].cost is of charges.
func within(field, whole string) bool {
	rest, cut := strings.CutPrefix(field, whole)
	return cut && rest != "" && (rest[0] == '.' || rest[0] == '[')
}

// problem is what the faults noted so far come to.
func (b *bodyReader) problem() *problem {
	return &problem{code: codeInvalidRequest, faults: b.faults}
}

// answer sends a decision. Status, body and every header field come from it alone.
func (c *call) answer(d *quota.Decision, deniedStatus int) {
	header := c.w.Header()
	if d.Replayed {
		header["Idempotent-Replayed"] = headerReplayed
	}
	switch {
	case d.Degraded:
		markDegraded(header, d)
	case d.Replayed:
		// RateLimit fields are left out: they would be those of back then.
	case d.Reason == quota.ReasonTenantSuspended:
		// Whatever the limits have left, the next call will not get it.
	default:
		c.scratch = c.h.Headers.setRateLimit(header, c.scratch, d)
	}
	if d.Allowed {
		c.out = appendDecision(c.out[:0], d)
		c.reply(http.StatusOK, headerJSON, c.out)
		return
	}
	header["Cache-Control"] = headerNoStore
	if d.RetryMS != nil {
		header["Retry-After"] = []string{strconv.FormatInt(retryAfterSeconds(*d.RetryMS), 10)}
	}
	if deniedStatus == http.StatusOK {
		c.out = appendDecision(c.out[:0], d)
		c.reply(http.StatusOK, headerJSON, c.out)
		return
	}
	c.out = appendDenial(c.out[:0], d)
	c.reply(http.StatusTooManyRequests, headerProblem, c.out)
}
