package main

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestServeFindsClientsBehindItsTrustedProxies(t *testing.T) {
	t.Parallel()
	db := migrated(t)
	token := configure(t, db, `
meters:
  api.calls: {unit: call}
plans:
  each:
    limits:
      - {name: each, meter: api.calls, algorithm: sliding_log, limit: 10, window: 1h, scope: subject}
tenants:
  acme: {plan: each}
`)
	i := startServe(t, db, "--trusted-proxies", "192.0.2.1,10.0.0.0/8", "--ipv6-prefix", "56", "--ipv4-prefix", "24")
	for hops, want := range map[string]string{
		"2001:db8:1:2ff::1, 192.0.2.1": "2001:db8:1:200::/56",
		"203.0.113.9":                  "203.0.113.0/24",
	} {
		body := `{"tenant":"acme","meter":"api.calls","client":{"peer":"10.0.0.7:80","forwarded_for":["` + hops + `"]}}`
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+"/v1/consume", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || !strings.Contains(string(answer), `"subject":"`+want+`"`) {
			t.Errorf("a client at %q is answered %s (%v), want the subject %s", hops, answer, err, want)
		}
	}
	i.stop(t, sigterm)
}

func TestProxiesThatCannotBeTrustedAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		flags clientFlags
		want  string
	}{
		{clientFlags{TrustedProxies: []string{"10.0.0.0/8", "proxy"}, IPv4Prefix: 32, IPv6Prefix: 64}, "proxy"},
		{clientFlags{TrustedProxies: []string{"0.0.0.0/0"}, IPv4Prefix: 32, IPv6Prefix: 64}, "all addresses"},
		{clientFlags{IPv4Prefix: 0, IPv6Prefix: 64}, "--ipv4-prefix: must be 1 to 32 bits, not 0"},
		{clientFlags{IPv4Prefix: 33, IPv6Prefix: 64}, "--ipv4-prefix: must be 1 to 32 bits, not 33"},
		{clientFlags{IPv4Prefix: 32, IPv6Prefix: 129}, "--ipv6-prefix: must be 1 to 128 bits, not 129"},
	} {
		if _, err := tt.flags.resolver(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("resolver of %+v = %v, want an error with %q", tt.flags, err, tt.want)
		}
	}
}
