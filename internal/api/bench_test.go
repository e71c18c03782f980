package api

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// benchBody and benchDecision are a call as most are.
const benchBody = `{"tenant":"tenant-000123","subject":"user-7","meter":"api.calls","cost":1}`

func benchDecision() quota.Decision {
	return quota.Decision{
		Allowed: true, Tenant: "tenant-000123", Subject: "user-7", DecidedAt: time.UnixMicro(1767225600123456).UTC(),
		Charges: []quota.ChargeResult{{Meter: "api.calls", Cost: 1}},
		Limits: []quota.LimitResult{
			enforced("hourly", 1000, 42, 16_001, 3_600_000_000), enforced("burst", 10, 9, 500, 500_000),
		},
		Receipt: &quota.Receipt{FirstSeq: 7, Seq: 7},
	}
}

// BenchmarkConsumeWithoutEngine is what the contract costs around a decision, beside a
// chi handler that decodes and encodes the same JSON and does nothing else.
func BenchmarkConsumeWithoutEngine(b *testing.B) {
	metrics, err := newHTTPMetrics(prometheus.NewRegistry())
	if err != nil {
		b.Fatal(err)
	}
	h := &Handler{metrics: metrics}
	h.calls.New = func() any { return new(call) }
	h.router = h.newRouter([]Route{{Method: http.MethodPost, Pattern: "/v1/consume", handle: func(c *call) error {
		r, err := c.decisionRequest(consumeForm)
		if err != nil || !c.key.MayActFor(r.Tenant) {
			return err
		}
		d := benchDecision()
		c.answer(&d, http.StatusTooManyRequests)
		return nil
	}}})
	b.Run("quotad", func(b *testing.B) { benchHandler(b, h) })

	plain := chi.NewMux()
	plain.Post("/v1/consume", func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Tenant, Subject, Meter string
			Cost                   int64
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		d := benchDecision()
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(&d)
	})
	b.Run("decode and encode only", func(b *testing.B) { benchHandler(b, plain) })
}

func benchHandler(b *testing.B, h http.Handler) {
	b.ReportAllocs()
	r := httptest.NewRequest(http.MethodPost, "/v1/consume", nil)
	r.Header.Set("Content-Type", "application/json")
	w := &discardWriter{header: http.Header{}}
	body := strings.NewReader("")
	for b.Loop() {
		body.Reset(benchBody)
		r.Body = io.NopCloser(body)
		clear(w.header)
		w.status = 0
		h.ServeHTTP(w, r)
		if w.status >= 300 {
			b.Fatal(w.status)
		}
	}
}

type discardWriter struct {
	header http.Header
	status int
}

func (w *discardWriter) Header() http.Header         { return w.header }
func (w *discardWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *discardWriter) WriteHeader(status int)      { w.status = status }

// BenchmarkAuthenticate is what a known key costs a request.
func BenchmarkBearer(b *testing.B) {
	header := http.Header{"Authorization": {"Bearer qk_live_000000000000_" + strings.Repeat("0", 33)}}
	for b.Loop() {
		token, _ := bearer(header)
		if _, ok := catalog.ParseToken(token); !ok {
			b.Fatal("not a token")
		}
	}
}

// A batch as large as one may be is walked without a copy of its bytes.
func BenchmarkDecodeBatch(b *testing.B) {
	const item = `{"tenant":"tenant-000123","subject":"user-7","meter":"api.calls","cost":1,"idempotency_key":"3f2a1b0c9d8e","dims":{"region":"eu"}}`
	body := `{"items":[` + strings.Repeat(item+",", batchItemsMax-1) + item + `]}`
	var reader bodyReader
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		reader.text.Reset()
		reader.text.WriteString(body)
		reader.resetBatch()
		if items := decodeBatch(&reader, consumeForm); len(items) != batchItemsMax || len(reader.faults) > 0 {
			b.Fatal(len(items), reader.faults)
		}
	}
}
