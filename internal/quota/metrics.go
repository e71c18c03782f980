package quota

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics is what an engine counts. Labels come from bounded sets only: outcomes,
// reasons and codes are constants, limits are named by plans, and a tenant is never one.
type metrics struct {
	decisions   *prometheus.CounterVec
	limits      *prometheus.CounterVec
	refusals    *prometheus.CounterVec
	batchCalls  prometheus.Histogram
	batchTime   prometheus.Histogram
	parked      prometheus.Counter
	retries     prometheus.Counter
	lostCommits *prometheus.CounterVec
	clockSteps  prometheus.Counter

	denialsDropped prometheus.Counter
	remembered     prometheus.Counter
	idleLevels     prometheus.Counter
	degraded       *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quotad_decisions_total",
			Help: "Decisions, by outcome (allowed, denied, replayed, dry_run) and reason of denial.",
		}, []string{"outcome", "reason"}),
		limits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quotad_limit_results_total",
			Help: "What limits said, by name and outcome (passed, violated, would_deny).",
		}, []string{"limit", "outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quotad_refusals_total",
			Help: "Requests that got no decision, by error code.",
		}, []string{"code"}),
		batchCalls: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "quotad_batch_calls",
			Help:    "Calls decided in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 10),
		}),
		batchTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "quotad_batch_seconds",
			Help:    "Time of one transaction, from its lock to its commit.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
		parked: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quotad_parked_total",
			Help: "Tenants set aside because another transaction held their account.",
		}),
		retries: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quotad_batch_retries_total",
			Help: "Batches that failed and were tried again.",
		}),
		lostCommits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quotad_lost_commits_total",
			Help: "Commits whose reply was lost, by what was found (committed, rolled_back, unknown).",
		}, []string{"found"}),
		clockSteps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quotad_clock_steps_total",
			Help: "Times the database's clock was seen to have been set.",
		}),
		denialsDropped: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quotad_denials_dropped_total",
			Help: "Denials that were answered and that the log of denials had no room for.",
		}),
		remembered: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quotad_denials_remembered_total",
			Help: "Denials that were given again from memory, without the database.",
		}),
		idleLevels: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "quotad_idle_levels_removed_total",
			Help: "Levels of subjects that were removed since they had been full for long.",
		}),
		degraded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "quotad_degraded_total",
			Help: "Requests answered while the database was away, by outcome (allowed, denied, replayed, refused).",
		}, []string{"outcome"}),
	}
	var errs []error
	for _, c := range []prometheus.Collector{
		m.decisions, m.limits, m.refusals, m.batchCalls, m.batchTime, m.parked, m.retries, m.lostCommits, m.clockSteps,
		m.denialsDropped, m.remembered, m.idleLevels, m.degraded,
	} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// answered counts the outcome of a call.
func (m *metrics) answered(c *call, out *outcome) {
	d := &out.decision
	switch {
	case out.err != nil:
		m.refused(out.err)
	case c.stand:
	case d.Replayed:
		m.decisions.WithLabelValues("replayed", "").Inc()
	case c.request.DryRun:
		m.decisions.WithLabelValues("dry_run", string(d.Reason)).Inc()
	case d.Allowed:
		m.decisions.WithLabelValues("allowed", "").Inc()
		m.said(d)
	default:
		m.denied(d)
	}
}

// denied counts a denial.
func (m *metrics) denied(d *Decision) {
	m.decisions.WithLabelValues("denied", string(d.Reason)).Inc()
	m.said(d)
}

// said counts what every limit said.
func (m *metrics) said(d *Decision) {
	for i := range d.Limits {
		l := &d.Limits[i]
		outcome := "passed"
		switch {
		case l.Violated:
			outcome = "violated"
		case l.WouldDeny:
			outcome = "would_deny"
		}
		m.limits.WithLabelValues(l.Name, outcome).Inc()
	}
}

// refused counts a request that got no decision.
func (m *metrics) refused(err error) {
	var refusal *Error
	if errors.As(err, &refusal) {
		m.refusals.WithLabelValues(string(refusal.Code)).Inc()
	}
}

// dropped counts denials that are not kept.
func (m *metrics) dropped(denials int) { m.denialsDropped.Add(float64(denials)) }

// removed counts levels that were removed.
func (m *metrics) removed(levels int) { m.idleLevels.Add(float64(levels)) }

func (m *metrics) batch(calls int, took time.Duration) {
	m.batchCalls.Observe(float64(calls))
	m.batchTime.Observe(took.Seconds())
}

// pendingGauge shows how many grants are not in the ledger yet.
func pendingGauge(pending func() int) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "quotad_degraded_pending",
		Help: "Requests granted while the database was away that are not in the ledger yet.",
	}, func() float64 { return float64(pending()) })
}
