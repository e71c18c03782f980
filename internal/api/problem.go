package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// A code names a kind of problem for programs. Codes are stable; those that a
// decision can end in are quota's own.
type code string

const (
	codeInvalidRequest    = code(quota.CodeInvalidRequest)
	codeTenantNotFound    = code(quota.CodeTenantNotFound)
	codeMeterNotFound     = code(quota.CodeMeterNotFound)
	codeKeyReused         = code(quota.CodeKeyReused)
	codeOverloaded        = code(quota.CodeOverloaded)
	codeUnavailable       = code(quota.CodeUnavailable)
	codeOutcomeUnknown    = code(quota.CodeOutcomeUnknown)
	codeShuttingDown      = code(quota.CodeShuttingDown)
	codeAmountOverflow    = code(quota.CodeAmountOverflow)
	codeInternal          = code(quota.CodeInternal)
	codeUnauthenticated   = code("unauthenticated")
	codeInsufficientScope = code("insufficient_scope")
	codeTenantForbidden   = code("tenant_forbidden")
	codeNotFound          = code("not_found")
	codeRouteNotFound     = code("route_not_found")
	codeMethodNotAllowed  = code("method_not_allowed")
	codeConflict          = code("conflict")
	codeRequestTimeout    = code("request_timeout")
	codeBodyTooLarge      = code("body_too_large")
	codeMediaType         = code("unsupported_media_type")
	codePrecondition      = code("precondition_failed")
	codeTenantsLimited    = code(quota.CodeTenantCreationLimited)
	codeHoldNotFound      = code(quota.CodeHoldNotFound)
	codeHoldResolved      = code(quota.CodeHoldResolved)
	codeHoldsNotSupported = code(quota.CodeHoldsNotSupported)
	codeEntryNotFound     = code(quota.CodeEntryNotFound)
	codeNotReversible     = code(quota.CodeNotReversible)
	codeReversalTooLarge  = code(quota.CodeReversalTooLarge)
)

// problemKinds is the one table from a code to what HTTP says about it.
var problemKinds = map[code]struct {
	status int
	title  string
}{
	codeInvalidRequest:    {http.StatusBadRequest, "The request breaks a rule"},
	codeMeterNotFound:     {http.StatusBadRequest, "There is no such meter"},
	codeAmountOverflow:    {http.StatusBadRequest, "A running total would pass the largest amount"},
	codeHoldsNotSupported: {http.StatusBadRequest, "Nothing of this meter can be held"},
	codeUnauthenticated:   {http.StatusUnauthorized, "A valid API key is needed"},
	codeInsufficientScope: {http.StatusForbidden, "The API key lacks the scope for this"},
	codeTenantForbidden:   {http.StatusForbidden, "The API key may not act for this tenant"},
	codeTenantNotFound:    {http.StatusNotFound, "There is no such tenant"},
	codeHoldNotFound:      {http.StatusNotFound, "There is no such hold"},
	codeEntryNotFound:     {http.StatusNotFound, "There is no such entry"},
	codeNotFound:          {http.StatusNotFound, "There is no such thing here"},
	codeRouteNotFound:     {http.StatusNotFound, "There is nothing at this path"},
	codeMethodNotAllowed:  {http.StatusMethodNotAllowed, "The path does not take this method"},
	codeRequestTimeout:    {http.StatusRequestTimeout, "The request took too long to arrive"},
	codeConflict:          {http.StatusConflict, "The request does not fit what is there"},
	codeHoldResolved:      {http.StatusConflict, "The hold has ended otherwise"},
	codeNotReversible:     {http.StatusConflict, "The entry has nothing to give back"},
	codeReversalTooLarge:  {http.StatusConflict, "More than is left of the entry"},
	codePrecondition:      {http.StatusPreconditionFailed, "The object is in another state"},
	codeBodyTooLarge:      {http.StatusRequestEntityTooLarge, "The body is too large"},
	codeMediaType:         {http.StatusUnsupportedMediaType, "The body must be application/json"},
	codeKeyReused:         {http.StatusUnprocessableEntity, "The idempotency key belongs to another request"},
	codeInternal:          {http.StatusInternalServerError, "Something is wrong on our side"},
	codeOverloaded:        {http.StatusServiceUnavailable, "Too much is waiting already"},
	codeUnavailable:       {http.StatusServiceUnavailable, "The database could not serve this in time"},
	codeTenantsLimited:    {http.StatusServiceUnavailable, "Too many new tenants within this minute"},
	codeOutcomeUnknown:    {http.StatusServiceUnavailable, "Nobody can tell yet whether this happened"},
	codeShuttingDown:      {http.StatusServiceUnavailable, "This instance is shutting down"},
}

