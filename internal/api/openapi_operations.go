package api

import (
	"embed"
	"net/http"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// examples are requests and answers as the tests saw them, with their random parts
// replaced; a test keeps them so.
//
//go:embed examples/*.json
var examples embed.FS

// An operation is what the document says of a route beyond the route itself.
type operation struct {
	id, tag, summary, description string

	query          []string // parameters
	required       []string // those of them that must be given
	requestHeaders []string
	body           any    // a value of the request's type; nil for none
	answer         any    // a value of the answer's type; nil if it is no JSON
	answers        string // what the answer is
	answerHeaders  []string
	status         int      // of success; 200 if zero
	alsoStatus     []int    // further statuses with the same answer
	otherTypes     []string // further media types of the answer
	tagged         bool     // the object has an ETag: preconditions, 412, and 304 to a GET
	denies         bool     // 429 is an answer
	codes          []code   // problems beyond those that its kind of route has
}

func (op *operation) successStatus() int {
	if op.status == 0 {
		return http.StatusOK
	}
	return op.status
}

// problems are the codes that an operation may answer with.
func (op *operation) problems(rt Route) []code {
	codes := append([]code{}, op.codes...)
	if op.tagged {
		codes = append(codes, codePrecondition)
	}
	if len(op.query) > 0 || op.body != nil || op.tagged || pathParameter.MatchString(rt.Pattern) {
		codes = append(codes, codeInvalidRequest)
	}
	if op.body != nil {
		codes = append(codes, codeBodyTooLarge, codeMediaType, codeRequestTimeout)
	}
	if rt.Scope == "" {
		return codes
	}
	codes = append(codes, codeUnauthenticated, codeInsufficientScope, codeUnavailable, codeInternal)
	switch rt.Tenancy {
	case TenancyPath, TenancyBody, TenancyQuery, TenancyUnbound:
		codes = append(codes, codeTenantForbidden)
	}
	if rt.timeout == 0 { // the engine answers
		codes = append(codes, codeOverloaded, codeShuttingDown, codeOutcomeUnknown)
	}
	return codes
}

// The types of bodies that no Go struct reads or writes, since they are decoded and
// encoded by hand. Tests hold them to what is really read and written.
type (
	chargeRequest struct {
		Meter string           `json:"meter"`
		Cost  *int64           `json:"cost,omitempty"`
		Pools map[string]int64 `json:"pools,omitempty"`
	}
	clientRequest struct {
		Peer         string   `json:"peer"`
		ForwardedFor []string `json:"forwarded_for,omitempty"`
	}
	consumeRequest struct {
		Tenant  string            `json:"tenant"`
		Subject string            `json:"subject,omitempty"`
		Client  *clientRequest    `json:"client,omitempty"`
		Meter   string            `json:"meter,omitempty"`
		Cost    *int64            `json:"cost,omitempty"`
		Pools   map[string]int64  `json:"pools,omitempty"`
		Charges []chargeRequest   `json:"charges,omitempty"`
		Dims    map[string]string `json:"dims,omitempty"`
		DryRun  bool              `json:"dry_run,omitempty"`
	}
	batchItemRequest struct {
		consumeRequest
		IdempotencyKey string `json:"idempotency_key,omitempty"`
	}
	batchRequest struct {
		Items []batchItemRequest `json:"items"`
	}
	holdRequest struct {
		consumeRequest
		TTLMS *int64 `json:"ttl_ms,omitempty"`
	}
	holdItemRequest struct {
		holdRequest
		IdempotencyKey string `json:"idempotency_key,omitempty"`
	}
	holdBatchRequest struct {
		Items []holdItemRequest `json:"items"`
	}
	settleRequest struct {
		Tenant  string            `json:"tenant"`
		Meter   string            `json:"meter,omitempty"`
		Cost    *int64            `json:"cost,omitempty"`
		Pools   map[string]int64  `json:"pools,omitempty"`
		Charges []chargeRequest   `json:"charges,omitempty"`
		Dims    map[string]string `json:"dims,omitempty"`
		DryRun  bool              `json:"dry_run,omitempty"`
	}
	releaseRequest struct {
		Tenant string            `json:"tenant"`
		Dims   map[string]string `json:"dims,omitempty"`
		DryRun bool              `json:"dry_run,omitempty"`
	}
	extendRequest struct {
		releaseRequest
		TTLMS *int64 `json:"ttl_ms,omitempty"`
	}
	reversalRequest struct {
		Tenant string            `json:"tenant"`
		Seq    int64             `json:"seq"`
		Units  *int64            `json:"units,omitempty"`
		Dims   map[string]string `json:"dims,omitempty"`
		DryRun bool              `json:"dry_run,omitempty"`
	}
	batchResult struct {
		Status   int  `json:"status"`
		Replayed bool `json:"replayed,omitempty"`
		Body     any  `json:"body"`
	}
	batchBody struct {
		Results []batchResult `json:"results"`
	}
	denialProblem struct {
		Type     string   `json:"type"`
		Title    string   `json:"title"`
		Status   int      `json:"status"`
		Code     string   `json:"code"`
		Detail   string   `json:"detail"`
		Violated []string `json:"violated-policies"`
		quota.Decision
	}
	limitsBody struct {
		Tenant  string              `json:"tenant"`
		Subject string              `json:"subject,omitempty"`
		At      time.Time           `json:"at"`
		Status  catalog.Status      `json:"status"`
		Plan    string              `json:"plan"`
		Version int32               `json:"plan_version"`
		Limits  []quota.LimitResult `json:"limits"`
	}
	aliveBody struct {
		Alive bool `json:"alive"`
	}
	metersPage struct {
		Meters     []meterBody `json:"meters"`
		NextCursor string      `json:"next_cursor,omitempty"`
	}
	meterRequest struct {
		Name string `json:"name,omitempty"`
		catalog.MeterSpec
	}
	plansPage struct {
		Plans      []planBody `json:"plans"`
		NextCursor string     `json:"next_cursor,omitempty"`
	}
	planRequest struct {
		Name    string `json:"name,omitempty"`
		Version int32  `json:"version,omitempty"`
		catalog.PlanSpec
	}
	tenantsPage struct {
		Tenants    []tenantBody `json:"tenants"`
		NextCursor string       `json:"next_cursor,omitempty"`
	}
	tenantRequest struct {
		Name string `json:"name,omitempty"`
		catalog.TenantSpec
		CreatedAt *time.Time `json:"created_at,omitempty"`
	}
	keysPage struct {
		Keys       []catalog.Key `json:"keys"`
		NextCursor string        `json:"next_cursor,omitempty"`
	}
	newKeyBody struct {
		catalog.Key
		Token string `json:"token"`
	}
)

var (
	ifHeaders     = []string{ifMatchHeader, ifNoneMatchHeader}
	answerHeaders = []string{"Idempotent-Replayed", "RateLimit", "RateLimit-Policy", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
	pageQuery     = []string{"limit", "cursor"}
	decisionCodes = []code{codeTenantNotFound, codeMeterNotFound, codeAmountOverflow, codeKeyReused, codeTenantsLimited}
	resolveCodes  = []code{codeHoldNotFound, codeHoldResolved, codeTenantNotFound, codeMeterNotFound, codeAmountOverflow, codeKeyReused}
	reverseCodes  = []code{codeEntryNotFound, codeNotReversible, codeReversalTooLarge, codeTenantNotFound, codeKeyReused}
)

// operations describes every route, by "METHOD pattern".
var operations = map[string]operation{
	"POST /v1/consume": {
		id: "consume", tag: "decide", summary: "Check and consume",
		description: consumeText,
		query:       []string{"deny_status"}, requestHeaders: []string{idempotencyKeyHeader},
		body: consumeRequest{}, answer: quota.Decision{}, answers: "Allowed: the ledger has it, or will have it if degraded.",
		answerHeaders: append([]string{degradedHeader}, answerHeaders...), denies: true, codes: decisionCodes,
	},
	"POST /v1/consume/batch": {
		id: "consumeBatch", tag: "decide", summary: "Check and consume many",
		description: batchText,
		body:        batchRequest{}, answer: batchBody{}, answers: "What each item would have got alone, in their order.",
	},
	"POST /v1/holds": {
		id: "hold", tag: "hold", summary: "Set an estimate aside",
		description: holdText,
		query:       []string{"deny_status"}, requestHeaders: []string{idempotencyKeyHeader},
		body: holdRequest{}, answer: quota.Decision{}, answers: "Allowed: it is set aside until expires_at of the hold.",
		answerHeaders: answerHeaders, denies: true, codes: append([]code{codeHoldsNotSupported}, decisionCodes...),
	},
	"POST /v1/holds/batch": {
		id: "holdBatch", tag: "hold", summary: "Set many estimates aside",
		description: batchText,
		body:        holdBatchRequest{}, answer: batchBody{}, answers: "What each item would have got alone, in their order.",
	},
	"POST /v1/holds/{hold}/settle": {
		id: "settle", tag: "hold", summary: "Say what a hold came to",
		description: settleText, requestHeaders: []string{idempotencyKeyHeader},
		body: settleRequest{}, answer: quota.Decision{}, answers: "It is used, and the hold has ended.",
		answerHeaders: answerHeaders, codes: resolveCodes,
	},
	"POST /v1/holds/{hold}/release": {
		id: "release", tag: "hold", summary: "End a hold that came to nothing",
		description: releaseText, requestHeaders: []string{idempotencyKeyHeader},
		body: releaseRequest{}, answer: quota.Decision{}, answers: "Nothing of it is set aside any more.",
		answerHeaders: answerHeaders, codes: resolveCodes,
	},
	"POST /v1/holds/{hold}/extend": {
		id: "extend", tag: "hold", summary: "Let a hold end later",
		description: extendText, requestHeaders: []string{idempotencyKeyHeader},
		body: extendRequest{}, answer: quota.Decision{}, answers: "It ends at expires_at now.",
		answerHeaders: answerHeaders, codes: resolveCodes,
	},
	"GET /v1/holds": {
		id: "holds", tag: "hold", summary: "The holds of a tenant",
		description: holdsText,
		query:       append([]string{"tenant", "subject", "state"}, pageQuery...), required: []string{"tenant"},
		answer: holdsPage{}, answers: "One page of holds.", codes: []code{codeTenantNotFound},
	},
	"GET /v1/holds/{hold}": {
		id: "holdView", tag: "hold", summary: "One hold, and what became of it",
		query: []string{"tenant"}, required: []string{"tenant"},
		answer: quota.HoldView{}, answers: "The hold.", codes: []code{codeTenantNotFound, codeHoldNotFound},
	},
	"POST /v1/reversals": {
		id: "reverse", tag: "decide", summary: "Give units of an entry back",
		description: reverseText, requestHeaders: []string{idempotencyKeyHeader}, required: []string{idempotencyKeyHeader},
		body: reversalRequest{}, answer: quota.Decision{}, answers: "They are given back.",
		answerHeaders: answerHeaders,
		codes:         reverseCodes,
	},
	"GET /v1/tenants/{tenant}/limits": {
		id: "limits", tag: "read", summary: "How every limit stands",
		query: []string{"subject", "at"}, answer: limitsBody{}, answers: "Every limit, from the state that enforces it, or from the ledger as it was.",
		codes: []code{codeTenantNotFound},
	},
	"GET /v1/tenants/{tenant}/usage": {
		id: "usage", tag: "read", summary: "Usage over time",
		description: usageText, required: []string{"meter"},
		query:  append([]string{"meter", "from", "to", "bucket", "tz", "subject", "group_by"}, pageQuery...),
		answer: usageBody{}, answers: "One series, or a page of series by subject.",
		codes: []code{codeTenantNotFound, codeMeterNotFound},
	},
	"GET /v1/tenants/{tenant}/entries": {
		id: "entries", tag: "audit", summary: "The ledger, page by page",
		description: entriesText,
		query:       append([]string{"meter", "subject", "kind", "plan", "request_id", "from", "to", "order", "format"}, pageQuery...),
		answer:      entriesPage{}, answers: "One page of entries, or all of them as a stream.", codes: []code{codeTenantNotFound},
		otherTypes: []string{"text/csv", "application/x-ndjson"},
	},
	"GET /v1/tenants/{tenant}/entries/{seq}": {
		id: "entry", tag: "audit", summary: "One entry",
		answer: entryBody{}, answers: "The entry.", codes: []code{codeNotFound},
	},
	"GET /v1/tenants/{tenant}/explain": {
		id: "explain", tag: "audit", summary: "Why a request was allowed or denied",
		description: explainText,
		query:       []string{"seq", "request_id"}, answer: explainBody{}, answers: "The decision, counted again.",
		codes: []code{codeTenantNotFound, codeNotFound},
	},
	"GET /v1/tenants/{tenant}/denials": {
		id: "denials", tag: "audit", summary: "The last denials, with their reasons",
		description: denialsText,
		query:       append([]string{"meter", "subject", "limit_name", "reason", "from", "to"}, pageQuery...),
		answer:      denialsPage{}, answers: "One page of denials, the newest first.", codes: []code{codeTenantNotFound},
	},
	"GET /v1/tenants/{tenant}/denials/counts": {
		id: "denialCounts", tag: "audit", summary: "Denied requests per minute",
		description: denialCountsText,
		query:       append([]string{"limit_name", "reason", "from", "to"}, pageQuery...),
		answer:      denialCountsPage{}, answers: "One page of counts, the newest minute first.", codes: []code{codeTenantNotFound},
	},
	"GET /v1/meters": {
		id: "meters", tag: "configure", summary: "All meters",
		query: pageQuery, answer: metersPage{}, answers: "One page of meters, by name.",
	},
	"GET /v1/meters/{meter}": {
		id: "meter", tag: "configure", summary: "One meter",
		answer: meterBody{}, answers: "The meter.", codes: []code{codeNotFound}, tagged: true,
	},
	"PUT /v1/meters/{meter}": {
		id: "putMeter", tag: "configure", summary: "Create or change a meter",
		query: []string{"dry_run"}, body: meterRequest{}, answer: putBody{}, answers: "What became of it.", alsoStatus: []int{http.StatusCreated}, tagged: true,
	},
	"GET /v1/plans": {
		id: "plans", tag: "configure", summary: "The current version of every plan",
		query: pageQuery, answer: plansPage{}, answers: "One page of plans, by name.",
	},
	"GET /v1/plans/{plan}": {
		id: "plan", tag: "configure", summary: "The current version of a plan",
		answer: planBody{}, answers: "The plan.", codes: []code{codeNotFound}, tagged: true,
	},
	"PUT /v1/plans/{plan}": {
		id: "putPlan", tag: "configure", summary: "Create a plan, or its next version",
		query: []string{"dry_run"}, body: planRequest{}, answer: putBody{}, answers: "What became of it.", alsoStatus: []int{http.StatusCreated}, tagged: true,
	},
	"GET /v1/plans/{plan}/versions": {
		id: "planVersions", tag: "configure", summary: "Every version of a plan",
		query: pageQuery, answer: planVersionsPage{}, answers: "One page of versions, the newest first.", codes: []code{codeNotFound},
	},
	"GET /v1/plans/{plan}/versions/{version}": {
		id: "planVersion", tag: "configure", summary: "One version of a plan",
		description: "Versions never change, and outlive their plan.",
		answer:      planVersionBody{}, answers: "The version.", codes: []code{codeNotFound},
	},
	"GET /v1/tenants": {
		id: "tenants", tag: "configure", summary: "All tenants",
		query: append([]string{"plan", "status", "prefix"}, pageQuery...), answer: tenantsPage{}, answers: "One page of tenants, by name.",
	},
	"GET /v1/tenants/{tenant}": {
		id: "tenant", tag: "configure", summary: "One tenant",
		answer: tenantBody{}, answers: "The tenant.", codes: []code{codeTenantNotFound}, tagged: true,
	},
	"PUT /v1/tenants/{tenant}": {
		id: "putTenant", tag: "configure", summary: "Create or change a tenant",
		query: []string{"dry_run"}, body: tenantRequest{}, answer: putBody{}, answers: "What became of it.", alsoStatus: []int{http.StatusCreated}, tagged: true,
	},
	"GET /v1/settings": {
		id: "settings", tag: "configure", summary: "What holds for the whole database",
		answer: catalog.SettingsSpec{}, answers: "The settings.", tagged: true,
	},
	"PUT /v1/settings": {
		id: "putSettings", tag: "configure", summary: "Change what holds for the whole database",
		description: settingsText,
		query:       []string{"dry_run"}, body: catalog.SettingsSpec{}, answer: putBody{}, answers: "What became of them.", tagged: true,
	},
	"GET /v1/changes": {
		id: "changes", tag: "audit", summary: "Who changed the configuration, and how",
		description: changesText,
		query:       append([]string{"object", "name", "by", "from", "to", "order"}, pageQuery...),
		answer:      changesPage{}, answers: "One page of changes.",
	},
	"GET /v1/keys": {
		id: "keys", tag: "configure", summary: "All API keys, revoked ones too",
		query: append([]string{"tenant", "scope", "revoked"}, pageQuery...), answer: keysPage{}, answers: "One page of keys, none with its secret.",
	},
	"POST /v1/keys": {
		id: "createKey", tag: "configure", summary: "Create an API key",
		body: keyRequest{}, answer: newKeyBody{}, answers: "The key, with its token: the only time that it is shown.",
		status: http.StatusCreated,
	},
	"DELETE /v1/keys/{key}": {
		id: "revokeKey", tag: "configure", summary: "Revoke an API key",
		description: "It is refused everywhere within 5 seconds. Revoking it again changes nothing.",
		answer:      catalog.Key{}, answers: "The key.", codes: []code{codeNotFound},
	},
	"GET /healthz": {
		id: "healthz", tag: "operate", summary: "Whether the process answers",
		answer: aliveBody{}, answers: "It does.",
	},
	"GET /readyz": {
		id: "readyz", tag: "operate", summary: "Whether this instance can decide",
		answer: readyBody{}, answers: "200 if it can, 503 if not, with the reasons.", alsoStatus: []int{http.StatusServiceUnavailable},
	},
	"GET /metrics": {
		id: "metrics", tag: "operate", summary: "Metrics, in the text form of Prometheus",
		otherTypes: []string{"text/plain"}, answers: "The metrics.",
	},
	"GET /openapi.json": {
		id: "openapi", tag: "operate", summary: "This document",
		answer: object{"type": "object"}, answers: "This document.", codes: []code{codeInvalidRequest},
	},
}
