package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/internal/pgtest"
)

// Every text with the prefix lies from the prefix to what is beyond it, and no other.
func TestBeyondPrefixEndsExactlyTheTextsThatHaveIt(t *testing.T) {
	t.Parallel()
	text := rapid.StringOfN(rapid.RuneFrom([]rune{'a', 'b', 0x7f, 0x7ff, 0xd7ff, 0xe000, 0xffff, 0x10ffff}), 1, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		prefix, other := text.Draw(t, "prefix"), text.Draw(t, "other")
		beyond := beyondPrefix(prefix)
		within := other >= prefix && (beyond == "" || other < beyond)
		if has := strings.HasPrefix(other, prefix); within != has {
			t.Fatalf("%q from %q to %q: within %v, has the prefix %v", other, prefix, beyond, within, has)
		}
	})
}

// Filters together select what each selects, page by page, and the last page is never
// empty.
func TestFilteredListsComeInPages(t *testing.T) {
	t.Parallel()
	s := NewStore(pgtest.New(t).Service(t))
	ctx := t.Context()
	config := &Config{Plans: map[string]PlanSpec{"p": {}, "q": {}}, Tenants: map[string]TenantSpec{}}
	for i := range 12 {
		spec := TenantSpec{Plan: []string{"p", "q"}[i%2], Status: []Status{StatusActive, StatusSuspended, StatusClosed}[i%3]}
		config.Tenants[fmt.Sprintf("%s%02d", []string{"a", "b%", "b_", "ü"}[i/3], i)] = spec
	}
	if _, err := s.Apply(ctx, "tester", config, ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	all, _, err := s.Tenants(ctx, TenantQuery{})
	if err != nil || len(all) != 12 {
		t.Fatalf("Tenants = %d, %v", len(all), err)
	}
	for _, q := range []TenantQuery{
		{},
		{Plan: "p"},
		{Plan: "none"},
		{Status: StatusClosed},
		{Prefix: "b"},
		{Prefix: "b%"},
		{Prefix: "ü"},
		{Prefix: "c"},
		{Plan: "q", Status: StatusSuspended},
		{Plan: "p", Prefix: "b"},
		{Plan: "p", Status: StatusActive, Prefix: "a"},
	} {
		want := slices.DeleteFunc(slices.Clone(all), func(t Tenant) bool { return !q.Matches(t) })
		for _, limit := range []int{1, 3, 6, 1000} {
			q.Page = Page{Limit: limit}
			var got []Tenant
			pages := 0
			for {
				tenants, next, err := s.Tenants(ctx, q)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, tenants...)
				pages++
				if q.After = next; next == "" {
					break
				}
			}
			if diff := cmp.Diff(want, got, cmp.Transformer("empty", func(t []Tenant) []Tenant { return append([]Tenant{}, t...) })); diff != "" {
				t.Errorf("%+v (-want +got):\n%s", q, diff)
			}
			if wantPages := max(1, (len(want)+limit-1)/limit); pages != wantPages {
				t.Errorf("%+v: %d pages of %d, want %d", q, pages, limit, wantPages)
			}
		}
	}
}

func TestKeysAreFilteredByTenantScopeAndRevocation(t *testing.T) {
	t.Parallel()
	s := NewStore(pgtest.New(t).Service(t))
	ctx := t.Context()
	config := &Config{Plans: map[string]PlanSpec{"p": {}}, Tenants: map[string]TenantSpec{"acme": {Plan: "p"}}}
	if _, err := s.Apply(ctx, "tester", config, ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for name, spec := range map[string]KeySpec{
		"admin": {Scopes: []KeyScope{KeyAdmin}}, "gone": {Scopes: []KeyScope{KeyRead}},
		"acme": {Scopes: []KeyScope{KeyRead, KeyDecide}, Tenant: "acme"}, "audit": {Scopes: []KeyScope{KeyAudit}},
	} {
		key, _, err := s.CreateKey(ctx, "tester", spec)
		if err != nil {
			t.Fatal(err)
		}
		ids[key.ID] = name
	}
	for id, name := range ids {
		if name == "gone" {
			if _, err := s.RevokeKey(ctx, "tester", id); err != nil {
				t.Fatal(err)
			}
		}
	}
	yes, no := true, false
	for _, test := range []struct {
		query KeyQuery
		want  []string
	}{
		{KeyQuery{}, []string{"acme", "admin", "audit", "gone"}},
		{KeyQuery{Tenant: "acme"}, []string{"acme"}},
		{KeyQuery{Tenant: "nobody"}, nil},
		{KeyQuery{Scope: KeyRead}, []string{"acme", "gone"}},
		{KeyQuery{Scope: KeyRead, Revoked: &no}, []string{"acme"}},
		{KeyQuery{Scope: KeyDecide}, []string{"acme"}},
		{KeyQuery{Scope: KeyAudit}, []string{"audit"}},
		{KeyQuery{Scope: KeyAdmin}, []string{"admin"}},
		{KeyQuery{Revoked: &yes}, []string{"gone"}},
		{KeyQuery{Revoked: &no}, []string{"acme", "admin", "audit"}},
	} {
		keys, _, err := s.Keys(ctx, test.query)
		var got []string
		for _, k := range keys {
			got = append(got, ids[k.ID])
		}
		slices.Sort(got)
		if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
			t.Errorf("Keys(%+v), %v (-want +got):\n%s", test.query, err, diff)
		}
	}
}

func TestHistoryIsFilteredAndPagedByTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s := NewStore(db.Service(t))
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	// Two share an instant, as changes of one transaction may.
	db.Exec(t, `
insert into quotad.config_change (changed_at, changed_by, object, name)
select $1::timestamptz + (i / 2) * interval '1 second', case when i < 6 then 'ann' else 'bob' end,
  case when i % 3 = 0 then 'plan' else 'tenant' end, 'n' || i % 4
from generate_series(0, 11) as i`, at)
	all, more, err := s.Records(t.Context(), RecordQuery{Ascending: true})
	if err != nil || more || len(all) != 12 {
		t.Fatalf("Records = %d, more %v, %v", len(all), more, err)
	}
	for _, q := range []RecordQuery{
		{},
		{Object: ObjectPlan},
		{Object: ObjectKey},
		{Name: "n1"},
		{By: "bob"},
		{From: at.Add(2 * time.Second)},
		{To: at.Add(2 * time.Second)},
		{By: "ann", Object: ObjectTenant, Name: "n1", From: at, To: at.Add(time.Hour)},
	} {
		for _, q.Ascending = range []bool{true, false} {
			want := slices.DeleteFunc(slices.Clone(all), func(r Record) bool {
				return q.Object != "" && q.Object != r.Object || q.Name != "" && q.Name != r.Name || q.By != "" && q.By != r.By ||
					r.At.Before(q.From) || !q.To.IsZero() && !r.At.Before(q.To)
			})
			if !q.Ascending {
				slices.Reverse(want)
			}
			for _, q.Limit = range []int{1, 3, 1000} {
				got, q := []Record{}, q
				for more := true; more; {
					var page []Record
					if page, more, err = s.Records(t.Context(), q); err != nil || more && len(page) != q.Limit {
						t.Fatalf("Records(%+v) = %d, more %v, %v", q, len(page), more, err)
					}
					if got = append(got, page...); more {
						q.AfterAt, q.AfterID = page[len(page)-1].At, page[len(page)-1].ID
					}
				}
				if diff := cmp.Diff(append([]Record{}, want...), got); diff != "" {
					t.Errorf("%+v (-want +got):\n%s", q, diff)
				}
			}
		}
	}
}
