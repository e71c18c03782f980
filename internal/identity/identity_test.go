package identity

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func trusting(t testing.TB, proxies ...string) Resolver {
	t.Helper()
	prefixes, err := ParsePrefixes(proxies)
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(Config{TrustedProxies: prefixes})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTheClientIsTheRightmostAddressThatIsNoTrustedProxy(t *testing.T) {
	t.Parallel()
	r := trusting(t, "10.0.0.0/8", "192.0.2.1", "2001:db8:ffff::/48")
	for name, c := range map[string]struct {
		peer  string
		lines []string
		want  string
	}{
		"a direct client":                      {"203.0.113.7:1234", nil, "203.0.113.7"},
		"a direct client that lies":            {"203.0.113.7:1234", []string{"198.51.100.1"}, "203.0.113.7"},
		"behind a proxy":                       {"10.0.0.7:1234", []string{"203.0.113.9"}, "203.0.113.9"},
		"behind two":                           {"10.0.0.7:1234", []string{"203.0.113.9, 10.1.1.1"}, "203.0.113.9"},
		"spoofed on the left":                  {"10.0.0.7:1234", []string{"198.51.100.1, 203.0.113.9, 10.1.1.1"}, "203.0.113.9"},
		"a trusted address spoofed":            {"10.0.0.7:1234", []string{"10.9.9.9, 203.0.113.9"}, "203.0.113.9"},
		"several lines are one list":           {"10.0.0.7:1234", []string{"198.51.100.1", "203.0.113.9,10.1.1.1", "192.0.2.1"}, "203.0.113.9"},
		"only proxies":                         {"10.0.0.7:1234", []string{"10.3.3.3, 10.2.2.2"}, "10.3.3.3"},
		"a proxy that says nothing":            {"10.0.0.7:1234", nil, "10.0.0.7"},
		"an empty line":                        {"10.0.0.7:1234", []string{""}, "10.0.0.7"},
		"an empty line before":                 {"10.0.0.7:1234", []string{"", "203.0.113.9"}, "203.0.113.9"},
		"an empty hop":                         {"10.0.0.7:1234", []string{"203.0.113.9,, 10.1.1.1"}, "10.1.1.1"},
		"nonsense as the last hop":             {"10.0.0.7:1234", []string{"203.0.113.9, unknown"}, "10.0.0.7"},
		"nonsense behind a proxy":              {"10.0.0.7:1234", []string{"203.0.113.9, unknown, 10.1.1.1"}, "10.1.1.1"},
		"nonsense that is not reached":         {"10.0.0.7:1234", []string{"what?, 203.0.113.9"}, "203.0.113.9"},
		"an obfuscated name":                   {"10.0.0.7:1234", []string{"_hidden"}, "10.0.0.7"},
		"with a port":                          {"10.0.0.7", []string{"203.0.113.9:65535"}, "203.0.113.9"},
		"a port that is none":                  {"10.0.0.7", []string{"203.0.113.9:65536"}, "10.0.0.7"},
		"tabs and spaces":                      {" 10.0.0.7:1 ", []string{"\t203.0.113.9\t ,10.1.1.1"}, "203.0.113.9"},
		"IPv6":                                 {"10.0.0.7:1234", []string{"2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"},
		"IPv6 written at length":               {"10.0.0.7:1234", []string{"2001:0DB8:0001:0002::1"}, "2001:db8:1:2::/64"},
		"IPv6 in brackets":                     {"10.0.0.7:1234", []string{"[2001:db8:1:2::1]"}, "2001:db8:1:2::/64"},
		"IPv6 in brackets with a port":         {"10.0.0.7:1234", []string{"[2001:db8:1:2::1]:443"}, "2001:db8:1:2::/64"},
		"an IPv6 proxy":                        {"[2001:db8:ffff::1]:80", []string{"203.0.113.9"}, "203.0.113.9"},
		"IPv4 in IPv6 form":                    {"10.0.0.7:1234", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		"the same in hexadecimal":              {"10.0.0.7:1234", []string{"::ffff:cb00:7109"}, "203.0.113.9"},
		"a proxy in IPv6 form":                 {"[::ffff:10.0.0.7]:80", []string{"203.0.113.9"}, "203.0.113.9"},
		"a zone":                               {"fe80::1%eth0", nil, "fe80::/64"},
		"a zone with a port":                   {"[fe80::1%eth0]:80", nil, "fe80::/64"},
		"IPv4 in brackets":                     {"10.0.0.7:1234", []string{"[203.0.113.9]"}, "10.0.0.7"},
		"leading zeros, which some read octal": {"10.0.0.7:1234", []string{"0203.0.113.9"}, "10.0.0.7"},
	} {
		if got, err := r.Subject(c.peer, c.lines); got != c.want || err != nil {
			t.Errorf("%s: Subject(%q, %q) = %q, %v; want %q", name, c.peer, c.lines, got, err, c.want)
		}
	}
}

func TestAPeerThatIsNoAddressIsRefused(t *testing.T) {
	t.Parallel()
	r := trusting(t, "10.0.0.0/8")
	for _, peer := range []string{"", "@", "localhost:80", "10.0.0.7, 10.0.0.8", "10.0.0", "[10.0.0.7]", "[::1", "::1]:80", "10.0.0.7:", "10.0.0.7:http"} {
		if got, err := r.Subject(peer, []string{"203.0.113.9"}); !errors.Is(err, ErrPeer) {
			t.Errorf("Subject(%q) = %q, %v; want ErrPeer", peer, got, err)
		}
	}
}

func TestAZeroResolverTrustsNobody(t *testing.T) {
	t.Parallel()
	if got, err := (Resolver{}).Subject("127.0.0.1:1", []string{"203.0.113.9"}); got != "127.0.0.1" || err != nil {
		t.Errorf("Subject = %q, %v; want the peer", got, err)
	}
}

// A list that is longer than any chain of proxies costs no more than such a chain.
func TestAWalkIsBounded(t *testing.T) {
	t.Parallel()
	r := trusting(t, "10.0.0.0/8")
	long := "203.0.113.9" + strings.Repeat(",10.1.1.1", hopsMax)
	if got, err := r.Subject("10.0.0.7", []string{long}); got != "10.1.1.1" || err != nil {
		t.Errorf("Subject = %q, %v; want the last proxy that was looked at", got, err)
	}
}

func TestGroupsAreOfTheConfiguredLengths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		config Config
		peer   string
		want   string
	}{
		{Config{IPv4Bits: 24}, "203.0.113.7", "203.0.113.0/24"},
		{Config{IPv4Bits: 32}, "203.0.113.7", "203.0.113.7"},
		{Config{IPv4Bits: 24, IPv6Bits: 56}, "2001:db8:1:2ff::1", "2001:db8:1:200::/56"},
		{Config{IPv6Bits: 128}, "2001:db8::0001", "2001:db8::1"},
		{Config{IPv6Bits: 1}, "ffff::1", "8000::/1"},
		{Config{IPv6Bits: 48}, "::ffff:203.0.113.7", "203.0.113.7"},
	} {
		r, err := New(c.config)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := r.Subject(c.peer, nil); got != c.want || err != nil {
			t.Errorf("%+v: Subject(%q) = %q, %v; want %q", c.config, c.peer, got, err, c.want)
		}
	}
	for _, c := range []Config{{IPv4Bits: 33}, {IPv6Bits: 129}, {IPv4Bits: -1}, {IPv6Bits: -1}} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) took a length that no address has", c)
		}
	}
}

