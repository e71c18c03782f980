package api

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// httpMetrics are the HTTP metrics. Their labels come from bounded sets: a route of
// the table and the class of a status; never a path, a tenant or a key.
type httpMetrics struct {
	seconds *prometheus.HistogramVec
}

// secondsBuckets reach from a remembered denial to the longest timeout.
var secondsBuckets = []float64{
	.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10,
}

func newHTTPMetrics(registry *prometheus.Registry) (*httpMetrics, error) {
	m := &httpMetrics{seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "quotad_http_request_seconds",
		Help:    "Time from a request's header to its answer, by route and class of status.",
		Buckets: secondsBuckets,
	}, []string{"route", "class"})}
	if err := registry.Register(m.seconds); err != nil {
		return nil, fmt.Errorf("register the HTTP metrics: %w", err)
	}
	return m, nil
}

// route returns the function that observes answers of one route. It looks nothing up
// per request.
func (m *httpMetrics) route(rt Route) func(status int, took time.Duration) {
	name := rt.Pattern
	if rt.Method != "" {
		name = rt.Method + " " + rt.Pattern
	}
	var classes [6]prometheus.Observer
	for class := 1; class < len(classes); class++ {
		classes[class] = m.seconds.WithLabelValues(name, string(rune('0'+class))+"xx")
	}
	return func(status int, took time.Duration) {
		if class := status / 100; class > 0 && class < len(classes) {
			classes[class].Observe(took.Seconds())
		}
	}
}
