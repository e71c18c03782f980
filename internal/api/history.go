package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/quotad/quotad/internal/catalog"
)

type changesPage struct {
	Changes    []catalog.Record `json:"changes"`
	NextCursor string           `json:"next_cursor,omitempty"`
}

// changes is GET /v1/changes: the configuration's history. A key that is bound to a
// tenant sees that tenant's alone.
func (h *Handler) changes(c *call) error {
	query, err := c.query("limit", "cursor", "object", "name", "by", "from", "to", "order")
	if err != nil {
		return err
	}
	f := filter{values: query}
	q := catalog.RecordQuery{
		Object:    catalog.Object(f.text("object", oneOf(objects...))),
		Name:      f.text("name", catalog.TextRule),
		By:        f.text("by", catalog.TextRule),
		Ascending: f.text("order", oneOf("asc", "desc")) == "asc",
		Limit:     f.pageSize(),
	}
	q.From, q.To = f.span()
	list := listDigest("changes", c.key.Tenant, string(q.Object), q.Name, q.By, stamp(q.From), stamp(q.To), strconv.FormatBool(q.Ascending))
	f.place(list, func(p *placeReader) { q.AfterAt, q.AfterID = p.instant(), p.number() })
	if err := f.problem(); err != nil {
		return err
	}
	page := changesPage{Changes: []catalog.Record{}}
	if own := c.key.Tenant; own != "" {
		if q.Object != "" && q.Object != catalog.ObjectTenant || q.Name != "" && q.Name != own {
			return c.json(http.StatusOK, page)
		}
		q.Object, q.Name = catalog.ObjectTenant, own
	}
	records, more, err := h.Catalog.Records(c.r.Context(), q)
	if err != nil {
		return err
	}
	page.Changes = append(page.Changes, records...)
	if more {
		last := records[len(records)-1]
		page.NextCursor = encodeCursor(list, appendPlaceNumber(appendPlaceInstant(nil, last.At), last.ID))
	}
	return c.json(http.StatusOK, page)
}

// These are what lists may be filtered by.
var (
	objects = []string{
		string(catalog.ObjectMeter), string(catalog.ObjectPlan), string(catalog.ObjectTenant),
		string(catalog.ObjectKey), string(catalog.ObjectSettings),
	}
	keyScopes = []string{
		string(catalog.KeyDecide), string(catalog.KeyRead), string(catalog.KeyAudit), string(catalog.KeyAdmin),
	}
	statuses = []string{string(catalog.StatusActive), string(catalog.StatusSuspended), string(catalog.StatusClosed)}
)

// A planVersionBody is one version of a plan in JSON, current or not.
type planVersionBody struct {
	planBody
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by,omitempty"`
}

// newPlanVersionBody leaves out who made a version from what a key sees that is bound to a
// tenant: who runs the service is none of a customer's business.
func (c *call) newPlanVersionBody(v catalog.PlanVersion) planVersionBody {
	body := planVersionBody{newPlanBody(&v.Plan), v.CreatedAt, v.CreatedBy}
	if c.key.Tenant != "" {
		body.CreatedBy = ""
	}
	return body
}

type planVersionsPage struct {
	Versions   []planVersionBody `json:"versions"`
	NextCursor string            `json:"next_cursor,omitempty"`
}

// planVersions is GET /v1/plans/{plan}/versions: the newest first. They outlive the
// plan, as entries name them.
func (h *Handler) planVersions(c *call) error {
	query, err := c.query("limit", "cursor")
	if err != nil {
		return err
	}
	name, err := c.nameParam("plan")
	if err != nil {
		return err
	}
	f := filter{values: query}
	limit := f.pageSize()
	list := listDigest("plans/versions", c.key.Tenant, name)
	var below int32
	f.place(list, func(p *placeReader) { below = p.version() })
	if err := f.problem(); err != nil {
		return err
	}
	var versions []catalog.PlanVersion
	var more bool
	if err = h.seesPlan(c, name); err == nil {
		versions, more, err = h.Catalog.PlanVersionsOf(c.r.Context(), name, below, limit)
	}
	if err == nil && len(versions) == 0 && below == 0 {
		err = catalog.ErrNotFound
	}
	if err != nil {
		return notFound(err, "There never was a plan "+name+".")
	}
	page := planVersionsPage{Versions: mapped(versions, c.newPlanVersionBody)}
	if more {
		last := versions[len(versions)-1].Version
		page.NextCursor = encodeCursor(list, appendPlaceVersion(nil, last))
	}
	return c.json(http.StatusOK, page)
}

// planVersion is GET /v1/plans/{plan}/versions/{version}.
func (h *Handler) planVersion(c *call) error {
	name, err := c.name("plan")
	if err != nil {
		return err
	}
	text, err := c.param("version")
	if err != nil {
		return err
	}
	version, parseErr := strconv.ParseInt(text, 10, 32)
	if parseErr != nil || version < 1 || strconv.FormatInt(version, 10) != text {
		return invalid("version", "must be a whole number from 1 to 2147483647")
	}
	var v catalog.PlanVersion
	if err = h.seesPlan(c, name); err == nil {
		v, err = h.Catalog.PlanVersionOf(c.r.Context(), name, int32(version))
	}
	if err != nil {
		return notFound(err, "The plan "+name+" has no version "+text+".")
	}
	return c.json(http.StatusOK, c.newPlanVersionBody(v))
}
