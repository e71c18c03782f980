package identity

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Each test makes generators of its own: tests at the same time must not share one.
func addr4() *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "v4")))
	})
}

func addr6() *rapid.Generator[netip.Addr] {
	return rapid.Custom(func(t *rapid.T) netip.Addr {
		return netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "v6")))
	})
}

// outside is an address that is no proxy's.
func outside() *rapid.Generator[netip.Addr] {
	return rapid.OneOf(addr4(), addr6()).Filter(func(a netip.Addr) bool {
		return !netip.MustParsePrefix("10.0.0.0/8").Contains(a.Unmap())
	})
}

// written is an address in one of the forms that proxies write.
func written(t *rapid.T, a netip.Addr) string {
	forms := []string{a.String(), netip.AddrPortFrom(a, 443).String()}
	if a.Is4() {
		mapped := netip.AddrFrom16(a.As16())
		forms = append(forms, mapped.String(), "["+mapped.String()+"]:80")
	} else {
		forms = append(forms, a.StringExpanded(), strings.ToUpper(a.String()), "["+a.String()+"]")
	}
	return rapid.SampledFrom(forms).Draw(t, "form")
}

func subjectOf(t *rapid.T, r Resolver, peer string, lines []string) string {
	subject, err := r.Subject(peer, lines)
	if err != nil {
		t.Fatalf("Subject(%q, %q): %v", peer, lines, err)
	}
	return subject
}

// Whatever a client sends, the proxy's own word comes after it: the client is who it is.
func TestWhatAClientSendsItselfNeverMatters(t *testing.T) {
	t.Parallel()
	r, outside := trusting(t, "10.0.0.0/8"), outside()
	rapid.Check(t, func(t *rapid.T) {
		client := outside.Draw(t, "client")
		spoofed := rapid.SliceOf(rapid.OneOf(
			rapid.String(), rapid.Just("10.1.1.1"), rapid.Map(outside, netip.Addr.String),
		)).Draw(t, "spoofed")
		chain := []string{written(t, client)}
		for range rapid.IntRange(0, 3).Draw(t, "proxies") {
			chain = append(chain, "10.2.2.2")
		}
		own := strings.Join(chain, ", ")
		lines := append([]string{}, spoofed...)
		if len(lines) > 0 && rapid.Bool().Draw(t, "in one line") {
			lines = []string{strings.Join(lines, ",") + "," + own}
		} else {
			lines = append(lines, own)
		}
		want := subjectOf(t, r, client.String(), nil)
		if got := subjectOf(t, r, "10.0.0.7:80", lines); got != want {
			t.Fatalf("Subject(%q) = %q, want %q", lines, got, want)
		}
		if got := subjectOf(t, r, written(t, client), lines); got != want {
			t.Fatalf("directly: Subject(%q) = %q, want %q", lines, got, want)
		}
	})
}

// A client that takes another address of its /64 for each call is one subject, and its
// neighbour is another.
func TestAddressesOfOnePrefixAreOneSubject(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.SampledFrom([]int{1, 48, 56, 63, 64, 65, 127, 128}).Draw(t, "bits")
		r, err := New(Config{IPv6Bits: bits})
		if err != nil {
			t.Fatal(err)
		}
		one, other := addr6().Draw(t, "one"), addr6().Draw(t, "other")
		if rapid.Bool().Draw(t, "near") { // else hardly any two share a prefix
			a, b := one.As16(), other.As16()
			copy(b[:], a[:rapid.IntRange(0, 16).Draw(t, "same bytes")])
			other = netip.AddrFrom16(b)
		}
		if one.Is4In6() || other.Is4In6() {
			return
		}
		same := netip.PrefixFrom(one, bits).Contains(other)
		if got := subjectOf(t, r, written(t, one), nil) == subjectOf(t, r, written(t, other), nil); got != same {
			t.Fatalf("%s and %s are one subject: %v, want %v by /%d", one, other, got, same, bits)
		}
	})
}

// A malformed hop costs its clients their own limit at most: they are never somebody that
// a client chose.
func FuzzSubject(f *testing.F) {
	f.Add("10.0.0.7:80", "203.0.113.9, 10.1.1.1", "")
	f.Add("10.0.0.7:80", "unknown", "198.51.100.1")
	f.Add("[::ffff:10.0.0.7]:80", ",", "[fe80::1%x]:80")
	f.Add("203.0.113.7", "[", "]")
	r := trusting(f, "10.0.0.0/8")
	f.Fuzz(func(t *testing.T, peer, first, second string) {
		got, err := r.Subject(peer, []string{first, second})
		if err != nil {
			if got != "" {
				t.Fatalf("Subject(%q) = %q with an error", peer, got)
			}
			return
		}
		prefix, err := netip.ParsePrefix(got)
		if err != nil {
			a, err := netip.ParseAddr(got)
			if err != nil || !a.Is4() {
				t.Fatalf("Subject(%q, %q, %q) = %q, which is no IPv4 address and no prefix", peer, first, second, got)
			}
			prefix = netip.PrefixFrom(a, 32)
		}
		if prefix != prefix.Masked() || strings.Contains(got, "%") || prefix.Addr().Is4In6() || len(got) > 256 {
			t.Fatalf("Subject(%q, %q, %q) = %q, which is not canonical", peer, first, second, got)
		}
		spoofed, err := r.Subject(peer, []string{"198.51.100.1", first, second})
		if err != nil {
			t.Fatal(err)
		}
		if hops := strings.Count(first+second, ","); spoofed != got && spoofed != "198.51.100.1" || hops > 2*hopsMax && spoofed != got {
			t.Fatalf("one more line in front made %q of %q", spoofed, got)
		}
	})
}

// FuzzPrefixes holds the reader of trusted proxies to this: a prefix is read again from
// its own text, and none that is accepted is of all addresses.
func FuzzPrefixes(f *testing.F) {
	for _, text := range []string{"10.0.0.0/8", "10.1.2.3/8", "::1", "2001:db8::/32", "::ffff:10.0.0.0/104", "0.0.0.0/0", "fe80::1%eth0", "fe80::1%a/64", "10.0.0.1/33", " ::1 ", "1.2.3"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		prefixes, err := ParsePrefixes([]string{text})
		if err != nil {
			if len(prefixes) > 0 {
				t.Fatalf("ParsePrefixes(%q) = %v with %v", text, prefixes, err)
			}
			return
		}
		again, err := ParsePrefixes([]string{prefixes[0].String()})
		if err != nil || again[0] != prefixes[0] {
			t.Fatalf("ParsePrefixes(%q) = %v, and of that %v, %v", text, prefixes, again, err)
		}
		if _, err := New(Config{TrustedProxies: prefixes, IPv4Bits: 32, IPv6Bits: 64}); (err != nil) != (prefixes[0].Bits() == 0) {
			t.Fatalf("New with %v: %v; want it refused if it is every address", prefixes, err)
		}
	})
}
