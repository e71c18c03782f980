package api

import (
	"net/http"
	"time"

	"github.com/quotad/quotad/internal/catalog"
	"github.com/quotad/quotad/internal/quota"
)

// A meterBody is a meter in JSON.
type meterBody struct {
	Name string `json:"name"`
	catalog.MeterSpec
}

// A planBody is the current version of a plan in JSON.
type planBody struct {
	Name    string `json:"name"`
	Version int32  `json:"version"`
	catalog.PlanSpec
}

// A tenantBody is a tenant's configuration in JSON.
type tenantBody struct {
	Name string `json:"name"`
	catalog.TenantSpec
	CreatedAt time.Time `json:"created_at"`
}

// sameName refuses a body that names another object than the path. PUT takes what GET
// gives: the name is compared, the version and the time of creation are not looked at.
func sameName(inBody, inPath string) error {
	if inBody != "" && inBody != inPath {
		return invalid("name", "must be the name in the path, or absent")
	}
	return nil
}

// A putBody says what became of an object, and which version the whole configuration
// has now.
type putBody struct {
	catalog.Change
	ConfigVersion int64 `json:"config_version"`

	DryRun  bool           `json:"dry_run,omitempty"` // nothing was changed: this is what would be
	Preview *quota.Preview `json:"preview,omitempty"` // of a dry run that would change something
}

func newMeterBody(m *catalog.Meter) meterBody {
	return meterBody{Name: m.Name, MeterSpec: m.Spec()}
}

func newPlanBody(p *catalog.Plan) planBody {
	return planBody{Name: p.Name, Version: p.Version, PlanSpec: p.Spec()}
}

func newTenantBody(t catalog.Tenant) tenantBody {
	return tenantBody{Name: t.Name, TenantSpec: t.Spec(), CreatedAt: t.CreatedAt.UTC()}
}

// meter is GET /v1/meters/{meter}.
func (h *Handler) meter(c *call) error {
	name, err := c.name("meter")
	if err != nil {
		return err
	}
	m, err := h.Catalog.Meter(c.r.Context(), name)
	if err != nil {
		return notFound(err, "There is no meter "+name+".")
	}
	return c.tagged(m.Tag(), newMeterBody(m))
}

// meters is GET /v1/meters.
func (h *Handler) meters(c *call) error {
	page, err := c.page("meters", nameRule)
	if err != nil {
		return err
	}
	meters, next, err := h.Catalog.Meters(c.r.Context(), page.Page)
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, struct {
		Meters     []meterBody `json:"meters"`
		NextCursor string      `json:"next_cursor,omitempty"`
	}{mapped(meters, newMeterBody), page.cursor(next)})
}

// putMeter is PUT /v1/meters/{meter}.
func (h *Handler) putMeter(c *call) error {
	name, err := c.nameParam("meter")
	if err != nil {
		return err
	}
	change, err := c.change()
	if err != nil {
		return err
	}
	when, err := c.precondition()
	if err != nil {
		return err
	}
	body, err := readSpec[meterBody](c)
	if err != nil {
		return err
	}
	if err := sameName(body.Name, name); err != nil {
		return err
	}
	put, err := change.store.PutMeter(c.r.Context(), c.actor(), name, body.MeterSpec, when)
	return c.put(change, put, err)
}

// plan is GET /v1/plans/{plan}.
func (h *Handler) plan(c *call) error {
	name, err := c.name("plan")
	if err != nil {
		return err
	}
	var p *catalog.Plan
	if err = h.seesPlan(c, name); err == nil {
		p, err = h.Catalog.Plan(c.r.Context(), name)
	}
	if err != nil {
		return notFound(err, "There is no plan "+name+".")
	}
	return c.tagged(p.Tag(), newPlanBody(p))
}

// seesPlan returns [catalog.ErrNotFound] of a plan that the key may not know of. Plans are
// made for customers: a key that is bound to a tenant sees those that the tenant has, or
// had, as its entries name them.
func (h *Handler) seesPlan(c *call, plan string) error {
	if c.key.Tenant == "" {
		return nil
	}
	had, err := h.Catalog.HadPlan(c.r.Context(), c.key.Tenant, plan)
	if err == nil && !had {
		err = catalog.ErrNotFound
	}
	return err
}

// plans is GET /v1/plans.
func (h *Handler) plans(c *call) error {
	page, err := c.page("plans", nameRule)
	if err != nil {
		return err
	}
	var plans []*catalog.Plan
	var next string
	if own := c.key.Tenant; own != "" {
		plans, next, err = h.Catalog.PlansOfTenant(c.r.Context(), own, page.Page)
	} else {
		plans, next, err = h.Catalog.Plans(c.r.Context(), page.Page)
	}
	if err != nil {
		return err
	}
	return c.json(http.StatusOK, struct {
		Plans      []planBody `json:"plans"`
		NextCursor string     `json:"next_cursor,omitempty"`
	}{mapped(plans, newPlanBody), page.cursor(next)})
}

// putPlan is PUT /v1/plans/{plan}.
func (h *Handler) putPlan(c *call) error {
	name, err := c.nameParam("plan")
	if err != nil {
		return err
	}
	change, err := c.change()
	if err != nil {
		return err
	}
	when, err := c.precondition()
	if err != nil {
		return err
	}
	body, err := readSpec[planBody](c)
	if err != nil {
		return err
	}
	if err := sameName(body.Name, name); err != nil {
		return err
	}
	if body.Limits == nil {
		return invalid("limits", "is required; an empty list allows nothing")
	}
	put, err := change.store.PutPlan(c.r.Context(), c.actor(), name, body.PlanSpec, when)
	return c.put(change, put, err)
}