func TestTrustedProxiesAreCheckedWhenTheyAreConfigured(t *testing.T) {
	t.Parallel()
	got, err := ParsePrefixes([]string{"10.0.0.0/8", " 192.0.2.1", "::1", "::ffff:172.16.0.0/108", "::ffff:192.0.2.2"})
	want := []string{"10.0.0.0/8", "192.0.2.1/32", "::1/128", "172.16.0.0/12", "192.0.2.2/32"}
	if err != nil || len(got) != len(want) {
		t.Fatalf("ParsePrefixes = %v, %v", got, err)
	}
	for i := range want {
		if got[i] != netip.MustParsePrefix(want[i]) {
			t.Errorf("prefix %d is %s, want %s", i, got[i], want[i])
		}
	}
	for text, rule := range map[string]string{
		"":               "CIDR",
		"private":        "CIDR",
		"10.0.0.0/33":    "CIDR",
		"10.0.0.7/8":     "10.0.0.0/8",
		"0.0.0.0/0":      "all addresses",
		"::/0":           "all addresses",
		"::ffff:0:0/96":  "all addresses",
		"fe80::%eth0/64": "CIDR",
		"2001:db8::1/32": "2001:db8::/32",
	} {
		if _, err := ParsePrefixes([]string{"10.0.0.0/8", text}); err == nil || !strings.Contains(err.Error(), rule) {
			t.Errorf("ParsePrefixes(%q) = %v, want a fault about %s", text, err, rule)
		}
	}
}
