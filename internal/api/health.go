package api

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// healthz says that the process answers; it asks nobody else, since restarting an
// instance does not bring a database back.
func (h *Handler) healthz(c *call) error {
	return c.json(http.StatusOK, struct {
		Alive bool `json:"alive"`
	}{true})
}

// A readyBody says whether this instance should get requests, and why not.
type readyBody struct {
	Ready    bool     `json:"ready"`
	Faults   []string `json:"faults"`
	Warnings []string `json:"warnings"`
}

// readyz is 200 while this instance can decide, else 503.
func (h *Handler) readyz(c *call) error {
	health := h.Engine.Health()
	body := readyBody{
		Ready:    health.Ready,
		Faults:   append([]string{}, health.Faults...),
		Warnings: append([]string{}, health.Warnings...),
	}
	if h.draining.Load() {
		body.Ready = false
		body.Faults = append(body.Faults, "draining")
	}
	status := http.StatusOK
	if !body.Ready {
		status = http.StatusServiceUnavailable
	}
	return c.json(status, body)
}

// metricsText is GET /metrics, in the text form that Prometheus reads.
func (h *Handler) metricsText() func(c *call) error {
	serve := promhttp.HandlerFor(h.Metrics, promhttp.HandlerOpts{Registry: h.Metrics})
	return func(c *call) error {
		c.status = http.StatusOK
		serve.ServeHTTP(c.w, c.r)
		return nil
	}
}