// tenantConfig is GET /v1/tenants/{tenant}.
func (h *Handler) tenantConfig(c *call) error {
	if _, err := c.query(); err != nil {
		return err
	}
	t, err := h.Catalog.Tenant(c.r.Context(), c.tenant)
	if err != nil {
		return tenantNotFound(err)
	}
	return c.tagged(t.Tag(), newTenantBody(t))
}

// tenants is GET /v1/tenants. A key that is bound to a tenant sees that one alone.
func (h *Handler) tenants(c *call) error {
	q := catalog.TenantQuery{}
	page, err := c.page("tenants", catalog.IDRule, nameFilter{"plan", nameRule, &q.Plan},
		nameFilter{"status", oneOf(statuses...), (*string)(&q.Status)}, nameFilter{"prefix", catalog.TextRule, &q.Prefix})
	if err != nil {
		return err
	}
	q.Page = page.Page
	var tenants []catalog.Tenant
	var next string
	if c.key.Tenant == "" {
		tenants, next, err = h.Catalog.Tenants(c.r.Context(), q)
	} else if page.After < c.key.Tenant {
		var t catalog.Tenant
		if t, err = h.Catalog.Tenant(c.r.Context(), c.key.Tenant); err == nil && q.Matches(t) {
			tenants = append(tenants, t)
		}
	}
	if err != nil {
		return tenantNotFound(err)
	}
	return c.json(http.StatusOK, struct {
		Tenants    []tenantBody `json:"tenants"`
		NextCursor string       `json:"next_cursor,omitempty"`
	}{mapped(tenants, newTenantBody), page.cursor(next)})
}

// putTenant is PUT /v1/tenants/{tenant}.
func (h *Handler) putTenant(c *call) error {
	change, err := c.change()
	if err != nil {
		return err
	}
	when, err := c.precondition()
	if err != nil {
		return err
	}
	body, err := readSpec[tenantBody](c)
	if err != nil {
		return err
	}
	if err := sameName(body.Name, c.tenant); err != nil {
		return err
	}
	put, err := change.store.PutTenant(c.r.Context(), c.actor(), c.tenant, body.TenantSpec, when)
	return c.put(change, put, err)
}

// A change is where a PUT makes its change: for good, or with dry_run=true to look at it
// and undo it.
type change struct {
	store   *catalog.Store
	preview *quota.Previewer // of a dry run
}

// change reads whether a PUT is a dry run, which is its only parameter.
func (c *call) change() (change, error) {
	query, err := c.query("dry_run")
	if err != nil {
		return change{}, err
	}
	switch {
	case query.Get("dry_run") == "true":
		preview := quota.NewPreviewer(c.h.Catalog)
		return change{c.h.Catalog.DryRun(preview.Look), preview}, nil
	case query.Get("dry_run") == "false", !query.Has("dry_run"):
		return change{store: c.h.Catalog}, nil
	}
	return change{}, invalid("dry_run", "must be true or false")
}

// put answers a PUT with what became of the object: 201 if it is new. A dry run is
// answered with what would become of it, and of whom else.
func (c *call) put(change change, put catalog.Put, err error) error {
	if faults := catalog.Faults(err); len(faults) > 0 {
		return specProblem(faults)
	}
	if err != nil {
		return err
	}
	if change.preview != nil {
		return c.json(http.StatusOK, putBody{put.Change, put.Version, true, change.preview.Preview()})
	}
	c.w.Header()["ETag"] = []string{etag(put.Tag)}
	status := http.StatusOK
	if put.Outcome == catalog.Created {
		status = http.StatusCreated
	}
	return c.json(status, putBody{Change: put.Change, ConfigVersion: put.Version})
}

// name reads a path parameter that names a meter or a plan, on a route that takes no
// query.
func (c *call) name(param string) (string, error) {
	if _, err := c.query(); err != nil {
		return "", err
	}
	return c.nameParam(param)
}

// nameParam reads a path parameter that names a meter or a plan.
func (c *call) nameParam(param string) (string, error) {
	name, err := c.param(param)
	if err != nil {
		return "", err
	}
	if rule := nameRule(name); rule != "" {
		return "", invalid(param, rule)
	}
	return name, nil
}

// A namePage is a page of a list in the order of names, and that list's digest.
type namePage struct {
	catalog.Page
	list [cursorDigestBytes]byte
}

// A nameFilter is a parameter that a list is filtered by, its rule, and where it goes.
type nameFilter struct {
	name string
	rule func(string) string
	to   *string
}

// page reads the page that a list of names is asked for, and its filters; placeRule is
// the rule of those names. A cursor is good for the same filters only.
func (c *call) page(list string, placeRule func(string) string, filters ...nameFilter) (namePage, error) {
	known, digested := []string{"limit", "cursor"}, []string{list, c.key.Tenant}
	for _, filter := range filters {
		known = append(known, filter.name)
	}
	query, err := c.query(known...)
	if err != nil {
		return namePage{}, err
	}
	f := filter{values: query}
	for _, filter := range filters {
		*filter.to = f.text(filter.name, filter.rule)
		digested = append(digested, *filter.to)
	}
	page := namePage{list: listDigest(digested...)}
	page.Limit = f.pageSize()
	f.place(page.list, func(p *placeReader) { page.After = p.text(placeRule) })
	return page, f.problem()
}

// cursor makes the cursor of the page after the name; "" after the last one.
func (p namePage) cursor(name string) string {
	if name == "" {
		return ""
	}
	return encodeCursor(p.list, []byte(name))
}

func mapped[From, To any](items []From, to func(From) To) []To {
	out := make([]To, 0, len(items))
	for _, item := range items {
		out = append(out, to(item))
	}
	return out
}
