package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/identity"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// Config is what a [Handler] is made of.
type Config struct {
	Engine  *quota.Engine
	Ledger  *ledger.Store
	Denials *quota.DenialStore
	Reader  *quota.Reader
	Catalog *catalog.Store
	Keys    *catalog.Authenticator
	Log     *slog.Logger
	Metrics *prometheus.Registry // gets the HTTP metrics and is served at /metrics

	Headers Headers
	Clients identity.Resolver // finds the subject of a request that names its client
	NewID   func() uuid.UUID  // names a problem; random if nil
}

// Validate reports what is missing or wrong.
func (c Config) Validate() error {
	if c.Engine == nil || c.Ledger == nil || c.Denials == nil || c.Reader == nil || c.Catalog == nil || c.Keys == nil ||
		c.Log == nil || c.Metrics == nil {
		return errors.New("api: Engine, Ledger, Denials, Reader, Catalog, Keys, Log and Metrics are required")
	}
	return c.Headers.Validate()
}

// A Handler serves the HTTP contract.
type Handler struct {
	Config

	log      *slog.Logger
	document []byte // OpenAPI
	router   *chi.Mux
	fixed    map[fixedRoute]http.HandlerFunc
	calls    sync.Pool // of *call
	metrics  *httpMetrics
	warnings lineLimit

	chunkWriteMax time.Duration // shorter in a test

	draining atomic.Bool
}

// New makes a handler and registers its metrics.
func New(config Config) (*Handler, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	metrics, err := newHTTPMetrics(config.Metrics)
	if err != nil {
		return nil, err
	}
	h := &Handler{Config: config, log: config.Log, metrics: metrics, chunkWriteMax: chunkWriteMax}
	if h.NewID == nil {
		h.NewID = func() uuid.UUID { return uuid.Must(uuid.NewV7()) }
	}
	h.calls.New = func() any { return new(call) }
	routes := h.routes()
	if h.document, err = newDocument(routes); err != nil {
		return nil, err
	}
	h.router = h.newRouter(routes)
	return h, nil
}

// ServeHTTP serves one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if serve := h.fixed[fixedRoute{r.Method, r.URL.Path}]; serve != nil && r.URL.RawPath == "" {
		serve(w, r)
		return
	}
	h.router.ServeHTTP(w, r)
}

// A fixedRoute is a route whose path has no parameters. It needs no router, which would
// copy the request to have somewhere to leave them.
type fixedRoute struct{ method, path string }

// Drain turns /readyz to 503, so that whoever balances load looks elsewhere.
func (h *Handler) Drain() { h.draining.Store(true) }

// newRouter builds the router from the table. GET answers HEAD too.
func (h *Handler) newRouter(routes []Route) *chi.Mux {
	mux := chi.NewMux()
	h.fixed = make(map[fixedRoute]http.HandlerFunc)
	for _, rt := range routes {
		serve := h.serve(rt)
		mux.Method(rt.Method, rt.Pattern, serve)
		if !strings.ContainsAny(rt.Pattern, "{*") {
			h.fixed[fixedRoute{rt.Method, rt.Pattern}] = serve
		}
		if rt.Method == http.MethodGet {
			mux.Method(http.MethodHead, rt.Pattern, serve)
		}
	}
	missing := Route{Pattern: "none", handle: func(*call) error {
		return &problem{code: codeRouteNotFound}
	}}
	mux.NotFound(h.serve(missing))
	wrong := Route{Pattern: "none", handle: func(c *call) error {
		return &problem{code: codeMethodNotAllowed, allow: h.allowed(c.r)}
	}}
	mux.MethodNotAllowed(h.serve(wrong))
	return mux
}

// allowed lists the methods that a path takes.
func (h *Handler) allowed(r *http.Request) string {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var allow []byte
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete} {
		if !h.router.Match(chi.NewRouteContext(), method, path) {
			continue
		}
		if len(allow) > 0 {
			allow = append(allow, ", "...)
		}
		allow = append(allow, method...)
	}
	return string(allow)
}

