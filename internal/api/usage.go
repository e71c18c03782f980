package api

import (
	"errors"
	"net/http"
	"time"

	"github.com/quotad/quotad/internal/calendar"
	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/ledger"
	"github.com/quotad/quotad/internal/quota"
)

// A usageBody is usage over time in JSON. It has the same shape whether it is grouped or
// not: ungrouped it has one series, without a subject.
type usageBody struct {
	Tenant     string            `json:"tenant"`
	Meter      string            `json:"meter"`
	Unit       string            `json:"unit"`
	Bucket     string            `json:"bucket"`
	Zone       string            `json:"tz"`
	From       time.Time         `json:"from"`
	To         time.Time         `json:"to"`
	Total      int64             `json:"total"`
	Series     []usageSeriesBody `json:"series"`
	NextCursor string            `json:"next_cursor,omitempty"`
}

type usageSeriesBody struct {
	Subject string            `json:"subject,omitempty"`
	Total   int64             `json:"total"`
	Buckets []usageBucketBody `json:"buckets"`
}

type usageBucketBody struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Units int64     `json:"units"`
}

// usageBuckets are the sizes of buckets.
var usageBuckets = []string{
	string(calendar.Minute), string(catalog.CalendarHour), string(catalog.CalendarDay), string(catalog.CalendarWeek),
	string(catalog.CalendarMonth),
}

// usage is GET /v1/tenants/{tenant}/usage: a meter's usage over time.
func (h *Handler) usage(c *call) error {
	q, list, err := c.usageQuery()
	if err != nil {
		return err
	}
	now, err := h.settled(c.r.Context(), c.tenant, q.To)
	if err != nil {
		return err
	}
	if q.To.IsZero() {
		q.To = now.Add(time.Microsecond) // what is of now belongs to it
	}
	usage, err := h.Reader.Usage(c.r.Context(), q)
	switch {
	case errors.Is(err, ledger.ErrNotFound):
		return &problem{code: codeTenantNotFound, cause: err}
	case errors.Is(err, catalog.ErrNotFound):
		return &problem{code: codeMeterNotFound, faults: []quota.Fault{{Field: "meter", Rule: "must name a configured meter"}}}
	case q.AfterSubject > 0 && problemOf(err).code == codeInvalidRequest: // the first page's range was none of these
		return invalid("cursor", cursorRule)
	case err != nil:
		return err
	}
	body := usageBody{
		Tenant: c.tenant, Meter: q.Meter, Unit: usage.Unit, Bucket: string(q.Bucket), Zone: usage.Zone,
		From: usage.From, To: usage.To, Total: usage.Total,
		Series: mapped(usage.Series, newUsageSeriesBody),
	}
	if usage.NextSubject > 0 {
		body.NextCursor = encodeUsageCursor(list, usage)
	}
	return c.json(http.StatusOK, body)
}

func newUsageSeriesBody(s quota.UsageSeries) usageSeriesBody {
	body := usageSeriesBody{Subject: s.Subject, Total: s.Total, Buckets: make([]usageBucketBody, len(s.Units))}
	for i, units := range s.Units {
		body.Buckets[i] = usageBucketBody{From: s.Edges[i], To: s.Edges[i+1], Units: units}
	}
	return body
}

// usageQuery reads the parameters, and what identifies the list of subjects.
func (c *call) usageQuery() (quota.UsageQuery, [cursorDigestBytes]byte, error) {
	var list [cursorDigestBytes]byte
	query, err := c.query("meter", "from", "to", "bucket", "tz", "subject", "group_by", "limit", "cursor")
	if err != nil {
		return quota.UsageQuery{}, list, err
	}
	f := filter{values: query}
	q := quota.UsageQuery{
		Tenant:    c.tenant,
		Meter:     f.text("meter", nameRule),
		Bucket:    catalog.Calendar(f.text("bucket", oneOf(usageBuckets...))),
		Zone:      f.text("tz", zoneRule),
		Subject:   f.text("subject", quota.IDRule),
		BySubject: f.text("group_by", oneOf("subject")) != "",
		Limit:     f.pageSize(),
	}
	if q.Bucket == "" {
		q.Bucket = catalog.CalendarDay
	}
	if !f.values.Has("meter") {
		f.fault("meter", "is required")
	}
	if q.BySubject && q.Subject != "" {
		f.fault("subject", "must not be given together with group_by")
	}
	for _, paging := range []string{"limit", "cursor"} {
		if !q.BySubject && f.values.Has(paging) {
			f.fault(paging, "must not be given without group_by")
		}
	}
	q.From, q.To = f.span()
	list = listDigest("usage", q.Tenant, q.Meter, string(q.Bucket), q.Zone, stamp(q.From), stamp(q.To))
	f.place(list, func(p *placeReader) {
		q.AfterSubject, q.From, q.To = p.number(), p.instant(), p.instant()
	})
	return q, list, f.problem()
}

// encodeUsageCursor makes the cursor of the subjects behind one, in the range that this
// page had: without to it would be another one each time, and pages could not be added up.
func encodeUsageCursor(list [cursorDigestBytes]byte, usage quota.Usage) string {
	place := appendPlaceNumber(nil, usage.NextSubject)
	place = appendPlaceInstant(place, usage.From)
	return encodeCursor(list, appendPlaceInstant(place, usage.To))
}

// zoneRule is the rule that a time zone breaks, or "".
func zoneRule(zone string) string {
	if zone == "" || zone == "Local" {
		return "must be an IANA time zone, like Europe/Berlin"
	}
	if _, err := time.LoadLocation(zone); err != nil {
		return "must be an IANA time zone, like Europe/Berlin"
	}
	return ""
}
