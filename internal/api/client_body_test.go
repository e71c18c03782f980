package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/quotad/quotad/internal/identity"
)

// behindProxies serves callers whose proxies are in 10.0.0.0/8.
func behindProxies(t *testing.T) *service {
	t.Helper()
	prefixes, err := identity.ParsePrefixes([]string{"10.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	clients, err := identity.New(identity.Config{TrustedProxies: prefixes})
	if err != nil {
		t.Fatal(err)
	}
	return newService(t, func(c *Config) { c.Clients = clients })
}

// fromClient is a call of a client as a proxy passes it on.
func fromClient(peer string, lines ...string) string {
	quoted := make([]string, len(lines))
	for i, line := range lines {
		quoted[i] = fmt.Sprintf("%q", line)
	}
	return fmt.Sprintf(`{"tenant":"users","meter":"api.calls","client":{"peer":%q,"forwarded_for":[%s]}}`, peer, strings.Join(quoted, ","))
}

// A client that makes an address up for each call must neither get a fresh limit with each
// nor use up the limit of who has that address.
func TestALimitPerClientIsNotEvadedByForwardedAddresses(t *testing.T) {
	t.Parallel()
	s := behindProxies(t)
	for i := range 4 {
		a := s.consume(fromClient("10.0.0.7:1234", fmt.Sprintf("198.51.100.%d, 203.0.113.9", i), "10.1.1.1"))
		if d := s.decided(a); d.Subject != "203.0.113.9" || d.Allowed != (i < 2) {
			t.Errorf("call %d of one client: %+v", i, d)
		}
	}
	if d := s.decided(s.consume(fromClient("10.0.0.7:1234", "198.51.100.1"))); !d.Allowed || d.Subject != "198.51.100.1" {
		t.Errorf("the client whose address was made up: %+v", d)
	}
	if d := s.decided(s.consume(fromClient("203.0.113.10:99", "198.51.100.1"))); !d.Allowed || d.Subject != "203.0.113.10" {
		t.Errorf("a client that nobody trusts: %+v", d)
	}
}

func TestAnIPv6ClientThatRotatesInItsPrefixIsOneSubject(t *testing.T) {
	t.Parallel()
	s := behindProxies(t)
	for i := range 4 {
		a := s.consume(fromClient("10.0.0.7:1234", fmt.Sprintf("[2001:db8:1:2::%x]:443", 1<<(i*4))))
		if d := s.decided(a); d.Subject != "2001:db8:1:2::/64" || d.Allowed != (i < 2) {
			t.Errorf("address %d of one client: %+v", i, d)
		}
	}
	if d := s.decided(s.consume(fromClient("10.0.0.7:1234", "2001:db8:1:3::1"))); !d.Allowed {
		t.Errorf("the neighbour: %+v", d)
	}
}

func TestItemsOfABatchNameTheirClients(t *testing.T) {
	t.Parallel()
	s := behindProxies(t)
	a := s.batch(fromClient("10.0.0.7:1", "203.0.113.9"), fromClient("10.0.0.7:1", "nobody"), `{"tenant":"users","meter":"api.calls","client":{}}`)
	a.want(t, http.StatusOK)
	for _, part := range []string{`"subject":"203.0.113.9"`, `"subject":"10.0.0.7"`, `"field":"client.peer","detail":"is required"`} {
		if !strings.Contains(a.body, part) {
			t.Errorf("the batch got %s, which lacks %s", a.body, part)
		}
	}
}

func TestFaultsOfAClientAreNamed(t *testing.T) {
	const ok = `"tenant":"t","meter":"m"`
	for body, want := range map[string]struct{ field, rule string }{
		`{` + ok + `,"client":{"peer":"1.2.3.4"},"subject":"u"}`:                                                        {"client", "must not be given together with subject"},
		`{` + ok + `,"client":{"peer":"1.2.3.4"},"subject":""}`:                                                         {"client", "must not be given together with subject"},
		`{` + ok + `,"client":null}`:                                                                                    {"client", "must be an object"},
		`{` + ok + `,"client":"1.2.3.4"}`:                                                                               {"client", "must be an object"},
		`{` + ok + `,"client":{}}`:                                                                                      {"client.peer", "is required"},
		`{` + ok + `,"client":{"peer":7}}`:                                                                              {"client.peer", "must be a string"},
		`{` + ok + `,"client":{"peer":"gateway:80"}}`:                                                                   {"client.peer", "must be an IP address, with or without a port"},
		`{` + ok + `,"client":{"peer":"1.2.3.4","port":1}}`:                                                             {"client.port", "is not a field of this request"},
		`{` + ok + `,"client":{"peer":"1.2.3.4","forwarded_for":"1.2.3.4"}}`:                                            {"client.forwarded_for", "must be an array"},
		`{` + ok + `,"client":{"peer":"1.2.3.4","forwarded_for":["1.2.3.4",7]}}`:                                        {"client.forwarded_for[1]", "must be a string"},
		`{` + ok + `,"client":{"peer":"1.2.3.4","peer":"1.2.3.5"}}`:                                                     {"client.peer", "must be given only once"},
		`{` + ok + `,"client":{"peer":"1.2.3.4","forwarded_for":[""` + strings.Repeat(`,""`, forwardedLinesMax) + `]}}`: {"client.forwarded_for", "must hold at most 32 values"},
	} {
		_, faults := decode(body)
		if len(faults) != 1 || faults[0].Field != want.field || faults[0].Rule != want.rule {
			t.Errorf("decode(%s) has faults %v, want %v", body, faults, want)
		}
	}
}