// serve wraps a route's handler in what every route has: authentication, the error
// table, a guard against panics, and the clock of the metrics. One function does it
// all, since a chain of middlewares costs an allocation or two per link.
func (h *Handler) serve(rt Route) http.HandlerFunc {
	observe := h.metrics.route(rt)
	return func(w http.ResponseWriter, r *http.Request) {
		started := time.Now()
		c := h.calls.Get().(*call)
		c.begin(h, rt.Pattern, w, r)
		defer func() {
			if cause := recover(); cause != nil {
				if cause != http.ErrAbortHandler {
					h.panicked(c, cause)
				}
				observe(c.status, time.Since(started))
				if cause == http.ErrAbortHandler {
					panic(cause) // net/http breaks the connection off
				}
				return // c may be in any state: it is not used again
			}
			observe(c.status, time.Since(started))
			c.end()
			h.calls.Put(c)
		}()
		if err := h.handle(rt, c); err != nil {
			h.fail(c, err)
		}
	}
}

func (h *Handler) handle(rt Route, c *call) error {
	if rt.timeout > 0 {
		ctx, cancel := context.WithTimeout(c.r.Context(), rt.timeout)
		defer cancel()
		c.r = c.r.WithContext(ctx)
	}
	if rt.Scope != "" {
		if err := h.authorize(rt, c); err != nil {
			return err
		}
	}
	return rt.handle(c)
}

// panicked answers a panic with a problem if no answer has begun, and logs where.
func (h *Handler) panicked(c *call, cause any) {
	err := fmt.Errorf("panic: %v\n%s", cause, debug.Stack())
	if c.status != 0 {
		h.logFailure(c, &problem{code: codeInternal, cause: err}, h.NewID())
		return
	}
	h.fail(c, &problem{code: codeInternal, cause: err})
}

// A call is one request being answered. It is pooled, with its buffers.
type call struct {
	h      *Handler
	w      http.ResponseWriter
	r      *http.Request
	route  string
	status int // 0 until an answer begins
	key    catalog.Key
	tenant string // from the path, where the route has one

	in      bodyReader
	limited io.LimitedReader
	out     []byte
	scratch []byte
}

func (c *call) begin(h *Handler, route string, w http.ResponseWriter, r *http.Request) {
	c.h, c.route, c.w, c.r = h, route, w, r
	c.status, c.key, c.tenant = 0, catalog.Key{}, ""
	c.in.clients = h.Clients
}

// pooledBytesMax is the largest buffer kept for the next request.
const pooledBytesMax = 128 << 10

func (c *call) end() {
	c.w, c.r, c.limited.R = nil, nil, nil
	c.in.faults = nil
	if c.in.text.Cap() > pooledBytesMax || cap(c.out) > pooledBytesMax {
		c.in, c.out = bodyReader{}, nil
	}
}

// Header values that never change, shared so that setting one allocates nothing.
var (
	headerJSON     = []string{"application/json"}
	headerProblem  = []string{"application/problem+json"}
	headerNoStore  = []string{"no-store"}
	headerNoCache  = []string{"no-cache"}
	headerReplayed = []string{"true"}
)

// bodyBuffered is what net/http buffers before it stops counting a body's length
// itself; a longer one says it here, so that no answer is chunked.
const bodyBuffered = 2048

// reply sends the one answer of this request.
func (c *call) reply(status int, contentType []string, body []byte) {
	header := c.w.Header()
	header["Content-Type"] = contentType
	if len(body) > bodyBuffered {
		header["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	c.status = status
	c.w.WriteHeader(status)
	c.w.Write(body) //nolint:errcheck // the caller is gone; there is no one to tell
}

// lineLimit lets a bounded number of log lines through per second.
type lineLimit struct {
	second atomic.Int64
	lines  atomic.Int64
}

const linesPerSecondMax = 10

// allow reports whether a line may be written now. It is exact enough for a log: a
// few lines more may pass while a second turns.
func (l *lineLimit) allow(now time.Time) bool {
	if second := now.Unix(); l.second.Swap(second) != second {
		l.lines.Store(0)
	}
	return l.lines.Add(1) <= linesPerSecondMax
}