// problemTypePrefix makes a code a URI that identifies and does not locate.
const problemTypePrefix = "urn:quotad:problem:"

// retryAfterDefault is what a 503 says when the engine named no time.
const retryAfterDefault = time.Second

// A problem is an error as a caller sees it, and what only the log sees.
type problem struct {
	code    code
	detail  string
	faults  []quota.Fault
	outcome string

	retryAfter time.Duration
	allow      string // methods, for a 405
	challenge  string // for a 401
	etag       string // of the object as it is, for a 412
	cause      error  // for the log, never for the caller
}

// Error is what the log says of it.
func (p *problem) Error() string {
	if p.cause != nil {
		return string(p.code) + ": " + p.cause.Error()
	}
	return string(p.code) + ": " + p.detail
}

func (p *problem) Unwrap() error { return p.cause }

// invalid is a problem of one field.
func invalid(field, rule string) *problem {
	return &problem{code: codeInvalidRequest, faults: []quota.Fault{{Field: field, Rule: rule}}}
}

// problemOf makes a problem of any error that a handler returned.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var q *quota.Error
	if errors.As(err, &q) {
		return problemOfDecision(q)
	}
	if p := preconditionProblem(err); p != nil {
		return p
	}
	if errors.Is(err, catalog.ErrUnconfirmed) {
		return &problem{
			code: codeOutcomeUnknown, outcome: "unknown", retryAfter: retryAfterDefault, cause: err,
			detail: "The change was made and no standby of the database has confirmed it, so a failover may take it back. Send it again.",
		}
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, catalog.ErrNoAnswer) || databaseAway(err) {
		return &problem{
			code: codeUnavailable, retryAfter: retryAfterDefault, cause: err,
			detail: "The database could not be had in time, or does not take this now. Try again.",
		}
	}
	return &problem{code: codeInternal, cause: err}
}

// databaseAway reports whether err says that the database cannot be reached or cannot
// serve now, and trying again may help: connection trouble, too many clients, a full or
// broken disk, a shutdown, a lock that someone held for long, a server that takes no
// writes, as after a failover that is not over, or one that lets this login in no more, as
// while its password is changed.
func databaseAway(err error) bool {
	var refusal interface{ SQLState() string }
	if !errors.As(err, &refusal) {
		var netErr net.Error
		var driver interface{ SafeToRetry() bool } // its errors of a connection, such as one found closed
		return errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.As(err, &driver)
	}
	const (
		readOnly         = "25006"
		recoveryConflict = "40001" // a standby had to go on; nothing here asks to be serializable
	)
	state := refusal.SQLState()
	return slices.Contains([]string{readOnly, recoveryConflict}, state) ||
		slices.ContainsFunc([]string{"08", "28", "3D", "53", "55", "57", "58"}, func(class string) bool { return strings.HasPrefix(state, class) })
}

func problemOfDecision(q *quota.Error) *problem {
	p := &problem{code: code(q.Code), faults: q.Faults, retryAfter: q.RetryAfter, cause: q}
	switch q.Code {
	case quota.CodeOutcomeUnknown:
		p.outcome = "unknown"
		p.detail = "The commit was sent and its reply was lost. Send the same request with the same Idempotency-Key to learn what happened."
	case quota.CodeUnavailable:
		p.detail = "The database, or this tenant's account in it, could not be had in time. Nothing was charged; try again."
	case quota.CodeTenantCreationLimited:
		p.detail = "The default plan has made as many tenants as it may within this minute. Nothing was charged; try again, or create the tenant."
	case quota.CodeAmountOverflow:
		p.detail = "No amount or running total may pass 999999999999999."
	}
	if problemKinds[p.code].status == http.StatusServiceUnavailable && p.retryAfter <= 0 {
		p.retryAfter = retryAfterDefault
	}
	return p
}

