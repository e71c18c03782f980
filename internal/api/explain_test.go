package api

import (
	"testing"

	"github.com/google/uuid"

	"github.com/quotad/quotad/internal/catalog"
)

// Who asks why gets the sum that was compared, for a request that was allowed and for
// one that was denied.
func TestExplainShowsTheSumOfEachLimit(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.consume(`{"tenant":"globex","meter":"api.calls","cost":2}`).want(t, 200)
	s.consume(`{"tenant":"globex","charges":[{"meter":"api.calls"},{"meter":"llm.tokens","pools":{"input":7}}]}`).want(t, 200)
	golden(t, "explain_allowed", s.get(catalog.KeyAudit, "/v1/tenants/globex/explain?seq=3"))
	denied := s.consume(`{"tenant":"globex","meter":"api.calls","cost":3}`).want(t, 429).decision(t)
	golden(t, "explain_denied", s.get(catalog.KeyAudit, "/v1/tenants/globex/explain?request_id="+denied.RequestID.String()))

	path := "/v1/tenants/globex/explain"
	s.get(catalog.KeyAudit, path).wantFault(t, "seq", "must be given, or request_id")
	s.get(catalog.KeyAudit, path+"?seq=1&request_id="+denied.RequestID.String()).wantFault(t, "seq", "not both")
	s.get(catalog.KeyAudit, path+"?seq=0").wantFault(t, "seq", "from 1")
	s.get(catalog.KeyAudit, path+"?request_id=x").wantFault(t, "request_id", "UUID")
	s.get(catalog.KeyAudit, path+"?seq=4").want(t, 404, codeNotFound)
	s.get(catalog.KeyAudit, path+"?request_id="+uuid.NewString()).want(t, 404, codeNotFound)
	s.get(catalog.KeyAudit, "/v1/tenants/nobody/explain?seq=1").want(t, 404, codeTenantNotFound)
	// Another tenant's request is not there, for any key.
	s.get(catalog.KeyAudit, "/v1/tenants/acme/explain?request_id="+denied.RequestID.String()).want(t, 404, codeNotFound)
}