// A problemBody is a problem in JSON (RFC 9457).
type problemBody struct {
	Type      string        `json:"type"`
	Title     string        `json:"title"`
	Status    int           `json:"status"`
	Detail    string        `json:"detail,omitempty"`
	Code      code          `json:"code"`
	Outcome   string        `json:"outcome,omitempty"`
	RetryMS   int64         `json:"retry_after_ms,omitempty"`
	Errors    []quota.Fault `json:"errors,omitempty"`
	RequestID uuid.UUID     `json:"request_id"`
}

// describe turns an error into what its caller is told, and logs it if it is ours.
func (h *Handler) describe(c *call, err error) (*problem, problemBody) {
	p := problemOf(err)
	gone := errors.Is(err, context.Canceled) && c.r.Context().Err() != nil
	if gone {
		p = callerGone
	}
	kind, ok := problemKinds[p.code]
	if !ok {
		p = &problem{code: codeInternal, cause: err}
		kind = problemKinds[codeInternal]
	}
	body := problemBody{
		Type: problemTypePrefix + string(p.code), Title: kind.title, Status: kind.status,
		Detail: p.detail, Code: p.code, Outcome: p.outcome, Errors: p.faults,
		RetryMS: p.retryAfter.Milliseconds(), RequestID: h.NewID(),
	}
	if body.Detail == "" && len(p.faults) > 0 {
		body.Detail = p.faults[0].Field + ": " + p.faults[0].Rule
	}
	if kind.status >= http.StatusInternalServerError && !gone {
		h.logFailure(c, p, body.RequestID)
	}
	return p, body
}

// fail answers with the problem that err is.
func (h *Handler) fail(c *call, err error) {
	p, body := h.describe(c, err)
	header := c.w.Header()
	header["Cache-Control"] = headerNoStore
	if p.retryAfter > 0 {
		header.Set("Retry-After", string(appendSeconds(nil, p.retryAfter)))
	}
	if p.allow != "" {
		header.Set("Allow", p.allow)
	}
	if p.etag != "" {
		header["ETag"] = []string{p.etag}
	}
	if p.challenge != "" {
		header.Set("WWW-Authenticate", p.challenge)
	}
	c.reply(body.Status, headerProblem, body.json())
	if p == callerGone {
		c.status = statusClientGone
	}
}

func (b problemBody) json() []byte {
	text, err := json.Marshal(b)
	if err != nil { // a struct of strings and integers
		panic(err)
	}
	return text
}

// statusClientGone is what metrics show when the caller hung up first.
const statusClientGone = 499

// callerGone answers a caller who seems to have hung up. One that only closed its
// sending half still reads, and an empty 200 would tell it that it may spend.
var callerGone = &problem{
	code: codeOutcomeUnknown, outcome: "unknown", retryAfter: retryAfterDefault,
	detail: "The connection was given up before the answer was there. Send the same request with the same Idempotency-Key to learn what happened.",
}

// logFailure writes the cause of a 5xx beside the request id that the caller got.
// Only a fault of ours is an error; the others are the weather, and during an outage
// every request has it, so those lines are limited.
func (h *Handler) logFailure(c *call, p *problem, id uuid.UUID) {
	level := slog.LevelError
	if p.code != codeInternal {
		level = slog.LevelWarn
		if !h.warnings.allow(time.Now()) {
			return
		}
	}
	h.log.LogAttrs(c.r.Context(), level, "request got no answer",
		slog.String("code", string(p.code)),
		slog.String("request_id", id.String()),
		slog.String("method", c.r.Method),
		slog.String("route", c.route),
		slog.Any("cause", p.cause))
}
